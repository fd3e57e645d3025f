"""Counters of why the cycles of a unit passed. Exactly one of them advances in a cycle, so they are
the entries of one memory.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ...isa.regmap import CAUSES, REGISTER_BITS


class CauseCounters(wiring.Component):
    """Attributes
    ----------
    counting : there is a cycle to count
    cause : why it passed, an index of ``CAUSES``
    shown, value : a cause, and its counter in the same cycle; all are 0 after a reset
    """

    def __init__(self) -> None:
        cause = In(range(len(CAUSES)))
        value = Out(REGISTER_BITS)
        super().__init__({"counting": In(1), "cause": cause, "shown": cause, "value": value})

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.storage = memory = Memory(
            shape=unsigned(REGISTER_BITS), depth=len(CAUSES), init=[]
        )
        write = memory.write_port()
        # An entry of the memory counts only if its cause has occurred since the reset.
        seen = Signal(len(CAUSES))

        def count(cause: Signal):
            read = memory.read_port(domain="comb")
            m.d.comb += read.addr.eq(cause)
            return Mux(seen.bit_select(cause, 1), read.data, 0)

        m.d.comb += [
            self.value.eq(count(self.shown)),
            write.addr.eq(self.cause), write.en.eq(self.counting),
            write.data.eq(count(self.cause) + 1),
        ]  # fmt: skip
        with m.If(self.counting):
            m.d.sync += seen.bit_select(self.cause, 1).eq(1)
        return m
