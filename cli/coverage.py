"""``vdla coverage``: what runs have exercised, merged, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..runtime.files import write_text
from .files import Reads, Writes
from .options import JsonFile
from .output import count, emit, new_table, percent

if TYPE_CHECKING:
    from ..sim.coverage.coverage import Coverage

#: Holes that the table names; the page and the JSON name all.
SHOWN_HOLES = 40


def coverage(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="F...", help="Files of cosim or verify --coverage."),
        Reads(),
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write a page with every bin."), Writes()
    ] = None,
    json_file: JsonFile = None,
) -> int:
    """Merge files of functional coverage, and show what was exercised and what is missing."""
    from ..sim.coverage.coverage import load, merged

    found = merged(one for path in files for one in load(path))
    configurations = [summary(one) for one in found]
    if html is not None:
        from ..pages.coverage import coverage_page

        write_text(html, coverage_page(found))
    emit("coverage", {"configurations": configurations}, json_file, _show)
    return 1 if any(one["surprises"] for one in configurations) else 0


def summary(coverage: Coverage) -> dict[str, Any]:
    """The fields of reports that say what was hit: ``reachable`` and ``reached`` bins, in all and
    by group, ``holes``, ``unreachable`` bins with their reasons, and ``surprises``, which were hit
    although they are unreachable.
    """
    from ..sim.coverage.bins import bins
    from ..sim.coverage.unreachable import unreachable

    groups = {
        group: _counts(len(coverage.reachable(group)), len(coverage.holes(group)))
        for group in bins(coverage.params)
    }
    reasons: dict[str, list[str]] = {}
    for (group, bin_name), reason in unreachable(coverage.params).items():
        reasons.setdefault(reason, []).append(f"{group}: {bin_name}")
    return {
        "config": coverage.params.to_dict(), "config_hash": coverage.params.hash,
        "runs": coverage.runs, **_counts(len(coverage.reachable()), len(coverage.holes())),
        "groups": groups, "holes": [f"{g}: {b}" for g, b in coverage.holes()],
        "unreachable": reasons, "surprises": [f"{g}: {b}" for g, b in coverage.surprises()],
    }  # fmt: skip


def _counts(reachable: int, holes: int) -> dict[str, Any]:
    fraction = (reachable - holes) / reachable if reachable else 1.0
    return {"reachable": reachable, "reached": reachable - holes, "fraction": fraction}


def show_summary(console: Console, one: dict[str, Any]) -> None:
    """One line with the figure, and the first holes."""
    console.print(
        f"functional coverage of {one['config_hash']}: {count(one['reached'])} of "
        f"{count(one['reachable'])} reachable bins, {percent(one['fraction'])}"
    )
    holes = one["holes"]
    for hole in holes[:SHOWN_HOLES]:
        console.print(f"  missing: {hole}")
    if len(holes) > SHOWN_HOLES:
        console.print(f"  and {count(len(holes) - SHOWN_HOLES)} more: vdla coverage --html PAGE")
    for bin_name in one["surprises"]:
        console.print(f"  hit although it is said to be unreachable: {bin_name}")


def show_lines(console: Console, summary: dict[str, Any]) -> None:
    """What of the Verilog was executed and toggled, and the first lines that never were."""
    for kind in ("line", "branch", "toggle"):
        counts = summary[kind]
        console.print(
            f"{kind} coverage of {summary['folder']}: {count(counts['reached'])} of "
            f"{count(counts['points'])}, {percent(counts['fraction'])}"
        )
    for never in summary["never"][:SHOWN_HOLES]:
        console.print(f"  never executed: {never}")


def _show(console: Console, report: dict[str, Any]) -> None:
    for one in report["configurations"]:
        programs = sum(run["programs"] for run in one["runs"])
        title = f"configuration {one['config_hash']}, {count(programs)} programs"
        table = new_table(title, "group", "bins", "reached", "")
        for group, counts in one["groups"].items():
            table.add_row(group, count(counts["reachable"]), count(counts["reached"]),
                          percent(counts["fraction"]))  # fmt: skip
        table.add_section()
        table.add_row("in all", count(one["reachable"]), count(one["reached"]),
                      percent(one["fraction"]))  # fmt: skip
        console.print(table)
        show_summary(console, one)
        never = sum(map(len, one["unreachable"].values()))
        console.print(f"{count(never)} bins cannot be reached:")
        for reason, names in one["unreachable"].items():
            console.print(f"  {len(names):4} {reason}")
