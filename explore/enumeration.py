"""Every design of a space, measured: what searches are compared on, without a simulator.

A table (``tables/NAME.json.gz``) is made once. What is measured goes to a file of results like that
of an exploration, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ..bench.sweep import Point, Results, Row, measure_points
from ..isa.errors import VdlaError
from ..runtime.files import whole_file
from .front import front, hypervolume
from .ladder import Design, Ladder
from .spec import Spec

#: Tables of the package.
TABLES = Path(__file__).parent / "tables"
VERSION = 1
#: What of a row decides about the values of a design.
_KEPT = ("cycles", "coverage", "dram", "accesses", "error")


def possible(spec: Spec, ladder: Ladder) -> Iterator[Design]:
    """The designs of a space that are legal and within all limits that need no run, in the order of
    the knobs: the last changes first.
    """
    for values in product(*spec.knobs.values()):
        design = Design.of(spec, dict(zip(spec.knobs, values, strict=True)))
        if design.params is not None and not ladder.over(ladder.of_machine(design)):
            yield design


@dataclass(frozen=True, eq=False)
class Enumeration:
    """What was measured of every possible design of a space.

    Attributes
    ----------
    spec : the space
    first : rows of the machine that searches begin at, one for each network
    rows : those of each possible design, by its values of the knobs
    """

    spec: Spec
    first: list[Row]
    rows: Mapping[tuple[int, ...], list[Row]]

    def measure(self, points: Sequence[Point], *_: Any) -> tuple[list[Row], bool]:
        """The rows of points, in the place of :func:`~..bench.sweep.measure_points`."""
        names = list(self.spec.networks)
        found = []
        for point in points:
            values = tuple(point.knobs[name] for name in self.spec.knobs if name in point.knobs)
            rows = self.rows[values] if values else self.first
            found.append(rows[names.index(point.model)])
        return found, False

    def best(self, box: Sequence[float]) -> float:
        """The hypervolume of the front of all designs within the limits."""
        ladder, values = Ladder(self.spec), []
        ladder.learn(Design.of(self.spec, {}), self.first)
        for knobs, rows in self.rows.items():
            design = Design.of(self.spec, dict(zip(self.spec.knobs, knobs, strict=True)))
            try:
                exact = ladder.exact(design, rows)
            except VdlaError:
                continue
            if not ladder.over(exact):
                values.append(tuple(exact[name] for name in self.spec.objectives))
        return hypervolume([values[k] for k in front(values)], box)

    def save(self, path: Path) -> None:
        """Write the table; the same designs give the same bytes. It says where files lie from its
        own place.
        """

        def from_here(name: str) -> str:
            return os.path.relpath(name, path.parent) if Path(name).is_file() else name

        spec = self.spec
        near = {
            "networks": {from_here(name): weight for name, weight in spec.networks.items()},
            "hw": from_here(spec.hw), "memory": from_here(spec.memory),
        }  # fmt: skip
        entry = {
            "version": VERSION,
            # What records have changed is in the rows.
            "spec": asdict(spec) | near | {"records": None},
            "first": self.first,
            "rows": [[list(knobs), rows] for knobs, rows in self.rows.items()],
        }
        with whole_file(path) as place:
            data = json.dumps(entry, separators=(",", ":")).encode()
            place.write_bytes(gzip.compress(data, mtime=0))

    @classmethod
    def load(cls, path: Path) -> Enumeration:
        """A table of a file. Raises VdlaError for anything else."""
        try:
            entry = json.loads(gzip.decompress(path.read_bytes()))
            if entry["version"] != VERSION:
                raise ValueError
            rows = {tuple(knobs): list(found) for knobs, found in entry["rows"]}
            return cls(Spec.from_dict(entry["spec"], path.parent), entry["first"], rows)
        except VdlaError as error:
            raise VdlaError(f"{path}: {error}") from None
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            raise VdlaError(
                f"{path}: expected a table of vdla bench explore --make, version {VERSION}, got"
                " something else"
            ) from None


def enumerate_designs(
    spec: Spec, results: Results, workers: int, progress: Callable[[int, int], None]
) -> Enumeration:
    """Measure every possible design. Raises VdlaError where Ctrl-C came between."""
    if spec.in_cells:
        raise VdlaError(f"objectives: expected those of a simulation, got {min(spec.in_cells)}")
    ladder = Ladder(spec)
    first = Design.of(spec, {})
    designs = list(possible(spec, ladder))
    points = [point for one in (first, *designs) for point in ladder.points(one)]
    rows, interrupted = measure_points(points, results, workers, progress)
    if interrupted:
        raise VdlaError("interrupted; the same command goes on")
    kept = [{name: row[name] for name in _KEPT if name in row} for row in rows]
    each = len(spec.networks)
    groups = [kept[begin : begin + each] for begin in range(0, len(kept), each)]
    places = [tuple(design.knobs[name] for name in spec.knobs) for design in designs]
    return Enumeration(spec, groups[0], dict(zip(places, groups[1:], strict=True)))
