"""The rules for processors: from any tensor expression to a schedule with open steps.

Stages are visited from the result to the operands. The first rule that fits a stage is applied:

==============  ====================================================================================
inline          an element-wise stage whose only reader reads the element in its place
place           any other element-wise stage: inlined, computed inside a loop of its readers, or
                whole
factor          a reduction along elements that lie side by side: ``rfactor`` makes it vectors
tile            a reduction: loops in tiles, partly around and partly inside the loops of the
                reduction; results in registers, by way of ``cache_write`` where no element-wise
                stage follows. It is computed inside the tiles of the stage that follows.
result          the result, or what a cached stage is copied to: tiles, vectors, threads
==============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import prod

from ...te.affine import affine
from ...te.expr import FLOAT_DTYPES, Extern, Reduce
from ...te.stage import Stage
from ...te.tensor import IterVar, Tensor
from ...tir.passes.unroll import MAX_COPIES
from .builder import Builder, Kind, Picker, Program

#: Outer loops that are permuted, at most.
MOST_PERMUTED = 4
#: Copies of a statement, at most, with unrolled loops of its reduction.
MOST_UNROLLED = 128
#: Sizes of tiles of an extent that only 1 and itself divide.
OF_PRIMES = (2, 3, 4, 6, 8, 12, 16)


def processor_program(output: Tensor, pick: Picker, lanes: int, threads: int = 1) -> Program:
    """A schedule of an expression for a processor.

    Parameters
    ----------
    pick : decides open steps
    lanes : float32 values in a vector register
    threads : number of threads that share the outer loops

    Raises
    ------
    ScheduleError
        Where what was decided does not go together.
    """
    builder = Builder(output, pick, {})
    rules = _Rules(builder, lanes, threads)
    for stage in reversed(list(builder.schedule.stages)):
        rules.visit(stage)
    return builder.program


class _Rules:
    def __init__(self, builder: Builder, lanes: int, threads: int):
        self.b, self.lanes, self.threads = builder, lanes, threads

    def visit(self, stage: Stage) -> None:
        """Apply the first rule that fits."""
        if stage.body is None or self._is_fixed(stage):
            return
        is_result = stage.tensor in self.b.schedule.outputs
        if not stage.reduce_axes:
            if is_result or self._is_read_whole(stage):
                self.result(stage)
            else:
                self.place(stage)
        elif not is_result and self._follows_in_place(stage):
            self.reduction(stage)
        else:
            local = self.b.schedule[self.b.do("cache_write", stage, "global")]
            copy = self.b.schedule[stage.tensor]
            self.result(copy)
            self.reduction(local)

    def _is_fixed(self, stage: Stage) -> bool:
        """Whether a stage is a loop program of its own or a part of a scan, which stay as they
        are.
        """
        return (
            isinstance(stage.body, Extern)
            or stage.tensor.state is not None
            or stage.attach is not None
        )

    def _is_read_whole(self, stage: Stage) -> bool:
        """Whether a stage is read by one that needs it in memory, at the root."""
        return any(
            isinstance(reader.body, Extern) or self._in_scan(reader)
            for reader in self.b.readers(stage)
        )

    def _in_scan(self, stage: Stage) -> bool:
        """Whether a stage is computed inside a scan."""
        while stage.attach is not None:
            stage = stage.attach[0]
        return stage.tensor.state is not None

    def _follows_in_place(self, stage: Stage) -> bool:
        """Whether one stage reads a stage, each element in its place, and has no reduction."""
        readers = self.b.readers(stage)
        return len(readers) == 1 and reads_in_place(readers[0], stage.tensor)

    # ---- element-wise stages

    def place(self, stage: Stage) -> None:
        """Inline a stage, compute it inside its readers' loops, or whole."""
        readers = self.b.readers(stage)
        inlined = self.b.step("compute_inline", stage)
        if len(readers) == 1 and reads_in_place(readers[0], stage.tensor):
            self.b.do("compute_inline", stage)
            return
        inside = [self.b.step("compute_at", stage, *place) for place in self.b.locations(stage)]
        self.b.choose(Kind.LOCATION, "place", stage, [inlined, None, *inside])
        if not stage.inlined:
            self._add_lanes(stage, stage.tensor.axes[-1], self.b.extents(stage))

    def _add_lanes(self, stage: Stage, axis: IterVar, extents: dict[IterVar, int]) -> None:
        """Vectors along the last axis."""
        if extents[axis] > 1:
            outer, lane = self.b.split(stage, axis, self._vector_sizes(extents[axis]))
            self.b.do("vectorize", stage, lane)
            self.b.places.update(stage.leaves[: stage.leaves.index(outer)])

    def result(self, stage: Stage) -> None:
        """Tiles of the result, whose outer loops are in any order; vectors along its last axis."""
        axes = stage.tensor.axes
        outer, inner = [], []
        for axis in axes:
            if axis.extent == 1:
                outer.append(axis)
                continue
            sizes = self._row_sizes(axis.extent) if axis is axes[-1] else tile_sizes(axis.extent)
            around, inside = self.b.split(stage, axis, sizes)
            outer.append(around)
            inner.append(inside)
        lane = None
        if inner and axes[-1].extent > 1:
            rest, lane = self.b.split(stage, inner[-1], self._vector_sizes(inner[-1].extent))
            inner[-1:] = [rest]
        self.b.do("reorder", stage, *outer, *inner, *([lane] if lane else []))
        self._order(stage, outer)
        outer = self._share(stage, [axis for axis in stage.leaves if axis in outer])
        self._keep(stage, outer)
        self.b.places.update(outer)
        if lane is not None:
            self.b.do("vectorize", stage, lane)
        self._unroll(stage, inner)

    def _order(self, stage: Stage, outer: Sequence[IterVar]) -> None:
        """Decide the order of the outer loops."""
        moving = [axis for axis in outer if axis.extent > 1]
        if len(moving) > 1:
            some, rest = moving[:MOST_PERMUTED], moving[MOST_PERMUTED:]
            orders = [self.b.step("reorder", stage, *order, *rest) for order in permutations(some)]
            self.b.choose(Kind.LOCATION, "order", stage, orders)

    def _share(self, stage: Stage, outer: list[IterVar]) -> list[IterVar]:
        """Share the first outer loop that has several iterations among threads, or that and the
        next one as a single loop. Returns the outer loops that there are then.
        """
        first = next((n for n, axis in enumerate(outer) if axis.extent > 1), 0)
        if self.threads > 1 and len(outer) > first + 1:
            fused = self.b.step("fuse", stage, *outer[first : first + 2])
            made = self.b.choose(Kind.THREADS, "threads", stage, [None, fused])
            if made is not None:
                outer = [*outer[:first], made, *outer[first + 2 :]]
        self.b.do("parallel", stage, outer[first])
        return outer

    def _unroll(self, stage: Stage, loops: Sequence[IterVar]) -> None:
        """Unroll loops from inside, as far as their copies are few."""
        copies = 1
        for axis in reversed(loops):
            copies *= axis.extent
            if copies <= MAX_COPIES:
                self.b.do("unroll", stage, axis)
            else:
                self._keep(stage, [axis])

    def _keep(self, stage: Stage, loops: Sequence[IterVar]) -> None:
        """Keep LLVM from unrolling loops: that is decided here, and long code takes seconds to be
        compiled.
        """
        for axis in loops:
            if axis.extent > 1:
                self.b.do("pragma", stage, axis, "keep_loop")

    # ---- reductions

    def reduction(self, stage: Stage) -> None:
        """Where a reduction is computed, and its loops."""
        if _runs_along(stage):
            long = stage.reduce_axes[-1]
            sizes = [n * self.lanes for n in (1, 2, 4) if long.extent % (n * self.lanes) == 0]
            options = [self.b.step("split", stage, long, size) for size in sizes]
            made = self.b.choose(Kind.SKETCH, "factor", stage, [None, *options])
            if made is not None:
                self._factor(stage, made[1])
                return
        self._locate(stage)
        self._tile(stage)

    def _locate(self, stage: Stage) -> None:
        """Compute a reduction inside a loop of its readers; whole only if there is none."""
        inside = [self.b.step("compute_at", stage, *place) for place in self.b.locations(stage)]
        self.b.choose(Kind.LOCATION, "place", stage, inside or [None])

    def _factor(self, stage: Stage, part: IterVar) -> None:
        """Partial results of a reduction side by side, in vectors."""
        tensor = stage.tensor
        partial = self.b.do("rfactor", stage, part, len(tensor.axes))
        final, parts = self.b.schedule[tensor], self.b.schedule[partial]
        self._locate(final)
        self.b.do("compute_at", parts, final, tensor.axes[-1])
        *_, lanes = partial.axes
        rest, lane = self.b.split(parts, lanes, [self.lanes])
        self.b.do("reorder", parts, *partial.axes[:-1], *partial.reduce_axes, rest, lane)
        self.b.do("unroll", parts, rest)
        self.b.do("vectorize", parts, lane)
        self._contract(parts, lane)

    def _tile(self, stage: Stage) -> None:
        """Loops of a reduction: in tiles, the innermost of which stay in registers."""
        extents = self.b.extents(stage)
        axes = stage.tensor.axes
        around, steps = [], []
        for axis in stage.reduce_axes:
            if axis.extent == 1:
                around.append(axis)
                continue
            outer, inner = self.b.split(stage, axis, tile_sizes(axis.extent))
            around.append(outer)
            steps.append(inner)
        lane, room, tiles, inside = None, MAX_COPIES, [], []
        if extents[axes[-1]] > 1:
            outer, lane = self.b.split(stage, axes[-1], self._vector_sizes(extents[axes[-1]]))
            left = -(-extents[axes[-1]] // lane.extent)
            last = self.b.split(stage, outer, [n for n in tile_sizes(left) if n <= room])
            room //= last[1].extent
        for axis in axes[:-1]:
            if extents[axis] > 1:
                sizes = [n for n in tile_sizes(extents[axis]) if n <= room]
                outer, inner = self.b.split(stage, axis, sizes)
                tiles.append(outer)
                inside.append(inner)
                room //= inner.extent
            else:
                tiles.append(axis)
        if lane is not None:
            tiles.append(last[0])
            inside.append(last[1])
        else:
            tiles.append(axes[-1])
        self._order_steps(stage, [*around, *tiles], steps, [*inside, *([lane] if lane else [])])
        steps = [axis for axis in stage.leaves if axis in steps]
        self._keep(stage, [*around, *tiles])
        self.b.places.update(around, tiles)
        self._kinds(stage, steps, inside, lane)

    def _order_steps(
        self, stage: Stage, outer: list[IterVar], steps: list[IterVar], inner: list[IterVar]
    ) -> None:
        """Decide which loop of a reduction is next to the tile in registers: what that loop reads
        again for another row or column of the tile stays in registers, once both are unrolled.
        """
        moving = [axis for axis in steps if axis.extent > 1] or steps[-1:]
        orders = [[*(other for other in steps if other is not axis), axis] for axis in moving]
        options = [self.b.step("reorder", stage, *outer, *each, *inner) for each in orders]
        if not options:
            options = [self.b.step("reorder", stage, *outer, *inner)]
        self.b.choose(Kind.LOCATION, "steps", stage, options)

    def _kinds(
        self, stage: Stage, steps: list[IterVar], inside: list[IterVar], lane: IterVar | None
    ) -> None:
        """Unroll the tile in registers, and decide about the loops of the reduction around it."""
        copies = prod(axis.extent for axis in inside)
        self._unroll(stage, inside)
        if lane is not None:
            self.b.do("vectorize", stage, lane)
            self._contract(stage, lane)
        for axis in reversed(steps):
            if axis.extent > 1:
                copies *= axis.extent
                options = [self.b.step("pragma", stage, axis, "keep_loop")]
                if copies <= MOST_UNROLLED:
                    options.insert(0, self.b.step("unroll", stage, axis))
                self.b.choose(Kind.UNROLL, f"loop {axis.name}", stage, options)

    def _contract(self, stage: Stage, axis: IterVar) -> None:
        """Let a product and a sum of floats be rounded once."""
        if stage.tensor.dtype in FLOAT_DTYPES:
            self.b.do("pragma", stage, axis, "contract")

    # ---- sizes

    def _row_sizes(self, extent: int) -> list[int]:
        """Sizes of tiles along the axis of vectors: whole vectors where these divide it."""
        width = self._vector_sizes(extent)[0]
        return [n for n in tile_sizes(extent) if n % width == 0]

    def _vector_sizes(self, extent: int) -> list[int]:
        """Sizes of vectors, the best first; the whole extent where no vector divides it."""
        whole = [n for n in (self.lanes, 2 * self.lanes, self.lanes // 2, 4) if extent % n == 0]
        return whole or [extent]


def tile_sizes(extent: int) -> list[int]:
    """Sizes of tiles: divisors, or other ones if an extent has no more than 1 and itself."""
    found = [n for n in range(1, extent + 1) if extent % n == 0]
    if len(found) == 2 and extent > OF_PRIMES[1]:
        found[1:1] = [n for n in OF_PRIMES if n < extent]
    return found


def reads_in_place(reader: Stage, tensor: Tensor) -> bool:
    """Whether a stage without reduction reads a tensor's elements each in its own place."""
    element = tuple(axis.var for axis in reader.tensor.axes)
    return (
        not reader.reduce_axes
        and reader.tensor.shape == tensor.shape
        and all(r.indices == element for r in reader.reads() if r.source is tensor)
    )


def _runs_along(stage: Stage) -> bool:
    """Whether a reduction reads elements side by side as its innermost loop goes on, and results
    that lie side by side do not."""
    if not isinstance(stage.body, Reduce):
        return False
    long, row = stage.reduce_axes[-1].var, stage.tensor.axes[-1].var
    steps = [affine(read.indices[-1]).coefficients for read in stage.reads()]
    return any(s.get(long) == 1 for s in steps) and not any(s.get(row) == 1 for s in steps)
