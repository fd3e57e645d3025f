"""The multiplier back ends side by side, fed with every pair of products there is."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib.wiring import Component, Out
from vdla.hw.core.technology import Multiplier, multiply
from vdla.isa.params import HwParams

PARAMS = HwParams(block_in=4, block_out=4)
#: Arrays, each of which takes two pairs of weights a cycle, with one activation.
ARRAYS_LOG2 = 2
#: All of 8 bits of activation and 16 bits of weights.
CYCLES_LOG2 = 24 - ARRAYS_LOG2 - 1


class Compared(Component):
    """``differs``: a back end has given another sum than the array for simulation; ``done``: all
    operands have been seen.
    """

    def __init__(self, back_ends: tuple[Multiplier, ...]):
        self.back_ends = back_ends
        super().__init__({"differs": Out(1), "done": Out(1)})

    def elaborate(self, platform) -> Module:
        m = Module()
        count = Signal(CYCLES_LOG2 + 1)
        with m.If(~count[-1]):
            m.d.sync += count.eq(count + 1)
        wrong = []
        for array in range(1 << ARRAYS_LOG2):
            pairs = [Cat(Const(2 * array + p, ARRAYS_LOG2 + 1), count[: 15 - ARRAYS_LOG2])
                     for p in range(2)]  # fmt: skip
            activation, position = count[15 - ARRAYS_LOG2 : CYCLES_LOG2], array % PARAMS.block_in
            x, w = Signal(32), Signal(128)
            # In half of the arrays the other products of a sum are 0, in half they are not.
            for i in range(PARAMS.block_in) if array % 2 else (position,):
                away = i - position
                m.d.comb += x[8 * i :][:8].eq(activation.rotate_left(away))
                for output in range(PARAMS.block_out):
                    place = 8 * (output * PARAMS.block_in + i)
                    weight = pairs[output // 2].word_select(output % 2, 8)
                    m.d.comb += w[place:][:8].eq(weight.rotate_left(3 * away))
            seen = [x] * PARAMS.block_out
            expected = multiply(m, PARAMS, seen, w)
            for back_end in self.back_ends:
                sums = back_end(m, PARAMS, seen, w)
                wrong += [(a != b.as_signed()) for a, b in
                          zip((e.as_signed() for e in expected), sums, strict=True)]  # fmt: skip
        m.d.sync += self.done.eq(count[-1])
        with m.If(Cat(wrong).any()):
            m.d.sync += self.differs.eq(1)
        return m
