"""Streams (valid, ready, payload): both ends and the rules, for cocotb.

A stream moves a payload in every cycle in which valid and ready are both 1. Once valid is 1 it
stays so, with the same payload, until the transfer. :class:`StreamMonitor` asserts this; every
source and sink has one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge


class StreamMonitor:
    """Asserts the rules of one stream, and keeps what was transferred.

    It knows no simulator: who has the signals calls :meth:`sample` once in every cycle. For cocotb
    :meth:`watch` does so; in Amaranth's simulator the bench does.

    Parameters
    ----------
    name : str
        The stream, for messages.

    Attributes
    ----------
    cycle : int
        Cycles sampled so far.
    transfers : list of (int, int)
        Cycle and payload of every transfer.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.cycle = 0
        self.transfers: list[tuple[int, int]] = []
        self._pending: int | None = None

    def sample(self, valid: int, ready: int, payload: int) -> None:
        """Signals of the stream just before a clock edge.

        Raises AssertionError with the cycle when valid falls, or the payload changes, before the
        transfer.
        """
        if self._pending is not None:
            assert valid, f"{self.name}: valid fell without a transfer in cycle {self.cycle}"
            assert payload == self._pending, (
                f"{self.name}: payload changed from {self._pending:#x} to {payload:#x} while it "
                f"waited, cycle {self.cycle}"
            )
        self._pending = payload if valid and not ready else None
        if valid and ready:
            self.transfers.append((self.cycle, payload))
        self.cycle += 1

    @property
    def payloads(self) -> list[int]:
        """What was transferred, in order."""
        return [payload for _, payload in self.transfers]

    @classmethod
    def watch(cls, dut: Any, name: str) -> StreamMonitor:
        """A monitor of the stream whose ports are ``<name>__valid``, ``<name>__ready`` and
        ``<name>__payload``, sampled at every rising edge of ``dut.clk`` from now on.
        """
        monitor = cls(name)
        signals = stream_signals(dut, name)

        async def watched() -> None:
            while True:
                await RisingEdge(dut.clk)
                monitor.sample(*(int(signal.value) for signal in signals))

        cocotb.start_soon(watched())
        return monitor


def stream_signals(dut: Any, name: str) -> tuple[Any, Any, Any]:
    """Handles of valid, ready and payload of a stream, named as Amaranth names the ports."""
    valid, ready, payload = (getattr(dut, f"{name}__{part}") for part in _PARTS)
    return valid, ready, payload


_PARTS = ("valid", "ready", "payload")


class _StreamEnd:
    """A stream of the device under test and the monitor that watches it.

    Parameters
    ----------
    dut : the device, whose clock is ``dut.clk``
    name : str
        Prefix of the stream's ports.
    rng : random.Random
        Where stalls come from.
    """

    def __init__(self, dut: Any, name: str, rng: random.Random) -> None:
        self.clk, self.rng = dut.clk, rng
        self.valid, self.ready, self.payload = stream_signals(dut, name)
        self.monitor = StreamMonitor.watch(dut, name)


class StreamSource(_StreamEnd):
    """Drives a stream into the device."""

    async def send(self, payloads: Iterable[int], gap: float = 0.4) -> None:
        """Offer payloads, each after a gap that goes on with this probability a cycle; returns
        after the last transfer.
        """
        for payload in payloads:
            while self.rng.random() < gap:
                await RisingEdge(self.clk)
            self.payload.value = payload
            self.valid.value = 1
            await RisingEdge(self.clk)
            while not self.ready.value:
                await RisingEdge(self.clk)
            self.valid.value = 0


class StreamSink(_StreamEnd):
    """Takes a stream that the device drives; ``monitor.payloads`` is what came."""

    async def accept(self, odds_a_cycle: tuple[float, ...] = (0.2, 0.5, 0.8, 1.0)) -> None:
        """Be ready at random, forever; the odds of a cycle change every now and then."""
        while True:
            odds = self.rng.choice(odds_a_cycle)
            for _ in range(self.rng.randrange(1, 60)):
                self.ready.value = self.rng.random() < odds
                await RisingEdge(self.clk)
