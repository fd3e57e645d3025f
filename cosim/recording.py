"""The traffic at the ports of one block of a core, recorded while programs ran: a file."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ..isa.asm import format_insn
from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..isa.program import Program

FORMAT, VERSION = "vdla recording", 1


@dataclass(frozen=True, eq=False)
class Track:
    """What one port shows.

    Attributes
    ----------
    direction : str
        ``input`` or ``output`` of the block.
    bits : int
        Width.
    times : int64 [n]
        Samples from which on the port has another value, in order; the first is 0.
    values : uint8 [n, bytes]
        The values, little-endian.
    """

    direction: str
    bits: int
    times: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, direction: str, bits: int, changes: Sequence[tuple[int, int]]) -> Track:
        """A track of samples and values."""
        size = -(-bits // 8)
        raw = b"".join(value.to_bytes(size, "little") for _, value in changes)
        values = np.frombuffer(raw, np.uint8).reshape(-1, size)
        return cls(direction, bits, np.array([time for time, _ in changes], np.int64), values)

    @cached_property
    def numbers(self) -> list[int]:
        """The values as integers."""
        return [int.from_bytes(value.tobytes(), "little") for value in self.values]

    def at(self, samples: np.ndarray) -> list[int]:
        """The values in some samples."""
        places = np.searchsorted(self.times, samples, side="right") - 1
        return [self.numbers[place] for place in places]

    def nonzero(self, samples: int) -> np.ndarray:
        """Whether the port is not zero, bool [samples]."""
        lengths = np.diff(np.append(self.times, samples))
        return np.repeat(self.values.any(axis=1), lengths)


@dataclass(frozen=True)
class Instruction:
    """What is known of an instruction of a recorded program."""

    unit: str
    text: str
    layer: str = ""
    stage: str = ""
    tensor: str = ""

    @classmethod
    def all_of(cls, program: Program) -> list[Instruction]:
        """The instructions of a program, in order."""
        notes = program.notes or [None] * len(program.insns)
        return [
            cls(insn.unit.name.lower(), format_insn(insn), **(asdict(note) if note else {}))
            for insn, note in zip(program.insns, notes, strict=True)
        ]


@dataclass(frozen=True)
class Run:
    """A program in a recording.

    Attributes
    ----------
    begin, end : int
        Its first sample, and the one behind its last.
    zero : int
        The sample of the core's cycle 0.
    instructions : list of Instruction
        Those of the program, in its order.
    """

    begin: int
    end: int
    zero: int
    instructions: list[Instruction] = field(repr=False)

    def shifted(self, samples: int) -> Run:
        """The same run later."""
        return replace(
            self, begin=self.begin + samples, end=self.end + samples, zero=self.zero + samples
        )


@dataclass(frozen=True, eq=False)
class Recording:
    """The traffic at every port of a block. A sample is a cycle; each run begins with a reset.

    Attributes
    ----------
    params : HwParams
        The core's configuration.
    block : str
        The block's name.
    tracks : dict of str to Track
        What each port shows, ``rst`` too; names are flat.
    runs : list of Run
        One for each program, one after the other.
    source : str
        What was run, for people.
    """

    params: HwParams
    block: str
    tracks: dict[str, Track]
    runs: list[Run]
    source: str = ""

    @property
    def samples(self) -> int:
        """Cycles recorded."""
        return self.runs[-1].end

    @classmethod
    def join(cls, recordings: Sequence[Recording]) -> Recording:
        """Recordings of one block, one after the other."""
        first, *others = recordings
        tracks, runs, end = dict(first.tracks), list(first.runs), first.samples
        for other in others:
            for name, track in other.tracks.items():
                mine = tracks[name]
                times = np.concatenate([mine.times, track.times + end])
                values = np.concatenate([mine.values, track.values])
                tracks[name] = replace(mine, times=times, values=values)
            runs += [run.shifted(end) for run in other.runs]
            end += other.samples
        return replace(first, tracks=tracks, runs=runs)

    def save(self, path: str | Path) -> None:
        """Write a file that :meth:`load` reads: NumPy's .npz, compressed."""
        meta = {
            "format": FORMAT, "version": VERSION, "block": self.block, "source": self.source,
            "config": self.params.to_dict(), "config_hash": self.params.hash,
            "ports": {name: [t.direction, t.bits] for name, t in self.tracks.items()},
            "runs": [asdict(run) for run in self.runs],
        }  # fmt: skip
        text = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        arrays = {f"{name}.times": t.times for name, t in self.tracks.items()}
        arrays |= {f"{name}.values": t.values for name, t in self.tracks.items()}
        with Path(path).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, meta=text, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a file.

        Raises VdlaError where it is missing, is no recording or is not whole.
        """
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays: dict[str, np.ndarray] = dict(file)
            meta = json.loads(arrays["meta"].tobytes())
            made = meta["format"], meta["version"]
            tracks = {
                name: Track(way, bits, arrays[f"{name}.times"], arrays[f"{name}.values"])
                for name, (way, bits) in meta["ports"].items()
            }
        except FileNotFoundError:
            raise VdlaError(f"{path}: expected a recording, there is no such file") from None
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            said = str(error) or type(error).__name__
            raise VdlaError(
                f"{path}: expected a whole file of vdla cosim --record, got another or a damaged "
                f"one ({said.splitlines()[0]})"
            ) from None
        if made != (FORMAT, VERSION):
            raise VdlaError(f"{path}: expected {FORMAT} {VERSION}, got {made[0]} {made[1]}")
        params = HwParams.from_dict(meta["config"], str(path))
        if params.hash != meta["config_hash"]:
            raise VdlaError(
                f"{path}: expected configuration {params.hash}, got {meta['config_hash']}: "
                f"the recording is of another version of VDLA; record it again"
            )
        runs = [
            Run(**(run | {"instructions": [Instruction(**i) for i in run["instructions"]]}))
            for run in meta["runs"]
        ]
        return cls(params, meta["block"], tracks, runs, meta["source"])

    def changes(self, direction: str) -> Iterator[tuple[int, str, int]]:
        """Every change of the ports of a direction: sample, port and value, in order of time."""
        found = [
            (int(time), name, value)
            for name, track in self.tracks.items()
            if track.direction == direction
            for time, value in zip(track.times, track.numbers, strict=True)
        ]
        return iter(sorted(found))
