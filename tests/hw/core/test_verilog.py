"""Verilog of designs: what is left out of it, and what must stay."""

from __future__ import annotations

import pytest
from amaranth.hdl import Module, unsigned
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out
from vdla.hw.core.verilog import to_verilog
from vdla.sim.rtl.toolchain import setup_yosys


class Decoder(Component):
    """Assigns single bits, some of them zero, and has memories with and without contents."""

    def __init__(self) -> None:
        super().__init__({"code": In(1), "bits": Out(3), "words": Out(16)})

    def elaborate(self, _platform) -> Module:
        m = Module()
        with m.Switch(self.code):
            for code in range(2):
                with m.Case(code):
                    m.d.comb += [self.bits[0].eq(code), self.bits[2].eq(1 - code)]
        for place, init in enumerate(([], [0, 7, 0])):
            memory = Memory(shape=unsigned(8), depth=4, init=init)
            m.submodules[f"memory_{place}"] = memory
            read, write = memory.read_port(domain="comb"), memory.write_port()
            m.d.comb += [read.addr.eq(self.code), write.addr.eq(self.code), write.en.eq(self.code)]
            m.d.comb += self.words.word_select(place, 8).eq(read.data)
        return m


@pytest.mark.slow
def test_only_zeros_of_memories_are_left_out() -> None:
    setup_yosys()
    text = to_verilog(Decoder(), "decoder")
    lines = [line.strip() for line in text.splitlines()]
    for bit in (0, 2):
        assert {f"bits[{bit}] = 1'h0;", f"bits[{bit}] = 1'h1;"} <= set(lines)
    assert lines.count("initial begin") == 1
    begin = lines.index("initial begin")
    assert lines[begin + 1 : begin + 3] == ["memory_1[1] = 8'h07;", "end"]
