"""The core's AXI4 port: its rules, and pauses of the memory behind it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from ..hw.core.dma import PAGE_BYTES
from ..isa.encoding import DRAM_ADDR_BITS
from ..isa.errors import VdlaError
from ..isa.params import HwParams
from .bench import reader
from .streams import StreamMonitor

#: What a master must hold still while it waits, per channel, from the lowest bit of a monitor's
#: payload on.
HELD = {
    "ar": ("addr", "len", "size", "burst", "id"),
    "aw": ("addr", "len", "size", "burst", "id"),
    "w": ("data", "strb", "last"),
}
#: AXI4's code of bursts whose addresses count up.
INCR = 1
#: Odds of a cycle in which a channel pauses; one of them holds for a while. Off: there are none.
PAUSES = {"off": (), "light": (0.0, 0.0, 0.2, 0.5), "heavy": (0.0, 0.2, 0.6, 0.9)}


def check_burst(address: int, beats: int, params: HwParams) -> None:
    """Raise AssertionError unless a burst keeps the rules of AXI4 and of the configuration."""
    assert address % params.bus_bytes == 0, f"burst at {address:#x} is not aligned"
    assert 1 <= beats <= params.max_burst_beats, f"burst of {beats} beats"
    last = address + beats * params.bus_bytes - 1
    assert address // PAGE_BYTES == last // PAGE_BYTES, f"burst at {address:#x} crosses a page"


def unpack_burst(payload: int, params: HwParams) -> tuple[int, int]:
    """Byte address and beats of a burst as the units' streams carry it, checked by
    :func:`check_burst`.
    """
    address, beats = payload & ((1 << DRAM_ADDR_BITS) - 1), payload >> DRAM_ADDR_BITS
    check_burst(address, beats, params)
    return address, beats


@dataclass(frozen=True)
class Transfer:
    """What the core has transferred on a channel in one cycle.

    Attributes
    ----------
    channel : str
        ``ar``, ``aw`` or ``w``.
    address : int
        Byte address: of the burst, or of this beat of data.
    beats, id : int
        Of a burst.
    data, strobes, last : int
        Of a beat.
    """

    channel: str
    address: int
    beats: int = 0
    id: int = 0
    data: int = 0
    strobes: int = 0
    last: int = 0


def _port(dut: Any, name: str, constant: int | None) -> tuple[Callable[[], int], int]:
    """What reads a port, and its bits; for a port that is missing, the value that it would have."""
    if constant is not None and not hasattr(dut, name):
        return lambda: constant, max(constant.bit_length(), 1)
    port = getattr(dut, name)
    return reader(port), len(port)


class AxiMonitor:
    """Asserts the rules of the three channels that the core drives: payloads stable while they
    wait, legal bursts, as many beats of data as were announced and the last one marked.

    Parameters
    ----------
    dut : the core, with ports ``axi_araddr``, ``axi_arvalid``, ...
    params : HwParams
        Its configuration.
    prefix : str
        What the names of the ports begin with. Constants (size, kind and identifier of a burst) may
        be missing.
    clk : the clock; ``dut.clk`` by default

    Attributes
    ----------
    channels : dict of str to StreamMonitor
        ``ar``, ``aw`` and ``w``.
    """

    def __init__(self, dut: Any, params: HwParams, prefix: str = "axi_", clk: Any = None) -> None:
        self.params, self._clk = params, dut.clk if clk is None else clk
        self.channels = {channel: StreamMonitor(f"axi {channel}") for channel in HELD}
        constants = {"size": params.bus_bytes.bit_length() - 1, "burst": INCR, "id": 0}
        self._ports = []
        for channel, fields in HELD.items():
            (valid, _), (ready, _), *held = (
                _port(dut, f"{prefix}{channel}{name}", constants.get(name))
                for name in ("valid", "ready", *fields)
            )
            self._ports.append((channel, valid, ready, held))
        #: Address and beats of the bursts whose data are still to come, and beats of the first.
        self._announced: deque[tuple[int, int]] = deque()
        self._beat = 0

    def start(self) -> None:
        """Sample at every rising edge from now on."""
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        while True:
            await RisingEdge(self._clk)
            self.sample()

    def sample(self) -> list[Transfer]:
        """Look at the channels, just before a clock edge; returns what was transferred."""
        found = []
        for channel, valid, ready, fields in self._ports:
            monitor = self.channels[channel]
            if not valid():
                monitor.sample(0, 0, 0)
                continue
            taken, values, payload, place = ready(), [], 0, 0
            for field, width in fields:
                value = field()
                values.append(value)
                payload |= value << place
                place += width
            monitor.sample(1, taken, payload)
            if channel != "w":
                check_burst(values[0], values[1] + 1, self.params)
            if taken:
                found.append(self._beat_of(*values) if channel == "w" else
                             self._burst_of(channel, *values))  # fmt: skip
        return found

    def _burst_of(
        self, channel: str, address: int, length: int, size: int, kind: int, its: int
    ) -> Transfer:
        width = self.params.bus_bytes.bit_length() - 1
        assert size == width, f"axi {channel}: size {size}, expected the bus width's {width}"
        assert kind == INCR, f"axi {channel}: burst of kind {kind}, expected {INCR} (INCR)"
        if channel == "aw":
            self._announced.append((address, length + 1))
        return Transfer(channel, address, length + 1, its)

    def _beat_of(self, data: int, strobes: int, last: int) -> Transfer:
        """Data belong to the bursts in order."""
        assert self._announced, "axi w: data before their address"
        start, beats = self._announced[0]
        address = start + self._beat * self.params.bus_bytes
        self._beat += 1
        ends = self._beat == beats
        assert last == ends, f"axi w: last is {last} in beat {self._beat} of {beats}"
        if ends:
            self._announced.popleft()
            self._beat = 0
        return Transfer("w", address, data=data, strobes=strobes, last=last)


def pauses(rng: random.Random, level: str) -> Iterator[bool]:
    """Whether to pause in each cycle, without end: now seldom, now often.

    Parameters
    ----------
    rng : random.Random
        Where they come from.
    level : str
        A name in ``PAUSES``.
    """
    odds_a_cycle = PAUSES[level] or (0.0,)
    while True:
        odds = rng.choice(odds_a_cycle)
        for _ in range(rng.randrange(1, 100)):
            yield rng.random() < odds


def pause_channels(interfaces: Any, level: str, seed: int) -> int:
    """Let every channel of interfaces of cocotbext-axi pause at random.

    Parameters
    ----------
    interfaces : iterable
        ``read_if`` and ``write_if`` of an ``AxiRam`` or of an ``AxiLiteMaster``.
    level : str
        ``off``, ``light`` or ``heavy``.
    seed : int
        Of the pauses.

    Returns
    -------
    int
        How many channels there are.
    """
    if level not in PAUSES:
        raise VdlaError(f"pauses: expected one of {', '.join(PAUSES)}, got {level!r}")
    names = ("ar_channel", "r_channel", "aw_channel", "w_channel", "b_channel")
    found = [getattr(i, name) for i in interfaces for name in names if hasattr(i, name)]
    if level != "off":
        sources = [pauses(random.Random(10 * seed + n), level) for n in range(len(found))]
        cocotb.start_soon(_pause(found, sources))
    return len(found)


async def _pause(channels: list[Any], sources: list[Iterator[bool]]) -> None:
    """Let channels pause as their sources say; one task for all, because tasks cost most of the
    time.
    """
    clock = RisingEdge(channels[0].clock)
    while True:
        for channel, source in zip(channels, sources, strict=True):
            value = next(source)
            if channel.pause is not value:
                channel.pause = value
        await clock
