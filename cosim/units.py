"""A unit with an instruction queue by itself: feeding it, and what it tells the core."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from ..hw.core.layouts import INDEX_BITS
from ..isa.insn import Insn
from ..isa.params import HwParams
from .streams import StreamSource
from .words import queued_word

ALL_TOKENS = 15


class UnitDriver:
    """Feeds a unit its instructions, with gaps and with tokens missing at random, and asserts what
    it tells the core: pop masks at starts, push masks at ends, neither elsewhere, and no error.

    Parameters
    ----------
    dut : a unit, with the ports of ``hw/core/unit.py`` under the prefix ``unit__``
    params : HwParams
        Its configuration.
    rng : random.Random
        Where gaps and missing tokens come from.
    insns : sequence of Insn
        Instructions of this unit.
    """

    #: Ports that must be set before the clock starts.
    INPUTS = ("unit__insn__valid", "unit__insn__payload", "unit__available")

    def __init__(
        self, dut: Any, params: HwParams, rng: random.Random, insns: Sequence[Insn]
    ) -> None:
        self.dut, self.rng, self.insns = dut, rng, insns
        self.payloads = [
            queued_word(insn, rng.randrange(1 << INDEX_BITS), params) for insn in insns
        ]
        self.starts = self.ends = 0

    def start(self) -> None:
        """Begin; after reset."""
        self.source = StreamSource(self.dut, "unit__insn", self.rng)
        for task in (self.source.send(self.payloads), self._tokens(), self._watch()):
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
