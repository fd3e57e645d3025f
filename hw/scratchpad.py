"""Scratchpad: one write port, any number of synchronous read ports, a name to find it by."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import Out, connect, flipped

from ..isa.params import HwParams

#: Memories whose entries the load unit may write in pieces of a bus word.
LOADED = ("inp", "wgt", "par")


def entry_bits(name: str, params: HwParams) -> int:
    """Bits of one entry as the scratchpad holds it (micro-ops without their padding in DRAM)."""
    return params.uop_bits if name == "uop" else 8 * params.entry_bytes(name)


def write_granularity(name: str, params: HwParams) -> int:
    """Bits that one enable of the write port covers: a bus word where entries arrive in pieces."""
    whole = entry_bits(name, params)
    return min(params.bus_bits, whole) if name in LOADED else whole


def read_signature(name: str, params: HwParams) -> memory.ReadPort.Signature:
    """``addr``, ``en`` into and ``data`` out of the scratchpad: address in *t*, data in *t + 1*.

    ``data`` holds while ``en`` is low. Users of a scratchpad have an ``In`` member of it.
    """
    return memory.ReadPort.Signature(
        addr_width=params.index_bits(name), shape=entry_bits(name, params)
    )


def write_signature(name: str, params: HwParams) -> memory.WritePort.Signature:
    """``addr``, ``data``, ``en`` into the scratchpad; one bit of ``en`` per ``write_granularity``.

    A write in *t* is seen by reads presented from *t + 1*; one presented in *t* returns what was
    there before.
    """
    return memory.WritePort.Signature(
        addr_width=params.index_bits(name),
        shape=entry_bits(name, params),
        granularity=write_granularity(name, params),
    )


class Scratchpad(wiring.Component):
    """On-chip memory ``name`` (one of ``isa.params.MEMORIES``), zero at reset in simulation only.

    The cells are the submodule ``storage``; in Verilog the array ``storage`` of the instance.

    Parameters
    ----------
    name : str
        Which memory: decides depth and entry width.
    params : HwParams
        The configuration.
    readers : tuple of str
        Names of the read ports, for example the units that read.

    Members
    -------
    write : Out(write_signature(name, params))
        The write port.
    read_<reader> : Out(read_signature(name, params))
        One for each reader.
    """

    def __init__(self, name: str, params: HwParams, readers: tuple[str, ...]) -> None:
        self.name = name
        self.params = params
        self.readers = readers
        ports = {f"read_{reader}": Out(read_signature(name, params)) for reader in readers}
        super().__init__({"write": Out(write_signature(name, params)), **ports})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shape = entry_bits(self.name, self.params)
        m.submodules.storage = storage = memory.Memory(
            shape=shape, depth=self.params.depth(self.name), init=[]
        )
        granularity = write_granularity(self.name, self.params)
        connect(m, flipped(self.write), storage.write_port(granularity=granularity))
        for reader in self.readers:
            connect(m, flipped(getattr(self, f"read_{reader}")), storage.read_port())
        return m
