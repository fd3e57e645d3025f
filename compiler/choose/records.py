"""Records: the knobs that measured best."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ...isa.errors import VdlaError
from .space import Knobs


class Records:
    """The best knobs that were measured, by target, machine, template and workload."""

    def __init__(self, best: Mapping[tuple[str, str, str, str], Knobs] | None = None):
        self._best = dict(best or {})

    @staticmethod
    def load(path: str | Path) -> Records:
        """Read a file of records, one JSON object a line: ``target``, ``machine``, ``template``,
        ``workload``, ``knobs`` and ``cost``. Of several records of one workload, the cheapest
        counts.

        Raises
        ------
        VdlaError
            For a line that is not a record, naming it.
        """
        costs: dict[tuple[str, str, str, str], float] = {}
        best: dict[tuple[str, str, str, str], Knobs] = {}
        for number, line in enumerate(Path(path).read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                target, machine = str(record["target"]), str(record["machine"])
                key = (target, machine, str(record["template"]), str(record["workload"]))
                cost, knobs = float(record["cost"]), dict(record["knobs"])
            except (ValueError, KeyError, TypeError) as error:
                raise VdlaError(f"{path}, line {number}: expected a record ({error})") from None
            if cost < costs.get(key, float("inf")):
                costs[key], best[key] = cost, knobs
        return Records(best)

    def find(self, target: str, machine: str, template: str, workload: str) -> Knobs | None:
        """The best knobs for the key of a workload, if there is a record."""
        return self._best.get((target, machine, template, workload))
