"""On-chip memories: one writer, private read ports."""

from __future__ import annotations

from amaranth.hdl import Module, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ...isa.opcodes import LOADABLE
from ...isa.params import HwParams


def read_signature(depth: int, width: int) -> wiring.Signature:
    """A read port, seen from the unit that reads: an address in cycle t brings its data in cycle
    t+1.
    """
    return wiring.Signature({"addr": Out(range(depth)), "data": In(width)})


def write_signature(depth: int, width: int, parts: int = 1) -> wiring.Signature:
    """A write port, seen from the unit that writes: visible to reads whose address is given from
    the next cycle on. If an entry has several parts, each bit of ``en`` enables one of them.
    """
    return wiring.Signature({"en": Out(parts), "addr": Out(range(depth)), "data": Out(width)})


def read_port(name: str, params: HwParams) -> wiring.Signature:
    """A read port of a scratchpad."""
    return read_signature(*rows(name, params))


def write_port(name: str, params: HwParams) -> wiring.Signature:
    """The write port of a scratchpad; the load unit's have an enable for every beat of an entry."""
    return write_signature(*rows(name, params), written_parts(name, params))


class Scratchpad(wiring.Component):
    """One memory of the core, in :func:`rows`.

    Attributes
    ----------
    write : the write port;  read : array of read ports
    """

    def __init__(self, name: str, params: HwParams, reads: int):
        self.depth, self.width = rows(name, params)
        self.parts = written_parts(name, params)
        super().__init__(
            {
                "write": In(write_port(name, params)),
                "read": In(read_port(name, params)).array(reads),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        # Tokens, or forwarding, keep a unit from reading what is written in the same cycle;
        # synthesis need not build what such a read would return.
        m.submodules.storage = memory = Memory(
            shape=unsigned(self.width), depth=self.depth, init=[], attrs={"no_rw_check": 1}
        )
        write = memory.write_port(granularity=self.width // self.parts)
        m.d.comb += [
            write.en.eq(self.write.en),
            write.addr.eq(self.write.addr),
            write.data.eq(self.write.data),
        ]
        for port in self.read:
            read = memory.read_port(domain="sync")
            m.d.comb += [read.addr.eq(port.addr), read.en.eq(1), port.data.eq(read.data)]
        return m


def rows(name: str, params: HwParams) -> tuple[int, int]:
    """The number of rows of a scratchpad, and the bits of a row. A row is an entry, except in tmp,
    which only the vector unit accesses: there a row is the part of an entry that the unit computes
    in one pass. With n passes, row n * entry + p has elements p, p + n, p + 2n, ... of the entry.
    """
    passes = params.vector_passes if name == "tmp" else 1
    bits = params.uop_bits if name == "uop" else params.entry_bytes(name) * 8
    return params.depth(name) * passes, bits // passes


def written_parts(name: str, params: HwParams) -> int:
    """Parts of an entry that are written one by one: beats in what the load unit fills, else
    one."""
    _, bits = rows(name, params)
    return -(-bits // params.bus_bits) if name in LOADABLE else 1
