"""``vdla compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..runtime.files import write_text
from .files import Reads
from .options import Html, JsonFile
from .output import emit, new_table

#: The table shows this many of the layers that changed most; JSON has all.
MOVED_ROWS = 10
#: And so many different values of a knob of several layers.
MOST_VALUES = 6


def compare(
    a: Annotated[
        Path, typer.Argument(metavar="A.json", help="The report before, from --json."), Reads()
    ],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The report after."), Reads()],
    html: Html = None,
    json_file: JsonFile = None,
) -> None:
    """Two reports of `vdla run` or `vdla bench` side by side: what changed, and where most."""
    from ..report.compare import compare as compare_reports
    from ..report.compare import load_report

    before, after = load_report(a), load_report(b)
    compared = compare_reports(before, after)
    if html is not None:
        from ..pages.compare import compare_page

        write_text(html, compare_page(before, after, compared, _file_names(a, b)))
    emit("compare", compared, json_file, lambda out, told: _show_compare(out, told, a.name, b.name))


def _file_names(a: Path, b: Path) -> tuple[str, str]:
    """The names of two files, with their folders where the names alone are equal."""
    return (a.stem, b.stem) if a.stem != b.stem else (f"A: {a}", f"B: {b}")


def _show_compare(console: Console, report: dict[str, Any], a: str, b: str) -> None:
    from ..report.compare import host_lines, moved_unit

    for line in host_lines(report, (a, b)):
        console.print(line)
    for name, (old, new) in report["settings"].items():
        if old != new:
            console.print(f"{name}: {old} in {a}, {new} in {b}")
    changed = [row for row in report["rows"] if row["a"] != row["b"]]
    moved = report["layers_moved"]
    tables = (
        ("what changed", "metric", changed),
        (
            f"layers that moved most ({len(moved)} moved), in {moved_unit(report)}",
            "layer",
            moved[:MOVED_ROWS],
        ),
    )
    for title, key, rows in tables:
        if rows:
            table = new_table(title, key, a, b, "ratio")
            for row in rows:
                ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
                table.add_row(row[key], _number(row["a"]), _number(row["b"]), ratio)
            console.print(table)
    for name, labels in ((a, report["only_a"]), (b, report["only_b"])):
        if labels:
            console.print(f"only in {name}: {', '.join(labels)}")
    equal = len(report["rows"]) - len(changed)
    console.print(f"{equal} of {len(report['rows'])} metrics are equal")
    _show_knobs(console, report["knobs_changed"], a, b)


def _show_knobs(console: Console, rows: list[dict[str, Any]], a: str, b: str) -> None:
    """Knobs that differ: each of the machine, and of the layers each that some of them have, with
    the values that they have of it.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        of = row["where"] if row["where"] in ("hw", "memory") else "layers"
        groups.setdefault((of, row["knob"]), []).append(row)
    table = new_table("knobs that changed", "of", "knob", a, b, left=2)
    for (_, knob), same in groups.items():
        of = same[0]["where"] if len(same) == 1 else f"{len(same)} layers"
        table.add_row(of, knob, *(_values([row[side] for row in same]) for side in ("a", "b")))
    if rows:
        console.print(table)


def _values(values: list[object]) -> str:
    """The distinct ones of some values, at most so many."""
    found = list(dict.fromkeys("none" if value is None else str(value) for value in values))
    return ", ".join(found[:MOST_VALUES]) + ", ..." * (len(found) > MOST_VALUES)


def _number(value: float) -> str:
    from ..report.report import significant

    return f"{value:,}" if isinstance(value, int) else significant(value, 4)
