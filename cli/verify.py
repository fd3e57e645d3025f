"""``vdla verify``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.memory import load_platform
from . import options
from .coverage import show_summary, summary
from .files import Fills
from .output import count, emit, new_table, progress_bar, show_table


def verify(
    programs: Annotated[
        int, typer.Option(min=1, max=options.MOST_ROUNDS, help="Random programs.")
    ] = 100,
    seed: options.Seed = 0,
    hw: options.Hw = "16x16",
    memory: options.Memory = "vta",
    waves: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for program and waveform of a difference."),
        Fills(),
    ] = Path("."),
    coverage: options.CoverageFile = None,
    scheduler: options.Scheduler = None,
    workers: options.Workers = 0,
    json_file: options.JsonFile = None,
) -> int:
    """Random programs through reference, SimPy and RTL: bytes and cycles must be equal. With
    --coverage, further programs are drawn towards what the file's and these have not hit.
    """
    from ..sim.coverage.coverage import Coverage
    from ..sim.verify import campaign as verification

    params, memory_params = load_platform(hw, memory)
    collected = None if coverage is None else Coverage.of_file(coverage, params)
    with (
        options.open_workers(verification.DEVICE, scheduler, workers) as found,
        progress_bar("verify") as progress,
    ):
        run = verification.verify if found is None else partial(verification.verify_on, found)
        body = run(params, memory_params, programs, seed, progress=progress, coverage=collected)
    if coverage is not None and collected is not None:
        collected.save(coverage)
        body["coverage"] = summary(collected)
    first = body["first_divergence"]
    if first is not None:
        first |= verification.save_divergence(waves, params, memory_params, first)
    emit("verify", body, json_file, _show_verify, params, memory_params, seed)
    equal = not body["byte_mismatches"] and not body["cycle_mismatches"]
    return 0 if equal and first is None else 1


def _show_verify(console: Console, report: dict[str, Any]) -> None:
    names = (
        "programs", "steered_programs", "instructions", "cycles", "byte_mismatches",
        "cycle_mismatches",
    )  # fmt: skip
    rows = [(name.replace("_", " "), count(report[name])) for name in names]
    rows.append(("largest cycle error", count(report["max_cycle_error"])))
    title = f"verify, configuration {report['config_hash']}"
    show_table(console, title, ("", "count"), rows)
    if "coverage" in report:
        show_summary(console, report["coverage"])
    if report["first_divergence"] is not None:
        _show_divergence(console, report["first_divergence"])


def _show_divergence(console: Console, first: dict[str, Any]) -> None:
    """Where two sides differ first: the instruction, then every side's cycles and value."""
    place = f" at {first['address']}" if "address" in first else ""
    console.print(
        f"first divergence: program {first['program']}, instruction {first['instruction']} "
        f"of {first['unit']}, cycle {first['cycle']:,}\n  {first['text']}"
    )
    if first["for"]:
        console.print(f"  for {first['for']}", markup=False)
    console.print(f"  differs in: {first['what']}{place}")
    table = new_table("", "side", "start cycle", "end cycle", first["what"])
    for side in ("reference", "sim", "rtl"):
        moments = [first[name].get(side) for name in ("starts", "ends")]
        if side in first or moments[0] is not None:
            table.add_row(side, *map(count, moments), str(first.get(side, "")))
    if first["what"] in ("start cycle", "end cycle"):
        table.columns.pop()
    console.print(table)
    begin, end = first["waves_cycles"]
    console.print(f"waveform of cycles {begin:,}..{end:,} (1 us each): {first['saved']['waves']}")
    console.print(f"program: {first['saved']['program']}")
