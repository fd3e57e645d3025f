"""A recording on a block by itself, cycle by cycle."""

from __future__ import annotations

from collections import defaultdict

from .replaying import Memories, ReplayedBlock
from .traffic import Traffic, counts_with, masked


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
