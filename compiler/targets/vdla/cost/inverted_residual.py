"""Choose tiles for a fused inverted residual (``templates/inverted_residual.py``): the expanded
image stays on chip until the windows of a depthwise convolution slide over it.

For each tile, the operands of the expansion are loaded once, and all blocks of channels pass, one
after the other. The halo of a tile is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....choose.space import Knobs, KnobValue
from ..expressions import REQUANT_ENTRIES, Window
from ..machine import Budget, Machine
from .tiling import INSN_CYCLES, even_sizes, slide_cols, steps_cycles

#: Virtual threads that the operator may have.
VTHREADS = (1, 2, 3, 4)
#: Cycles of the vector unit for a block of channels besides its iterations: two PARAM, and the
#: first cycles of instructions.
BLOCK_CYCLES = 16
#: How often a depthwise convolution of its own reads an element of its image, with the halos.
HALO = 1.2


class Part(NamedTuple):
    """A tile: rows and columns of results, and the virtual threads that take blocks of channels in
    turn."""

    rows: int
    cols: int
    vthreads: int

    @classmethod
    def of(cls, knobs: Knobs) -> Part:
        """The part with some knobs."""
        return cls(*(int(knobs[name]) for name in cls._fields))


@dataclass(frozen=True)
class Expansion:
    """A 1x1 convolution to ``blocks`` blocks of channels, and windows that slide over its result:
    an iteration has ``sums`` products, and a row of the kernel ``phases`` iterations.
    """

    ic_blocks: int
    blocks: int
    height: int
    width: int
    window: Window
    sums: int
    phases: int
    #: How often the vector unit passes over the image between, before windows do.
    passes: int

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of results."""
        return self.window.output(self.height, self.width)

    @property
    def knobs(self) -> Mapping[str, Sequence[KnobValue]]:
        """The knobs, with their legal values."""
        rows, cols = map(even_sizes, self.size)
        return {"rows": rows, "cols": cols, "vthreads": VTHREADS}

    def iterations(self, rows: float, cols: float) -> float:
        """Cycles of windows for a block of so many results."""
        cols = slide_cols(cols, self.sums)
        return self.window.kernel[0] * self.phases * rows * cols

    @property
    def constants(self) -> int:
        """Entries of par for a block of channels."""
        return 2 * REQUANT_ENTRIES + self.window.kernel[0] * self.phases

    def tiles(self, part: Part) -> int:
        """The number of parts."""
        rows, cols = self.size
        return -(-rows // part.rows) * -(-cols // part.cols)

    def spans(self, part: Part) -> tuple[int, int]:
        """Rows and columns of the image between, with its border, that a part reads."""
        (kh, _), (sh, sw) = self.window.kernel, self.window.strides
        return (part.rows - 1) * sh + kh, (part.cols - 1) * sw + self.sums * self.phases

    def computed(self, part: Part) -> tuple[int, int]:
        """The most rows and columns of the image between that are computed for a part."""
        rows, cols = self.spans(part)
        return min(rows, self.height), min(cols, self.width)

    def stays(self, part: Part, budget: Budget) -> tuple[str, ...]:
        """The scratchpads that hold the constants of all blocks, if there are several parts and
        there is room. Else they hold those of a block for each virtual thread."""
        if self.tiles(part) == 1:
            return ()
        needs = {"wgt": self.ic_blocks * self.blocks, "par": self.constants * self.blocks}
        return tuple(name for name, entries in needs.items() if entries <= budget.of(name))

    def leaving(self, part: Part, budget: Budget) -> int:
        """Rows of results that leave at a time: all, or the most that divide them evenly and have
        room twice; 0 where not one has."""
        row = part.cols * part.vthreads
        if part.rows * row <= budget.out:
            return part.rows
        most = min(budget.out // (2 * row), part.rows - 1)
        return next((rows for rows in range(most, 0, -1) if part.rows % rows == 0), 0)

    def needs(self, part: Part, budget: Budget) -> Mapping[str, int]:
        """Entries of scratchpads."""
        rows, cols = self.computed(part)
        span_rows, span_cols = self.spans(part)
        staying, threads = self.stays(part, budget), part.vthreads
        leaving = self.leaving(part, budget)
        copies = {name: self.blocks if name in staying else threads for name in ("wgt", "par")}
        return {
            "tmp": span_rows * span_cols,
            "acc": rows * cols * threads,
            "out": part.cols * threads * (leaving if leaving == part.rows else 2 * max(leaving, 1)),
            "inp": self.ic_blocks * rows * cols * (2 if self.tiles(part) > 1 else 1),
            "wgt": self.ic_blocks * copies["wgt"],
            "par": self.constants * copies["par"],
            "uop": 2 * self.ic_blocks,
        }

    def computed_positions(self, part: Part) -> float:
        """Positions of a block that are computed, in all tiles together."""
        top, left, *_ = self.window.pads
        (kh, kw), (sh, sw) = self.window.kernel, self.window.strides
        oh, ow = self.size
        rows = _covered(oh, part.rows, sh, kh, top, self.height)
        return rows * _covered(ow, part.cols, sw, kw, left, self.width)

    def apart_cost(self, machine: Machine, price: float) -> float:
        """The cycles of two operators, as if these worked side by side without a wait, and what
        their loads cost others."""
        params = machine.params
        beats = params.entry_bytes("inp") / params.bus_bytes
        oh, ow = self.size
        places, results = self.height * self.width, oh * ow
        vector = self.passes * places + self.iterations(oh, ow) + BLOCK_CYCLES
        vector *= params.vector_passes
        constants = self.ic_blocks * params.entry_bytes("wgt")
        constants += self.constants * params.entry_bytes("par")
        load = (self.ic_blocks + self.blocks * HALO) * places * beats
        load += self.blocks * constants / params.bus_bytes
        each = max(self.ic_blocks * places, vector, (places + results) * beats)
        return max(self.blocks * each, load) + price * load

    def work(self, part: Part, budget: Budget, machine: Machine) -> tuple[float, float]:
        """The cycles that are predicted, and those of its loads."""
        params, tiles = machine.params, self.tiles(part)
        beats = params.entry_bytes("inp") / params.bus_bytes
        oh, ow = self.size
        mean_rows, mean_cols = oh / -(-oh // part.rows), ow / -(-ow // part.cols)
        places = self.computed_positions(part) / tiles
        leaving = part.rows // self.leaving(part, budget)
        vector = self.passes * places + self.iterations(mean_rows, mean_cols) + BLOCK_CYCLES
        vector = (vector + INSN_CYCLES * leaving) * params.vector_passes
        staying = self.stays(part, budget)
        wgt = self.ic_blocks * params.entry_bytes("wgt") / params.bus_bytes
        par = self.constants * params.entry_bytes("par") / params.bus_bytes
        apart = ("wgt" not in staying) * wgt + ("par" not in staying) * par
        once = ("wgt" in staying) * wgt + ("par" in staying) * par
        image = self.ic_blocks * places * beats
        insns = 5 + self.passes + 2 * leaving
        insns += 3 * ("par" not in staying) + ("wgt" not in staying)
        cycles = steps_cycles(
            tiles, self.blocks, image + once * self.blocks / tiles, apart,
            self.ic_blocks * places, vector, mean_rows * mean_cols * beats, insns, part.vthreads,
            machine,
        )  # fmt: skip
        return cycles, tiles * image + self.blocks * (once + apart * tiles)


def _covered(results: int, size: int, stride: int, kernel: int, before: int, extent: int) -> int:
    """Elements of a dimension, without its border, that parts of ``size`` results read, in all
    parts together."""
    total = 0
    for first in range(0, results, size):
        last = min(first + size, results) - 1
        low, high = first * stride - before, last * stride - before + kernel
        total += min(high, extent) - max(low, 0)
    return total
