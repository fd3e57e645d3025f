"""A small design with blocks, for tests of synthesis that take seconds, and files of tests."""

from __future__ import annotations

from pathlib import Path

from amaranth.hdl import Module
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out
from vdla.hw.core.verilog import TOP, to_verilog
from vdla.hw.fpga.sources import relative_sources
from vdla.sim.rtl.toolchain import setup_yosys

SMALL = Path(__file__).with_name("small.lib")
#: What Debian's package qflow-tech-osu018 installs.
OSU018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")


class Product(Component):
    """A registered product of registered factors."""

    def __init__(self, bits: int) -> None:
        super().__init__({"a": In(bits), "b": In(bits), "p": Out(bits)})

    def elaborate(self, platform) -> Module:
        m = Module()
        product = self.a * self.b
        m.d.sync += self.p.eq(product)
        return m


class Words(Component):
    """Words that are written one after the other, and read by two ports."""

    def __init__(self, bits: int) -> None:
        super().__init__(
            {"data": In(bits), "at": In(4), "here": In(3), "read": Out(bits), "now": Out(bits)}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.storage = memory = Memory(shape=self.data.shape(), depth=16, init=[])
        write, read = memory.write_port(), memory.read_port()
        m.submodules.table = table = Memory(shape=self.data.shape(), depth=8, init=[])
        also, now = table.write_port(), table.read_port(domain="comb")
        m.d.comb += [write.addr.eq(self.at), write.data.eq(self.data), write.en.eq(1)]
        m.d.comb += [read.addr.eq(~self.at), read.en.eq(1), self.read.eq(read.data)]
        m.d.comb += [also.addr.eq(self.at), also.data.eq(self.data), also.en.eq(self.at[3])]
        m.d.comb += [now.addr.eq(self.here), self.now.eq(now.data)]
        return m


class Small(Component):
    """A counter, two equal products of it, and memories of their results."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__({"step": In(bits), "result": Out(bits)})

    def elaborate(self, platform) -> Module:
        from amaranth.hdl import Signal

        m = Module()
        m.submodules.left = left = Product(self.bits)
        m.submodules.right = right = Product(self.bits)
        m.submodules.words = words = Words(self.bits)
        count = Signal(self.bits, init=3)
        m.d.sync += count.eq(count + self.step + 1)
        m.d.comb += [left.a.eq(count), left.b.eq(count ^ self.step), right.a.eq(left.p)]
        m.d.comb += [right.b.eq(words.read), words.data.eq(left.p), words.at.eq(count)]
        m.d.comb += words.here.eq(right.p)
        m.d.sync += self.result.eq(words.now + right.p)
        return m


def small_text(bits: int = 8) -> str:
    """The Verilog of :class:`Small`, with the name that the core has."""
    setup_yosys()
    return relative_sources(to_verilog(Small(bits), TOP, sources=True))
