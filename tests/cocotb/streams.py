"""Both ends of a stream for cocotb, with random stalls; every stream is watched for its rules."""

from __future__ import annotations

import random
from collections.abc import Iterable

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from ..hw.core.monitor import StreamMonitor


class Port:
    """A stream of the device under test: its three signals and the monitor that watches them.

    Parameters
    ----------
    dut : the device;  name : prefix of the stream's ports
    rng : where stalls come from
    """

    def __init__(self, dut, name: str, rng: random.Random) -> None:
        self.clk, self.rng = dut.clk, rng
        self.valid, self.ready, self.payload = (
            getattr(dut, f"{name}__{part}") for part in ("valid", "ready", "payload")
        )
        self.monitor = StreamMonitor(name)
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        while True:
            await RisingEdge(self.clk)
            self.monitor.sample(*(int(s.value) for s in (self.valid, self.ready, self.payload)))

    async def send(self, payloads: Iterable[int], gap: float = 0.4) -> None:
        """Offer payloads, each after a gap that goes on with this probability a cycle."""
        for payload in payloads:
            while self.rng.random() < gap:
                await RisingEdge(self.clk)
            self.payload.value = payload
            self.valid.value = 1
            await RisingEdge(self.clk)
            while not self.ready.value:
                await RisingEdge(self.clk)
            self.valid.value = 0

    async def accept(self, odds_a_cycle: tuple[float, ...] = (0.2, 0.5, 0.8, 1.0)) -> None:
        """Be ready at random, forever; the odds change every now and then."""
        while True:
            odds = self.rng.choice(odds_a_cycle)
            for _ in range(self.rng.randrange(1, 60)):
                self.ready.value = self.rng.random() < odds
                await RisingEdge(self.clk)


async def reset(dut, *inputs: str) -> None:
    """Start the clock, hold reset for two cycles, and set the inputs to 0."""
    for name in ("rst", *inputs):
        getattr(dut, name).value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    for _ in range(2):
        await RisingEdge(dut.clk)
    dut.rst.value = 0


async def until(dut, condition, limit: int, what: str) -> None:
    """Wait for a condition; AssertionError after ``limit`` cycles."""
    for _ in range(limit):
        await RisingEdge(dut.clk)
        if condition():
            return
    raise AssertionError(f"{what}: not within {limit} cycles")
