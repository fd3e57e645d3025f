"""A sliding window: several results of a convolution at once, one entry of the image an iteration.

:class:`Unwritten` is for the front of the unit, :class:`Window` for each lane. What they compute:
``isa/vector_ops.py``.
"""

from __future__ import annotations

from itertools import pairwise

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import INT8_BITS, INT32_BITS, VECTOR_LOOPS
from ....isa.opcodes import Features
from ....isa.params import HwParams
from ....isa.vector_ops import operators
from ..technology import SIMULATION, Technology
from .controls import lane_signature
from .logic import any_of, named, register
from .loops import LOOPS
from .stages import vector_field


def sliding_codes(params: Features) -> list[int]:
    """The codes of the operators that slide."""
    return [op.code for op in operators(params) if op.slides]


class Unwritten(wiring.Component):
    """Whether the result of the iteration is one of those before the first whole window, which are
    not written.

    Attributes
    ----------
    start, count, reduce : an instruction begins; how many are not written in each run of the
        innermost loop that is not reduced
    moves, advances : as of :class:`~.loops.Loops`
    active : the result is not written
    """

    def __init__(self, params: HwParams):
        self.count_bits = (params.vector_window - 1).bit_length()
        super().__init__(
            {
                "start": In(1),
                "count": In(self.count_bits),
                "reduce": In(vector_field("reduce", params).bits),
                "moves": In(1),
                "advances": In(VECTOR_LOOPS),
                "active": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        reduce = Signal.like(self.reduce, reset_less=True)
        count = Signal.like(self.count, name="all", reset_less=True)
        left = Signal.like(self.count, name="left", reset_less=True)
        row = [reduce == VECTOR_LOOPS - 1 - k for k in LOOPS]
        # The loop goes on, or one outside of it does, and then it begins again.
        goes_on = Cat(self.advances[k] & row[k] for k in LOOPS).any()
        outer = (self.advances[k] & (reduce < VECTOR_LOOPS - 1 - k) for k in LOOPS)
        with m.If(self.moves & goes_on & self.active):
            m.d.sync += left.eq(left - 1)
        with m.If(self.moves & Cat(outer).any()):
            m.d.sync += left.eq(count)
        with m.If(self.start):
            m.d.sync += [reduce.eq(self.reduce), count.eq(self.count), left.eq(self.count)]
        m.d.comb += self.active.eq(left != 0)
        return m


class Window(wiring.Component):
    """Stages OPERATE and ADD: the products of the operands' bytes, and the sums that they are added
    to.

    Attributes
    ----------
    operate, add, reduce : controls of the stages;  a, b : the operands
    result : the chosen sum, in stage REDUCE
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        told = lane_signature(params).members
        super().__init__(
            {
                **{name: In(told[name].signature) for name in ("operate", "add", "reduce")},
                "a": In(INT32_BITS),
                "b": In(INT32_BITS),
                "result": Out(INT32_BITS),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        weights = range(self.params.vector_window)
        # As wide as a sum, so that a simulator needs no masks and sign extensions.
        entry = named(m, self.a[:INT8_BITS].as_signed(), "entry", INT32_BITS)
        products = []
        for i in weights:
            byte = self.b.word_select(i, INT8_BITS).as_signed()
            weight = named(m, byte, f"weight_{i}", INT32_BITS)
            # The floorplan knows multipliers by these names.
            product = register(f"product{i}", 2 * INT8_BITS)
            products.append(product)
            with self.technology.when(m, self.operate.valid):
                m.d.sync += product.eq(entry * weight)
        # Passes come one after the other: the last of these is of the same pass an iteration ago.
        sums = [
            [register(f"sum_{i}_{n}", INT32_BITS) for n in range(self.params.vector_passes)]
            for i in weights
        ]
        with m.If(self.add.valid):
            for i in weights:
                before = sums[i - 1][-1] if i else 0
                kept = named(m, Mux(self.add.moves, before, sums[i][-1]), f"kept_{i}", INT32_BITS)
                m.d.sync += sums[i][0].eq(kept + products[i])
                m.d.sync += [late.eq(early) for early, late in pairwise(sums[i])]
        chosen = (Mux(self.reduce.sums[i], sums[i][0], 0) for i in weights)
        m.d.comb += self.result.eq(any_of(chosen))
        return m
