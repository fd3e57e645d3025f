"""Dependency tokens: one counter for each ordered pair of units."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ...isa.opcodes import Unit
from ...isa.params import HwParams

_UNITS = len(Unit)


class TokenBank(wiring.Component):
    """Counters of tokens in flight between units.

    Attributes
    ----------
    push : per unit, the mask of units that it gives a token to in this cycle
    pop : per unit, the mask of units that it takes a token of in this cycle (they must be
        available)
    available : per unit, the mask of units whose token it could take
    overflow : in the cycle before, a counter was at its maximum and got another token
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "push": In(_UNITS).array(_UNITS),
                "pop": In(_UNITS).array(_UNITS),
                "available": Out(_UNITS).array(_UNITS),
                "overflow": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        overflows = []
        for giver in Unit:
            for taker in Unit:
                if giver == taker:
                    continue
                pair = f"from_{giver.name}_to_{taker.name}"
                count = Signal(self.params.token_bits, name=pair)
                # Whether there are any, in a register: the starts of instructions depend on it.
                some = Signal(name=f"some_{pair}")
                push, pop = self.push[giver][taker], self.pop[taker][giver]
                full = count == (1 << self.params.token_bits) - 1
                lost = Signal(name=f"lost_{pair}")
                m.d.sync += lost.eq(push & ~pop & full)
                overflows.append(lost)
                with m.If(push & ~pop):
                    m.d.sync += [count.eq(count + 1), some.eq(1)]
                with m.Elif(pop & ~push):
                    m.d.sync += [count.eq(count - 1), some.eq(count != 1)]
                m.d.comb += self.available[taker][giver].eq(some)
        m.d.comb += self.overflow.eq(Cat(overflows).any())
        return m
