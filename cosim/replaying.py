"""A block by itself in the simulator, with what was recorded at its ports: what the two ways of
replaying share, and the one that compares cycle by cycle. ``replay_in_order.py`` is the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from cocotb.triggers import RisingEdge

from .bench import reader, reset
from .recording import Recording
from .traffic import Traffic, counts_with, masked, read_ports, write_ports

#: What a block reads that the recording does not: bits of no meaning.
_UNKNOWN = 0xA5


class Memories:
    """What read ports show: of memories that the block itself writes what it has written, of others
    what the recording shows.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        tracks = traffic.recording.tracks
        self.ports = read_ports(traffic.recording)
        self._bits = {port: tracks[f"{port}__data"].bits for port in self.ports}
        self._own: dict[str, dict[int, int]] = {
            name.removesuffix("_write"): {} for name in write_ports(traffic.recording)
        }
        #: The last read that nothing in the recording answers, if any: port and address.
        self.unknown: tuple[str, int] | None = None

    def read(self, port: str, address: int, places: Iterable[int]) -> int:
        """The data of an address for the instructions in flight, by their places."""
        own = self._own.get(port.rstrip("0123456789"))
        if own is not None:
            return own.get(address, 0)
        data = self._traffic.observed(port, address, places)
        if data is not None:
            return data
        self.unknown = (port, address)
        bits = self._bits[port]
        return int.from_bytes(bytes([_UNKNOWN] * -(-bits // 8)), "little") & ((1 << bits) - 1)

    def write(self, name: str, value: tuple[int, ...], shape: tuple[int, int]) -> None:
        """The block writes: enable, address and data, on a port of this many parts and bits."""
        enable, address, data = value
        own = self._own[name.removesuffix("_write")]
        kept = own.get(address, 0) & ~masked(enable, -1, *shape)
        own[address] = kept | masked(enable, data, *shape)

    def unknown_text(self) -> str:
        """What it has read that the recording does not show, for messages; empty if nothing."""
        if self.unknown is None:
            return ""
        port, address = self.unknown
        return f" (before, it read {port}[{address}], which the recording does not read there)"


class ReplayedBlock:
    """A block, and the recording that it is driven with.

    Parameters
    ----------
    dut : the block: ports of the recording by their flat names, ``clk`` and ``rst``
    recording : Recording

    Attributes
    ----------
    cycles : int
        Cycles so far.
    """

    def __init__(self, dut: Any, recording: Recording) -> None:
        self.dut, self.recording = dut, recording
        tracks = recording.tracks
        self.cycles = 0
        #: Handles of inputs, readers of outputs, and parts and bits of what write ports write.
        self.inputs = {n: getattr(dut, n) for n, t in tracks.items() if t.direction == "input"}
        self.read = {
            n: reader(getattr(dut, n)) for n, t in tracks.items() if t.direction == "output"
        }
        self.clock = RisingEdge(dut.clk)
        self.writes = {
            name: (tracks[f"{name}__en"].bits, tracks[f"{name}__data"].bits)
            for name in write_ports(recording)
        }

    async def reset(self) -> None:
        """Reset the block, with all inputs 0."""
        await reset(self.dut, *self.inputs)


async def replay_timed(block: ReplayedBlock) -> None:
    """Drive what was recorded, and compare every output that counts in every cycle.

    Raises Diverged at the first difference.
    """
    await block.reset()
    for run in block.recording.runs:
        await _Timed(block, Traffic(block.recording, run)).play()


class _Timed:
    """One run of a recording, cycle by cycle."""

    def __init__(self, block: ReplayedBlock, traffic: Traffic) -> None:
        self.block, self.traffic = block, traffic
        recording = block.recording
        self.memories = Memories(traffic)
        #: What the recording shows in this cycle, and what the block has read in the one before.
        self.now = dict.fromkeys(recording.tracks, 0)
        self._addresses: dict[str, int] = {}
        self._answers = {f"{port}__data" for port in self.memories.ports}
        self._changes: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for name, track in recording.tracks.items():
            for time, value in zip(track.times, track.numbers, strict=True):
                self._changes[int(time)].append((name, value))
        # Starts and ends first, which say more than the tokens that come with them.
        names = sorted(block.read, key=lambda name: name not in ("unit__start", "unit__end"))
        self._outputs = [(n, block.read[n], counts_with(n, recording)) for n in names]

    async def play(self) -> None:
        now, block = self.now, self.block
        for sample in range(self.traffic.run.begin, self.traffic.run.end):
            recorded = {port: now[f"{port}__addr"] for port in self.memories.ports}
            self._drive(sample, recorded)
            await block.clock
            block.cycles += 1
            if not now["rst"]:
                self._compare(sample)
            for name, shape in block.writes.items():
                if now[f"{name}__en"]:
                    enable, address, data = (now[f"{name}__{x}"] for x in ("en", "addr", "data"))
                    self.memories.write(name, (enable, address, data), shape)

    def _drive(self, sample: int, recorded: dict[str, int]) -> None:
        """The inputs of a cycle. An address that was not recorded in the cycle before brings what
        the memory holds there.
        """
        now, inputs = self.now, self.block.inputs
        for name, value in self._changes.get(sample, ()):
            now[name] = value
            if name in inputs and name not in self._answers:
                inputs[name].value = value
        for port in self.memories.ports:
            address, data = self._addresses.get(port), now[f"{port}__data"]
            if address is not None and address != recorded[port]:
                data = self.memories.read(port, address, self.traffic.in_flight(sample - 1))
            inputs[f"{port}__data"].value = data

    def _compare(self, sample: int) -> None:
        now = self.now
        for name, read, others in self._outputs:
            got = read()
            if others is None:
                self._addresses[name.removesuffix("__addr")] = got
            elif got != now[name] and all(now[other] for other in others):
                self._check(name, got, sample)

    def _check(self, name: str, got: int, sample: int) -> None:
        """A port shows something else: the parts that are not written do not count."""
        now, stem = self.now, name.removesuffix("__data")
        enable, shape = now.get(f"{stem}__en"), self.block.writes.get(stem)
        if enable is None or shape is None or masked(enable, now[name] ^ got, *shape):
            text = hex(got)
            if name.endswith(("__data", "__payload")):
                text += self.memories.unknown_text()
            raise self.traffic.diverged(name, f"port {name}", hex(now[name]), text, sample)
