"""A unit with an instruction queue by itself: feeding it, what it tells the core, and the memory
behind its read port.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from ..hw.core.layouts import INDEX_BITS
from ..isa.insn import Insn
from ..isa.params import HwParams
from .axi import unpack_burst
from .streams import StreamSink, StreamSource
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


class ReadMemory:
    """Answers the bursts that a request stream transfers.

    Parameters
    ----------
    request : StreamSink
        The stream of bursts, each an address and a number of beats.
    dram : uint8 array
        The memory.
    params : HwParams
        The configuration, whose rules every burst must keep.
    """

    def __init__(self, request: StreamSink, dram: np.ndarray, params: HwParams) -> None:
        self.request, self.dram, self.params = request, dram, params

    async def beats(self) -> AsyncIterator[int]:
        """Beats in order, each as soon as its burst has been requested; without end."""
        answered, size = 0, self.params.bus_bytes
        while True:
            while answered == len(self.request.monitor.transfers):
                await RisingEdge(self.request.clk)
            payload = self.request.monitor.payloads[answered]
            address, beats = unpack_burst(payload, self.params)
            for start in range(address, address + beats * size, size):
                yield int.from_bytes(self.dram[start : start + size].tobytes(), "little")
            answered += 1
