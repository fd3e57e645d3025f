"""The coverage of a configuration: counts of bins, merged over runs and kept in files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...isa.errors import VdlaError
from ...isa.params import HwParams
from ...isa.program import Program
from ...runtime.files import write_text
from .bins import bins
from .sample import sample
from .timeline import Timing
from .unreachable import unreachable

#: Marks a file, and says which bins it counts.
FORMAT = "vdla coverage 1"
#: Group and bin.
Bin = tuple[str, str]


class Coverage:
    """Counts of the bins of one configuration.

    Parameters
    ----------
    params : HwParams
        The configuration.

    Attributes
    ----------
    hits : Counter of (group, bin)
        How many instructions (of the groups stalls and overlap: programs) have hit each bin.
    runs : list of dict
        What was sampled: ``source``, ``simulator``, ``seed``, ``programs``.

    Examples
    --------
    ::

        coverage = Coverage(program.params)
        coverage.sample(program, dram, simulate(program, dram.copy(), memory))
        coverage.holes()  # the bins that could be reached and were not
    """

    def __init__(self, params: HwParams) -> None:
        self.params = params
        self.hits: Counter[Bin] = Counter()
        self.runs: list[dict[str, Any]] = []

    def sample(self, program: Program, dram: np.ndarray, timing: Timing) -> set[Bin]:
        """Count what a run has hit; returns the bins that nothing had hit before.

        Parameters
        ----------
        program : Program
            Of this configuration.
        dram : uint8 array
            DRAM before the run; it is left as it is.
        timing : Timing
            Starts, ends and counters of the run, from any simulator.
        """
        program.check_params(self.params)
        found = sample(program, dram, timing)
        new = {bin_ for bin_ in found if not self.hits[bin_]}
        self.hits.update(found)
        return new

    def ran(self, source: str, simulator: str, seed: int, programs: int) -> None:
        """Say what was sampled."""
        self.runs.append(
            {"source": source, "simulator": simulator, "seed": seed, "programs": programs}
        )

    def merge(self, other: Coverage) -> None:
        """Add the counts and runs of the same configuration."""
        if other.params != self.params:
            raise VdlaError(
                f"coverage: expected one of configuration {self.params.hash}, "
                f"got {other.params.hash}"
            )
        self.hits.update(other.hits)
        self.runs += other.runs

    # ---- what it says ----

    def reachable(self, group: str | None = None) -> list[Bin]:
        """The bins that a program can hit, of one group or of all."""
        never = unreachable(self.params)
        groups = bins(self.params)
        chosen = groups if group is None else {group: groups[group]}
        return [(g, b) for g, names in chosen.items() for b in names if (g, b) not in never]

    def holes(self, group: str | None = None) -> list[Bin]:
        """The reachable bins that nothing has hit."""
        return [bin_ for bin_ in self.reachable(group) if not self.hits[bin_]]

    def fraction(self, group: str | None = None) -> float:
        """The part of the reachable bins that was hit."""
        reachable = self.reachable(group)
        return 1 - len(self.holes(group)) / len(reachable)

    def surprises(self) -> list[Bin]:
        """Bins that were hit although the table says that they cannot be."""
        return [bin_ for bin_ in unreachable(self.params) if self.hits[bin_]]

    # ---- files ----

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with every bin."""
        return {
            "config": self.params.to_dict(),
            "config_hash": self.params.hash,
            "runs": self.runs,
            "bins": {
                group: {bin_name: self.hits[group, bin_name] for bin_name in names}
                for group, names in bins(self.params).items()
            },
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any], where: str = "coverage") -> Coverage:
        """The inverse of :meth:`to_dict`."""
        found = cls(HwParams.from_dict(fields["config"], where))
        found.runs = list(fields["runs"])
        known = bins(found.params)
        for group, counts in fields["bins"].items():
            for bin_name, count in counts.items():
                if bin_name not in known.get(group, ()):
                    raise VdlaError(
                        f"{where}: expected bins of this version, got {group}: {bin_name!r}; "
                        "collect it again"
                    )
                if count:
                    found.hits[group, bin_name] = count
        return found

    def save(self, path: Path) -> None:
        """Write to a file in place of what it holds of this configuration; other configurations
        stay.
        """
        every = load(path) if path.exists() else []
        found = [c for c in every if c.params != self.params] + [self]
        text = json.dumps({"format": FORMAT, "configurations": [c.to_dict() for c in found]})
        write_text(path, text + "\n")

    @classmethod
    def of_file(cls, path: Path, params: HwParams) -> Coverage:
        """What a file holds of a configuration; nothing if there is no file."""
        every = load(path) if path.exists() else []
        return next((c for c in every if c.params == params), cls(params))


def load(path: Path) -> list[Coverage]:
    """The coverage in a file, one of each configuration.

    Raises VdlaError for a file that is none, or is of another version.
    """
    try:
        fields = json.loads(path.read_text("utf-8"))
        form = fields["format"]
    except (ValueError, KeyError, TypeError):
        raise VdlaError(f"{path}: expected a file of vdla cosim or verify --coverage") from None
    if form != FORMAT:
        raise VdlaError(f"{path}: expected {FORMAT!r}, got {form!r}")
    return [Coverage.from_dict(one, str(path)) for one in fields["configurations"]]


def merged(coverages: Iterable[Coverage]) -> list[Coverage]:
    """One of each configuration."""
    found: dict[str, Coverage] = {}
    for coverage in coverages:
        found.setdefault(coverage.params.hash, Coverage(coverage.params)).merge(coverage)
    return list(found.values())
