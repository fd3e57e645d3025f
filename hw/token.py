"""Dependency tokens: one counter for each ordered pair of units."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..isa.opcodes import Unit
from ..isa.params import HwParams


class TokenBank(wiring.Component):
    """The token counters of all pairs of units. Index arrays by ``Unit``; masks have its bits.

    A push in cycle *e* is counted from *e + 1*; a push and a pop in one cycle cancel.

    Members
    -------
    push : In(4 x 4 bits)
        ``push[giver]``: units that get a token from it in this cycle.
    pop : In(4 x 4 bits)
        ``pop[taker]``: units that it takes a token from in this cycle; only where available.
    available : Out(4 x 4 bits)
        ``available[taker]``: units whose counter towards it is above zero.
    overflow : Out(4)
        Units that push in this cycle on a counter that is full and not popped (the count stays).
    """

    def __init__(self, params: HwParams) -> None:
        self.token_bits = params.token_bits
        masks = data.ArrayLayout(len(Unit), len(Unit))
        super().__init__(
            {
                "push": In(masks),
                "pop": In(masks),
                "available": Out(masks),
                "overflow": Out(len(Unit)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        full = (1 << self.token_bits) - 1
        for giver in Unit:
            overflows = []
            for taker in Unit:
                if giver is taker:
                    continue
                name = f"{giver.name.lower()}_to_{taker.name.lower()}"
                count = Signal(self.token_bits, name=name)
                push, pop = self.push[giver][taker], self.pop[taker][giver]
                m.d.comb += self.available[taker][giver].eq(count != 0)
                with m.If(push & ~pop & (count != full)):
                    m.d.sync += count.eq(count + 1)
                with m.Elif(pop & ~push):
                    m.d.sync += count.eq(count - 1)
                overflows.append(push & ~pop & (count == full))
            m.d.comb += self.overflow[giver].eq(Cat(*overflows).any())
        return m
