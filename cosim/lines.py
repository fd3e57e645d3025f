"""Line, branch and toggle coverage of the Verilog, by the lines of its Amaranth source.

Verilator counts in the Verilog. Amaranth says of every signal and every expression which line made
it. So a branch belongs to the line of its condition, a block that is always executed and a bit that
toggles to the line of the signal. What many instances of a component share is one line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..isa.errors import VdlaError
from ..runtime.files import write_text

FORMAT = "vdla line coverage 1"
KINDS = ("line", "branch", "toggle")
#: Source file and line, kind, and what of it: ``block``, ``if``, ``else``, ``case``, or a bit and
#: its direction.
Point = tuple[str, int, str, str]

_PACKAGE = Path(__file__).parents[1]
_SOURCE = re.compile(r'src = "([^"|]+):(\d+)')
_NAME = r"(\\\S+|[A-Za-z_][\w$]*)"
_MODULE = re.compile(rf"^module {_NAME}")
_DECLARED = re.compile(rf"^\s*(?:input|output|wire|reg)(?: signed)?(?: \[[^\]]*\])? {_NAME}")
_ASSIGNED = re.compile(rf"^\s*assign {_NAME}\s*(?:\[[^\]]*\])?\s*=(.*)")
_SET = re.compile(rf"^\s*{_NAME}\s*(?:\[[^\]]*\])?\s*<?=")
_CONDITION = re.compile(r"(?:if|casez|case) \((.*)")
_RECORD = re.compile(r"C '(.*)' (\d+)$")
#: What Yosys writes so that blocks without inputs are executed once: no code of anybody's.
_DUMMY = "$auto$verilog_backend"
#: What Amaranth writes for the reset of every register.
_RESET = "if (rst)"


class LineCoverage:
    """Counts by lines of source.

    Attributes
    ----------
    points : Counter of (file, line, kind, what)
        How often each was executed or toggled; files of the package are relative to it.

    Examples
    --------
    ::

        design = Design.core(params, sources=True)
        run_bench(design, "my_bench.py", work, build=Build(coverage=True))
        coverage = LineCoverage()
        coverage.add(design.verilog, work / COVERAGE_FILE)
        coverage.missing("line", "hw/core")
    """

    def __init__(self) -> None:
        self.points: Counter[Point] = Counter()

    def add(self, verilog: str, counts: Path) -> None:
        """Add what Verilator has counted in a run.

        Parameters
        ----------
        verilog : str
            The design, with the lines of its source.
        counts : Path
            What the run has left: ``coverage.dat``.
        """
        sources = _sources(verilog)
        for record in counts.read_text("utf-8", errors="replace").splitlines():
            match = _RECORD.match(record)
            if not match:
                continue
            fields = dict(part.split("\2", 1) for part in match[1].split("\1") if part)
            place = sources.get(int(fields["l"]))
            if place is not None:
                for kind, what in _kinds(fields):
                    self.points[*place, kind, what] += int(match[2])

    def merge(self, other: LineCoverage) -> None:
        """Add the counts of other runs."""
        for point, count in other.points.items():  # zeros, too: what exists and was not executed
            self.points[point] += count

    # ---- what it says ----

    def of(self, kind: str, folder: str = "") -> dict[Point, int]:
        """The points of a kind in a folder of the package or in a file."""
        return {
            point: count for point, count in self.points.items()
            if point[2] == kind and point[0].startswith(folder)
        }  # fmt: skip

    def missing(self, kind: str, folder: str = "") -> list[Point]:
        """Those that were never executed, or never toggled."""
        return sorted(point for point, count in self.of(kind, folder).items() if not count)

    def fraction(self, kind: str, folder: str = "") -> float:
        """The part that was executed or toggled."""
        return 1 - len(self.missing(kind, folder)) / max(1, len(self.of(kind, folder)))

    def files(self) -> list[str]:
        """Source files."""
        return sorted({point[0] for point in self.points})

    # ---- files ----

    def save(self, path: Path) -> None:
        """Write to a file."""
        nested: dict[str, dict[str, dict[str, int]]] = {}
        for (file, line, kind, what), count in sorted(self.points.items()):
            nested.setdefault(f"{file}:{line}", {}).setdefault(kind, {})[what] = count
        write_text(path, json.dumps({"format": FORMAT, "points": nested}) + "\n")

    @classmethod
    def load(cls, path: Path) -> LineCoverage:
        """What a file holds; nothing if there is no file.

        Raises VdlaError for another file.
        """
        found = cls()
        if not path.exists():
            return found
        try:
            fields = json.loads(path.read_text("utf-8"))
            form, points = fields["format"], fields["points"]
        except (ValueError, KeyError, TypeError):
            form, points = None, {}
        if form != FORMAT:
            raise VdlaError(f"{path}: expected a file of vdla cosim --line-coverage")
        for place, kinds in points.items():
            file, _, line = place.rpartition(":")
            for kind, counts in kinds.items():
                for what, count in counts.items():
                    found.points[file, int(line), kind, what] = count
        return found

    def summary(self, folder: str = "hw/core") -> dict[str, Any]:
        """JSON-ready: points, those reached, and what was never executed, by kind."""
        found: dict[str, Any] = {"folder": folder}
        for kind in KINDS:
            every, missing = self.of(kind, folder), self.missing(kind, folder)
            reached = len(every) - len(missing)
            found[kind] = {"points": len(every), "reached": reached,
                           "fraction": self.fraction(kind, folder)}  # fmt: skip
        found["never"] = [
            f"{file}:{line}: {what}" for file, line, _, what in self.missing("line", folder)
        ]
        return found


def _kinds(fields: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What a record of Verilator's counts: the body of a branch is a line, too, if it has any."""
    match fields["t"]:
        case "toggle":
            yield "toggle", fields["o"]
        case "line":
            yield "line", fields["o"]
        case "branch":
            yield "branch", fields["o"]
            if "S" in fields:
                yield "line", fields["o"]


# ---- from Verilog to its source ----


def _sources(verilog: str) -> dict[int, tuple[str, int]]:
    """The source of each line of the Verilog that has one, from 1 on."""
    found: dict[int, tuple[str, int]] = {}
    begin, lines = 0, verilog.splitlines()
    for number, line in enumerate([*lines, "module end"]):
        if _MODULE.match(line):
            found.update(_Module(lines[begin:number]).sources(begin + 1))
            begin = number
    return found


class _Module:
    """The lines of one module."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.made: dict[str, tuple[str, int]] = {}
        for number, line in enumerate(lines):
            if (match := _DECLARED.match(line)) and (above := self._above(number)):
                self.made.setdefault(match[1], above)
            if (match := _ASSIGNED.match(line)) and (own := _first_source([match[2]])):
                self.made[match[1]] = own  # the expression says more than the signal

    def sources(self, first: int) -> Iterator[tuple[int, tuple[str, int]]]:
        """Numbers of lines, counted from ``first``, and their sources."""
        condition: list[tuple[str, int] | None] = []
        block: tuple[str, int] | None = None
        for number, line in enumerate(self.lines):
            place = self._of(number, line)
            if line.lstrip().startswith("always"):
                block = place
            elif place is None and _CONDITION.search(line) and _RESET not in line:
                place = block  # a condition of the library's, on a signal of ours
            if re.match(r"\s*casez? \(", line):
                condition.append(place)
            elif line.strip() == "endcase":
                condition.pop()
            elif place is None and condition and re.match(r"\s*(\S.*|default):", line):
                place = condition[-1]  # an item
            if place is not None and _DUMMY not in line:
                yield first + number, place

    def _of(self, number: int, line: str) -> tuple[str, int] | None:
        if match := _DECLARED.match(line):
            return self.made.get(match[1])
        if _ASSIGNED.match(line):
            return _first_source([line])
        if match := _CONDITION.search(line):
            return _first_source([line]) or self._named(match[1])
        if line.lstrip().startswith("always"):
            if above := self._above(number):
                return above
            assigned = (_SET.match(later) for later in self.lines[number + 1 : number + 8])
            return next((self.made.get(m[1]) for m in assigned if m), None)
        return None

    def _above(self, number: int) -> tuple[str, int] | None:
        """The source that the attribute in the line above says."""
        line = self.lines[number - 1] if number else ""
        return _first_source([line]) if line.lstrip().startswith("(*") else None

    def _named(self, expression: str) -> tuple[str, int] | None:
        names = re.findall(rf"{_NAME}", expression)
        return next((self.made[name] for name in names if name in self.made), None)


def _first_source(texts: Iterable[str]) -> tuple[str, int] | None:
    """File, relative to the package if it is in it, and line of the first source that is no
    library's.
    """
    for text in texts:
        for file, line in _SOURCE.findall(text):
            path = Path(file)
            path = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path
            if "site-packages" not in path.parts:
                return str(path), int(line)
    return None
