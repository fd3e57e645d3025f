"""What the traffic of a recording means: which outputs count in a cycle, what goes through a port
in which order, what memories hold, and which instruction a block is executing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .divergence import Diverged, Divergence
from .recording import Recording, Run

#: Ports of a unit that belong to the instruction at the head of its queue.
_HEAD = ("unit__insn__ready", "unit__start", "unit__pop", "unit__waiting")
#: Outputs that count in cycles only in which others are not zero.
_COUNT_WITH = {"unit__error_index": ("unit__error",), "error_index": ("error",)}


@dataclass(frozen=True)
class Item:
    """What goes through a port, or a group of ports, in one cycle.

    Attributes
    ----------
    sample : int
        When it was recorded.
    value : tuple of int
        One number for each port of the group.
    """

    sample: int
    value: tuple[int, ...]

    def __str__(self) -> str:
        return ", ".join(map(hex, self.value))


def write_ports(recording: Recording) -> list[str]:
    """Names of the ports that write memories: outputs ``<name>__en``, ``__addr``, ``__data``."""
    return [n.removesuffix("__en") for n in recording.tracks if n.endswith("__en")]


def read_ports(recording: Recording) -> list[str]:
    """Names of the ports that read memories: ``<name>__addr`` brings ``<name>__data`` in the next
    cycle.
    """
    tracks = recording.tracks
    return [
        stem
        for stem in (n.removesuffix("__addr") for n in tracks if n.endswith("__addr"))
        if f"{stem}__en" not in tracks
    ]


def counts_with(name: str, recording: Recording) -> tuple[str, ...] | None:
    """Ports that are all not zero in the cycles in which an output counts; None: it never does, as
    the address of a read port, which stands for itself by the data that it brings.
    """
    stem, _, part = name.rpartition("__")
    if part in ("addr", "data") and stem:
        return (f"{stem}__en",) if f"{stem}__en" in recording.tracks else None
    if part in ("payload", "ready"):
        return (f"{stem}__valid",)
    if name == "receiving":  # the instruction of a beat, for errors of the bus
        return ("beat_valid",) if recording.block == "fetch" else ("beat__valid", "beat__ready")
    return _COUNT_WITH.get(name, ())


def masked(enable: int, data: int, parts: int, bits: int) -> int:
    """The parts of an entry that a write port enables; the others are 0."""
    width = bits // parts
    part = (1 << width) - 1
    return data & sum(part << width * p for p in range(parts) if enable >> p & 1)


class Traffic:
    """One run of a recording.

    Parameters
    ----------
    recording : Recording
    run : Run
        One of its runs.
    """

    def __init__(self, recording: Recording, run: Run) -> None:
        self.recording, self.run = recording, run
        #: Samples of the instructions' starts and ends, and their indices in the program.
        self.starts = self.where("unit__start") if "unit__start" in recording.tracks else []
        self.ends = self.where("unit__end") if "unit__end" in recording.tracks else []
        shift = 8 * recording.params.insn_bytes
        self.indices = [p >> shift for p in self.values("unit__insn__payload", self.starts)]

    def where(self, *ports: str) -> list[int]:
        """Samples of the run in which no port of these is zero."""
        tracks, run = self.recording.tracks, self.run
        live = np.ones(run.end - run.begin, bool)
        for port in ports:
            live &= tracks[port].nonzero(self.recording.samples)[run.begin : run.end]
        live &= ~tracks["rst"].nonzero(self.recording.samples)[run.begin : run.end]
        return [int(sample) + run.begin for sample in np.flatnonzero(live)]

    def values(self, port: str, samples: list[int]) -> list[int]:
        """What a port shows in samples."""
        if port not in self.recording.tracks:
            return []
        return self.recording.tracks[port].at(np.array(samples, np.int64))

    def items(self, ports: tuple[str, ...], *when: str) -> list[Item]:
        """What the ports show in the cycles in which no port of ``when`` is zero."""
        samples = self.where(*when)
        columns = [self.values(port, samples) for port in ports]
        return [Item(s, v) for s, v in zip(samples, zip(*columns, strict=True), strict=True)]

    def stream(self, name: str) -> list[Item]:
        """The transfers of a stream."""
        return self.items((f"{name}__payload",), f"{name}__valid", f"{name}__ready")

    def writes(self, name: str) -> list[Item]:
        """What a port writes: enable, address, and data with what is not enabled as 0."""
        bits, parts = (self.recording.tracks[f"{name}__{x}"].bits for x in ("data", "en"))
        found = self.items(tuple(f"{name}__{x}" for x in ("en", "addr", "data")), f"{name}__en")
        return [
            Item(i.sample, (*i.value[:2], masked(i.value[0], i.value[2], parts, bits)))
            for i in found
        ]

    # ---- instructions ----

    def in_flight(self, sample: int) -> range:
        """Places, in the order of the unit's instructions, of those that have started and not
        ended in a sample.
        """
        return range(bisect_left(self.ends, sample), bisect_right(self.starts, sample))

    def instruction(self, port: str, sample: int) -> int | None:
        """Index of the instruction that a difference at a port belongs to: the oldest that has not
        ended, else the one before; of ports that take instructions the one at the queue's head.
        """
        if self.recording.block == "fetch":
            (index,) = self.values("index", [sample])
            return index if index < len(self.run.instructions) else None
        if port in _HEAD and self.values("unit__insn__valid", [sample])[0]:
            return self.values("unit__insn__payload", [sample])[0] >> (
                8 * self.recording.params.insn_bytes
            )
        flying = self.in_flight(sample)
        place = flying[0] if flying else flying.stop - 1
        return self.indices[place] if place >= 0 else None

    def diverged(
        self, port: str, what: str, expected: str, got: str, sample: int, cycle: int | None = None
    ) -> Diverged:
        """The exception for a difference at a port; ``cycle`` is that of the sample by default."""
        index = self.instruction(port, sample)
        named = {}
        if index is not None:
            insn = self.run.instructions[index]
            named = {"instruction": index, **vars(insn)}
        when = sample - self.run.zero if cycle is None else cycle
        return Diverged(Divergence(what, expected, got, when, **named))

    # ---- memories that others write ----

    def observed(self, port: str, address: int, places: Iterable[int]) -> int | None:
        """The data that a read port shows for an address while one of some instructions, by their
        places, is executed; None if it shows none. Tokens see to it that nobody writes meanwhile
        what the instruction reads.
        """
        samples, data = self._observations[port].get(address, ([], []))
        for place in places:
            end = self.ends[place] if place < len(self.ends) else self.run.end
            at = bisect_left(samples, self.starts[place])
            if at < len(samples) and samples[at] <= end:
                return data[at]
        return None

    @cached_property
    def _observations(self) -> dict[str, dict[int, tuple[list[int], list[int]]]]:
        """Of every read port and address: samples, and the data that came after them."""
        found = {}
        for port in read_ports(self.recording):
            seen: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
            samples = range(self.run.begin, self.run.end - 1)
            addresses = self.values(f"{port}__addr", list(samples))
            data = self.values(f"{port}__data", [s + 1 for s in samples])
            for sample, address, value in zip(samples, addresses, data, strict=True):
                seen[address][0].append(sample)
                seen[address][1].append(value)
            found[port] = dict(seen)
        return found
