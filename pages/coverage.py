"""The page of functional coverage: ``vdla coverage --html``."""

from __future__ import annotations

from collections.abc import Sequence

from .._version import __version__
from ..sim.coverage.bins import GROUPS, bins
from ..sim.coverage.coverage import Coverage
from ..sim.coverage.unreachable import unreachable
from .page import write_page
from .parts import Facts, Page, Section, Table


def coverage_page(coverages: Sequence[Coverage]) -> str:
    """For each configuration what is missing, and every bin with its count, or the reason why
    nothing can reach it, as HTML."""
    facts = Facts({"Configurations": str(len(coverages)), "VDLA": __version__})
    summary = [f"{each.params.hash}: {_reached(each)}" for each in coverages]
    return write_page(Page("Functional coverage", summary, facts, [*map(_section, coverages)]))


def _reached(coverage: Coverage, group: str | None = None) -> str:
    reachable, holes = len(coverage.reachable(group)), len(coverage.holes(group))
    return f"{reachable - holes:,} of {reachable:,} reachable bins"


def _section(coverage: Coverage) -> Section:
    params, never = coverage.params, unreachable(coverage.params)
    runs = (
        f"{run['source']} on {run['simulator']}, seed {run['seed']}: {run['programs']:,} programs."
        for run in coverage.runs
    )
    tables = [
        Table(
            f"{group}: {_reached(coverage, group)}. {GROUPS[group]}",
            ("bin", "hits", "why nothing reaches it"),
            [(name, coverage.hits[group, name], never.get((group, name))) for name in names],
        )
        for group, names in bins(params).items()
    ]
    holes = coverage.holes()
    missing = [Table(f"Missing: {len(holes):,} bins", ("group", "bin"), holes)] if holes else []
    facts = Facts({knob: str(value) for knob, value in params.to_dict().items()})
    return Section(f"Configuration {params.hash}", " ".join(runs), [facts, *missing, *tables])
