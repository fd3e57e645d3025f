"""``vdla refine``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from .files import Merges
from .options import MOST, Hw, JsonFile, Memory, Seed, TimeLimit, Vthreads
from .output import count, emit, new_table, percent, progress_bar


def refine(
    model: Annotated[
        str,
        typer.Argument(help="A model's file, a network of vdla bench, or a layer such as C8."),
    ],
    knobs: Annotated[
        Path,
        typer.Option("--knobs", metavar="FILE", help="Choices by layer: read, and made better."),
        Merges(),
    ] = Path("knobs.json"),
    trials: Annotated[int, typer.Option(min=1, max=MOST, help="Programs to try.")] = 200,
    hw: Hw = "16x16",
    memory: Memory = "vta",
    vthreads: Vthreads = 2,
    seed: Seed = 0,
    time_s: TimeLimit = None,
    json_file: JsonFile = None,
) -> int:
    """Search the choices of all layers together, by the cycles of the whole program. Ctrl-C keeps
    the best; run again with another seed to go on.
    """
    from ..api.refining import refine as run_refine
    from ..bench.workloads import find_model
    from ..isa.platform import load_platform

    params, memory_params = load_platform(hw, memory)
    found = find_model(model, params.batch, quantized=True)
    with progress_bar(model) as update:
        body = run_refine(
            found, knobs, params, memory_params, trials, seed, time_s, vthreads,
            lambda made, of, best: update(made, of, f"{best:,} cycles"),
        )  # fmt: skip
    report = {"model_name": model} | body
    emit("refine", report, json_file, _show, params, memory_params, seed)
    if report["time_ended"]:
        print(f"vdla: the time ended; {knobs} has the best choices", file=sys.stderr)
    if report["interrupted"]:
        raise VdlaError(f"interrupted; {knobs} has the best choices")
    return 0


def _show(console: Console, report: dict[str, Any]) -> None:
    saved = percent(1 - report["best"] / report["before"])
    console.print(
        f"{count(report['before'])} -> {count(report['best'])} cycles ({saved} saved),"
        f" {count(report['trials'])} trials, {count(report['failed'])} of them without a program;"
        f" choices in {report['knobs']}"
    )
    changed = [layer for layer in report["layers"] if "before" in layer]
    if not changed:
        return
    table = new_table("layers with other choices", "layer", "knobs", "before", left=3)
    for layer in changed:
        names = [n for n, value in layer["knobs"].items() if layer["before"].get(n) != value]
        table.add_row(
            layer["name"],
            *(" ".join(f"{n}={layer[of].get(n)}" for n in names) for of in ("knobs", "before")),
        )
    console.print(table)
