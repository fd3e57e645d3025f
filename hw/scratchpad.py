"""On-chip memories: one writer, private read ports."""

from __future__ import annotations

from amaranth.hdl import Module, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..isa.params import HwParams


def read_signature(depth: int, width: int) -> wiring.Signature:
    """A read port, seen from the unit that reads: an address in cycle t brings its data in cycle
    t+1.
    """
    return wiring.Signature({"addr": Out(range(depth)), "data": In(width)})


def write_signature(depth: int, width: int) -> wiring.Signature:
    """A write port, seen from the unit that writes: visible to reads whose address is given from
    the next cycle on.
    """
    return wiring.Signature({"en": Out(1), "addr": Out(range(depth)), "data": Out(width)})


class Scratchpad(wiring.Component):
    """One memory of the core.

    Attributes
    ----------
    write : the write port;  read : array of read ports
    """

    def __init__(self, name: str, params: HwParams, reads: int):
        self.name, self.depth = name, params.depth(name)
        self.width = entry_bits(name, params)
        super().__init__(
            {
                "write": In(write_signature(self.depth, self.width)),
                "read": In(read_signature(self.depth, self.width)).array(reads),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        # Tokens, or forwarding, keep a unit from reading what is written in the same cycle;
        # synthesis need not build what such a read would return.
        m.submodules.storage = memory = Memory(
            shape=unsigned(self.width), depth=self.depth, init=[], attrs={"no_rw_check": 1}
        )
        write = memory.write_port()
        m.d.comb += [
            write.en.eq(self.write.en),
            write.addr.eq(self.write.addr),
            write.data.eq(self.write.data),
        ]
        for port in self.read:
            read = memory.read_port(domain="sync")
            m.d.comb += [read.addr.eq(port.addr), read.en.eq(1), port.data.eq(read.data)]
        return m


def entry_bits(name: str, params: HwParams) -> int:
    """Bits of a scratchpad entry as it is stored."""
    return params.uop_bits if name == "uop" else params.entry_bytes(name) * 8
