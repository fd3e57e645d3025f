"""Records: what was measured, one JSON object a line.

A record says what it is about (``target``, ``machine``, ``template``, ``workload``), which
``knobs`` were tried, and what they cost: ``cost`` is in cycles or, on a processor, in milliseconds,
and null for a trial that failed, whose ``error`` says why. The other fields say where it comes
from.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...isa.errors import VdlaError
from ...isa.text_files import read_text
from ...runtime.files import whole_file
from .aliases import with_new_names
from .space import Knobs

#: The environment variable that names a file of records.
RECORDS_VARIABLE = "VDLA_RECORDS"
#: Characters of a line that is no record, in messages.
SHOWN_CHARACTERS = 40


class Key(NamedTuple):
    """What a record is found by. ``machine`` has the hash of the accelerator's configuration and
    its memory, or the processor; ``workload`` is the key of a workload.
    """

    target: str
    machine: str
    template: str
    workload: str


@dataclass(frozen=True)
class Record:
    """One trial.

    Attributes
    ----------
    cost : cycles, or milliseconds on a processor; None if the trial failed
    error : why it failed
    tuner, seed : the explorer that proposed it
    who, when, versions : user and host, time (ISO 8601, UTC), versions of VDLA and Python
    seconds : how long the trial took
    preferred : chosen over cheaper ones, because a whole model runs faster with it
    """

    key: Key
    knobs: Knobs
    cost: float | None
    error: str = ""
    tuner: str = ""
    seed: int | None = None
    who: str = ""
    when: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    preferred: bool = False

    @property
    def rank(self) -> tuple[bool, float]:
        """The better of two measured records has the lesser rank."""
        assert self.cost is not None
        return not self.preferred, 0.0 if self.preferred else self.cost

    def line(self) -> str:
        """The record as a line of a file, without fields that say nothing."""
        fields = {name: value for name, value in asdict(self).items() if name != "key"}
        said = {
            n: v for n, v in fields.items() if n in ("knobs", "cost") or v not in ("", {}, None)
        }
        if not self.preferred:
            del said["preferred"]
        return json.dumps(self.key._asdict() | said, separators=(",", ":"))

    @staticmethod
    def read(line: str) -> Record:
        """The record of a line; ValueError, KeyError or TypeError if it is none."""
        found: dict[str, Any] = json.loads(line)
        key = Key(*(_text(found.pop(name), name) for name in Key._fields))
        cost = found.pop("cost")
        known = {n: v for n, v in found.items() if n in Record.__dataclass_fields__}
        known["knobs"] = with_new_names(known["knobs"])
        return Record(key, cost=None if cost is None else float(cost), **known)


def _what_is_wrong(line: str, error: Exception) -> str:
    """Why a line is no record, in a few words."""
    match error:
        case KeyError():
            return f"it has no {error}"
        case json.JSONDecodeError():
            shown = line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "..."
            return f"{shown!r} is not JSON"
        case TypeError() | AttributeError() if not line.lstrip().startswith("{"):
            return "it is not a JSON object"
    return str(error)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}")
    return value


class Records:
    """Trials, and those of each key that were measured, the best first."""

    def __init__(self, trials: Iterable[Record] = ()):
        self.trials: list[Record] = []
        self._ranked: dict[Key, list[Record]] = {}
        for trial in trials:
            self.add(trial)

    def add(self, record: Record) -> None:
        """Add a trial. A preferred one is better than others, of several the latest; then the
        cheapest one, of equals the earliest.
        """
        self.trials.append(record)
        if record.cost is None:
            return
        ranked = self._ranked.setdefault(record.key, [])
        behind = bisect_right(ranked, record.rank, key=lambda other: other.rank)
        ranked.insert(0 if record.preferred else behind, record)

    @staticmethod
    def load(path: str | Path) -> Records:
        """Read a file of records.

        Raises
        ------
        VdlaError
            For a line that is not a record, naming it: the file is truncated, or is another one.
        """
        found = Records()
        text = read_text(path)
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                found.add(Record.read(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                truncated = number == text.count("\n") + 1
                what = "the file is truncated; delete its last line"
                what = what if truncated else _what_is_wrong(line, error)
                raise VdlaError(f"{path}, line {number}: expected a record ({what})") from None
        return found

    @staticmethod
    def find_file(path: str | Path | None) -> Records | None:
        """The records of a file, by default the one that the environment variable ``VDLA_RECORDS``
        names; None without either. Raises VdlaError as :meth:`load`.
        """
        path = path or os.environ.get(RECORDS_VARIABLE) or None  # empty is as not set
        return None if path is None else Records.load(path)

    def find(self, target: str, machine: str, template: str, workload: str) -> list[Knobs]:
        """The knobs that were measured for the key of a workload, the best first."""
        ranked = self._ranked.get(Key(target, machine, template, workload), ())
        return [record.knobs for record in ranked]

    def cost(self, target: str, machine: str, template: str, workload: str) -> float:
        """The cost of the best knobs; infinite without a record."""
        ranked = self._ranked.get(Key(target, machine, template, workload))
        return math.inf if ranked is None or ranked[0].cost is None else ranked[0].cost

    def best(self) -> list[Record]:
        """The best trial of each key, in the order in which keys were first seen."""
        order = dict.fromkeys(trial.key for trial in self.trials)
        return [self._ranked[key][0] for key in order if key in self._ranked]

    def of(self, key: Key) -> list[Record]:
        """All trials of a key."""
        return [trial for trial in self.trials if trial.key == key]

    def where(self, **wanted: str | None) -> Records:
        """The trials whose key has these values; a field that is None may have any."""
        asked = {name: value for name, value in wanted.items() if value is not None}
        return Records(
            trial for trial in self.trials
            if all(getattr(trial.key, name) == value for name, value in asked.items())
        )  # fmt: skip

    def machines(self, target: str) -> set[str]:
        """The machines of a target that there are records of."""
        return {trial.key.machine for trial in self.trials if trial.key.target == target}


def append(path: str | Path, records: Sequence[Record]) -> None:
    """Add records to the end of a file, or make it. Several processes may append to one file: the
    records of a call lie side by side, and a file never ends inside of a line.

    Raises
    ------
    VdlaError
        For a file that ends inside of a line.
    """
    data = "".join(record.line() + "\n" for record in records).encode()
    with Path(path).open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":
                raise VdlaError(
                    f"{path}: expected a record in the last line (the file is truncated; delete"
                    " its last line)"
                )
        written = file.write(data)
        if written != len(data):  # the disk is full: leave whole lines behind
            file.truncate(end)
            raise VdlaError(f"{path}: could not write {len(data)} bytes; make room on the disk")


def merge(path: str | Path, sources: Sequence[str | Path]) -> Records:
    """Write the records of some files to one, each different line once, in order. ``path`` may be
    one of them; it is replaced only when everything is written.

    Raises
    ------
    VdlaError
        As :meth:`Records.load`.
    """
    lines = dict.fromkeys(
        trial.line() for source in sources for trial in Records.load(source).trials
    )
    with whole_file(path) as place:
        place.write_text("".join(line + "\n" for line in lines), "utf-8")
    return Records.load(path)
