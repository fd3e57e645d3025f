"""``vdla sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.memory import MEMORY_PRESETS
from ..isa.params import PRESETS
from ..runtime.files import whole_file, write_text
from ..runtime.processor import host
from .files import Writes
from .options import Clock, Html, JsonFile, Processes, Records, ResultsFile
from .output import count, decimals, new_table, percent, progress_bar, show_report

#: Where results go if nothing is said.
DEFAULT_RESULTS = Path("sweep.jsonl")


def sweep(
    models: Annotated[
        list[str],
        typer.Argument(help="Model files, networks of vdla bench, or layers such as C8."),
    ],
    hw: Annotated[
        list[str] | None,
        typer.Option("--hw", metavar="F", help=f"Presets ({', '.join(PRESETS)}) or TOML files."),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory", metavar="M", help=f"Presets ({', '.join(MEMORY_PRESETS)}) or TOML files."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KNOB=A,B", help="Values of a knob of the hardware or of the memory."
        ),
    ] = None,
    records: Records = None,
    clock: Clock = None,
    workers: Processes = None,
    results: ResultsFile = DEFAULT_RESULTS,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file."), Writes(".csv")] = None,
    html: Html = None,
    json_file: JsonFile = None,
) -> int:
    """Models on every combination of hardware, memory and knobs: what changes, and why nothing
    does. Ctrl-C keeps all results; the same command goes on.
    """
    from ..pages.sweep import sweep_page
    from ..report.report import header

    with progress_bar("sweep") as progress:
        from ..bench import sweep as sweeping  # takes a second

        points = sweeping.make_points(
            models, hw or ["16x16"], memory or ["vta"], sweeping.parse_sets(sets or []), records
        )
        kept = sweeping.Results(results)
        rows, interrupted = sweeping.measure_points(
            points, kept, workers or host().cores, progress, clock_mhz=clock
        )
    rows = sweeping.compared(rows)
    report = header("sweep") | {"results": str(results), "rows": rows, "interrupted": interrupted}
    if csv is not None:
        with whole_file(csv) as place:
            sweeping.write_csv(place, rows)
    if html is not None:
        write_text(html, sweep_page(report, sweeping.labels(rows)))
    show_report(report, json_file, lambda console, _: _show(console, rows, sweeping.labels(rows)))
    if interrupted:
        raise VdlaError(
            f"interrupted; {results} has {len(rows)} of {len(points)} results, and the same command"
            " goes on"
        )
    return 0 if any(row.get("cycles") for row in rows) else 1


def _show(console: Console, rows: list[dict[str, Any]], labels: list[str]) -> None:
    from ..report.report import on_host

    timed = any("time_ms" in row for row in rows)
    times = ("ms", "images/s", "ms / first") if timed else ()
    table = new_table("sweep", "model", "machine", "cycles", "cycles / first", *times, left=2)
    for name in ("programs", "on host", "end to end", "on-chip KiB"):
        table.add_column(name, justify="right")
    table.add_column("why")
    for before, row, label in zip([None, *rows], rows, labels, strict=False):
        if before is not None and before["model"] != row["model"]:
            table.add_section()
        measured, resources = row.get("cycles"), row.get("resources")
        changed = row["changed"] or {}
        numbers = row.get("time_ms"), row.get("images_per_s"), changed.get("time_ratio")
        table.add_row(
            row["model"], label, count(measured), decimals(changed.get("ratio")),
            *map(decimals, numbers if timed else ()),
            count(row.get("programs")),
            on_host(row["coverage"]) if measured else "",
            percent(row["utilisation"]["end_to_end"]) if measured else "",
            f"{resources['scratchpad_bytes'] / 1024:,.0f}" if resources else "",
            row["changed"]["why"] if measured else row["error"],
        )  # fmt: skip
    console.print(table)
