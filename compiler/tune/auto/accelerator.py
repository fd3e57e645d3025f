"""The rules for the accelerator: from an expression in blocks of channels to a tensorized schedule
with open steps.

The expression is a sum of products of int8, as the tensor core computes it, and what the vector
unit makes of it, element by element. Its dimensions end in [batch, block].

==============  ====================================================================================
tensorize       the sum of products: ``acc``, with the tensor core's instruction
scratchpads     the image goes to ``inp`` (with its border, where the expression has one), weights
                to ``wgt``, parameters to ``par``, results leave by ``out``
tile            blocks of channels and places of the result in tiles, in any order; a tile is a task
                of a virtual thread
place           operands are loaded inside a loop over tiles, or a step of the reduction
==============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from ...te.errors import ScheduleError
from ...te.expr import Read
from ...te.intrinsic import TensorIntrin
from ...te.stage import Stage
from ...te.tensor import IterVar, Tensor
from .builder import Builder, Kind, Picker, Program
from .rules import reads_in_place, tile_sizes

#: Numbers of virtual threads that are tried.
VTHREADS = (1, 2, 4)


def accelerator_program(output: Tensor, pick: Picker, gemm: TensorIntrin) -> Program:
    """A schedule of an expression for the accelerator.

    Parameters
    ----------
    pick : decides open steps
    gemm : the tensor core's instruction

    Raises
    ------
    ScheduleError
        For an expression that is not a sum of products and element-wise operators on it, and where
        what was decided does not go together.
    """
    builder = Builder(output, pick, {gemm.name: gemm})
    _Rules(builder, gemm).apply(output)
    return builder.program


class _Rules:
    def __init__(self, builder: Builder, gemm: TensorIntrin):
        self.b, self.gemm = builder, gemm

    def apply(self, output: Tensor) -> None:
        """All rules, in order."""
        sums, operands = self._sums(output)
        local = self.b.do("cache_write", self.b.schedule[output], "out")
        self.b.do("set_scope", self.b.schedule[sums], "acc")
        loaded = {name: self._loaded(operands[name], name, sums) for name in ("inp", "wgt")}
        rest = [t for t in self._read_by(local) if t is not sums]
        parameters = [self._cached(tensor, "par", local) for tensor in rest]
        outer, channel = self._tile(self.b.schedule[output])
        stage, of_sums = self.b.schedule[output], self.b.schedule[sums]
        inside = outer[-1]
        self.b.do("compute_at", of_sums, stage, inside)
        self.b.do("unroll", stage, channel)
        self.b.do("compute_at", self.b.schedule[local], stage, channel)
        if channel.extent > 1:
            self.b.do("double_buffer", self.b.schedule[local])
        step = self._tensorize(of_sums)
        for tensor in parameters:
            self._place(self.b.schedule[tensor], [(stage, axis) for axis in outer])
        for tensor in loaded.values():
            places = [*((stage, axis) for axis in outer), (of_sums, step)]
            self._place(self.b.schedule[tensor], places)

    def _sums(self, output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The tensor that is a sum of products, and its operands by scratchpad. Element-wise stages
        between it and the result are inlined.
        """
        stages = [s for s in self.b.schedule.stages if s.body is not None]
        found = [s for s in stages if s.reduce_axes]
        if len(found) != 1 or found[0].tensor is output:
            raise ScheduleError(
                f"accelerator: expected one sum of products and element-wise operators on it, got "
                f"{len(found)} reductions in {[s.name for s in stages]}"
            )
        sums = found[0]
        for stage in stages[stages.index(sums) + 1 :]:
            if stage.tensor is not output:
                self.b.do("compute_inline", stage)
        if not reads_in_place(self.b.schedule[output], sums.tensor):
            raise ScheduleError(
                f"accelerator: expected that {output.name} reads {sums.name} element by element"
            )
        return sums.tensor, self._operands(sums)

    def _operands(self, sums: Stage) -> dict[str, Tensor]:
        """The operand that moves with the rows of the instruction's result, and the one that moves
        with its columns.
        """
        rows, columns = (axis.var for axis in sums.tensor.axes[-2:])
        found = {}
        for read in sums.reads():
            name = {rows: "inp", columns: "wgt"}.get(read.indices[-2])  # type: ignore[arg-type]
            if name is not None and isinstance(read.source, Tensor):
                found[name] = read.source
        if len(found) != 2:
            raise ScheduleError(
                f"accelerator: expected that {sums.name} multiplies elements [batch, block] and "
                f"[block, block], got reads of {[_text(r) for r in sums.reads()]}"
            )
        return found

    def _read_by(self, tensor: Tensor) -> list[Tensor]:
        reads = [r.source for r in self.b.schedule[tensor].reads()]
        return list(dict.fromkeys(t for t in reads if isinstance(t, Tensor)))

    def _loaded(self, tensor: Tensor, scope: str, reader: Tensor) -> Tensor:
        """An operand in its scratchpad: a border is added as it is loaded."""
        if tensor.body is None:
            return self._cached(tensor, scope, reader)
        self.b.do("set_scope", self.b.schedule[tensor], scope)
        return tensor

    def _cached(self, tensor: Tensor, scope: str, reader: Tensor) -> Tensor:
        label = self.b.step("compute_at", self.b.schedule[reader]).stage
        return self.b.do("cache_read", self.b.schedule[tensor], scope, label)

    def _tile(self, stage: Stage) -> tuple[list[IterVar], IterVar]:
        """Tiles of the result. Returns the loops over tiles, virtual threads innermost, and the
        loop over the blocks of channels of a tile.
        """
        *axes, _, _ = stage.tensor.axes
        outer, inner = [], []
        for axis in axes:
            around, inside = self.b.split(stage, axis, tile_sizes(axis.extent))
            outer.append(around)
            inner.append(inside)
        self.b.do("reorder", stage, *outer, *inner)
        moving = [axis for axis in outer if axis.extent > 1]
        if len(moving) > 1:
            orders = [self.b.step("reorder", stage, *order) for order in permutations(moving)]
            self.b.choose(Kind.LOCATION, "order", stage, orders)
        ordered = [axis for axis in stage.leaves if axis in outer]
        tile = next((axis for axis in reversed(ordered) if axis.extent > 1), ordered[-1])
        factors = [n for n in VTHREADS if tile.extent % n == 0]
        splits = [self.b.step("split", stage, tile, n) for n in factors]
        whole, thread = self.b.choose(Kind.THREADS, "threads", stage, splits)
        self.b.do("vthread", stage, thread)
        place = ordered.index(tile)
        ordered[place : place + 1] = [whole, thread]
        return ordered, inner[0]

    def _tensorize(self, stage: Stage) -> IterVar:
        """The tensor core's instruction, and around it a step of the reduction, whose loop is
        returned.
        """
        *places, batch, column = stage.tensor.axes
        first, *taps, inner = stage.reduce_axes
        around, step = self.b.split(stage, first, tile_sizes(first.extent))
        self.b.do("reorder", stage, around, *places, step, *taps, batch, column, inner)
        self.b.do("tensorize", stage, batch, self.gemm.name)
        return around

    def _place(self, stage: Stage, places: Sequence[tuple[Stage, IterVar]]) -> None:
        """Where an operand is loaded, and whether the next one is loaded meanwhile."""
        options = [self.b.step("compute_at", stage, *place) for place in places]
        self.b.choose(Kind.LOCATION, "place", stage, options)
        twice = self.b.step("double_buffer", stage)
        self.b.choose(Kind.SKETCH, "buffers", stage, [None, twice])


def _text(read: Read) -> str:
    return f"{read.source.name}{list(read.indices)}"
