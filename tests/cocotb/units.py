"""What benches of units with an instruction queue share."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import RisingEdge
from vdla.hw.core.layouts import INDEX_BITS
from vdla.isa.insn import Insn
from vdla.isa.params import HwParams

from ..hw.core.bench import raw
from .streams import Port

ALL_TOKENS = 15


class UnitDriver:
    """Feeds a unit its instructions, with gaps and with tokens missing at random, and checks what
    it tells the core: pop masks at starts, push masks at ends, neither elsewhere, and no error.
    """

    INPUTS = ("unit__insn__valid", "unit__insn__payload", "unit__available")

    def __init__(self, dut, params: HwParams, rng: random.Random, insns: list[Insn]) -> None:
        self.dut, self.rng, self.insns = dut, rng, insns
        index = [rng.randrange(1 << INDEX_BITS) for _ in insns]
        self.payloads = [
            raw(insn, params) | k << (8 * params.insn_bytes)
            for insn, k in zip(insns, index, strict=True)
        ]
        self.starts = self.ends = 0

    def start(self) -> None:
        """Begin; after reset."""
        port = Port(self.dut, "unit__insn", self.rng)
        for task in (port.send(self.payloads), self._tokens(), self._watch()):
            cocotb.start_soon(task)

    def finished(self) -> bool:
        """Whether every instruction has ended."""
        return self.ends == len(self.insns)

    async def _tokens(self) -> None:
        while True:
            tokens = self.rng.choice((ALL_TOKENS, self.rng.randrange(ALL_TOKENS + 1)))
            self.dut.unit__available.value = tokens
            await RisingEdge(self.dut.clk)

    async def _watch(self) -> None:
        def read(name: str) -> int:
            return int(getattr(self.dut, f"unit__{name}").value)

        while True:
            await RisingEdge(self.dut.clk)
            assert not read("error"), f"status {read('error')} after {self.starts} starts"
            pop = push = 0
            if read("start"):
                pop = int(self.insns[self.starts].pop)
                self.starts += 1
            if read("end"):
                push = int(self.insns[self.ends].push)
                self.ends += 1
            assert read("pop") == pop
            assert pop & ~read("available") == 0, "started without its tokens"
            assert read("push") == push
            assert self.ends <= self.starts
