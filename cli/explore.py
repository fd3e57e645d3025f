"""``vdla explore``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from ..isa.errors import VdlaError
from ..runtime.files import whole_file, write_text
from ..runtime.processor import host
from .files import Fills, Reads, Writes
from .options import MOST_ROUNDS, Html, JsonFile, Processes, ResultsFile, Scheduler, TimeLimit
from .output import new_table, show_report

if TYPE_CHECKING:
    from ..compiler.tune.pool import Pool
    from ..explore.exploration import Exploration, State

#: Where results go if nothing is said.
DEFAULT_RESULTS = Path("explore.jsonl")
#: Where designs are built if nothing is said, each in a folder that its configuration's hash names.
DEFAULT_OUTPUT = Path("build") / "explore"


def explore(
    spec_file: Annotated[
        Path, typer.Argument(metavar="SPEC", help="What is explored (.toml)."), Reads(".toml")
    ],
    trials: Annotated[
        int | None, typer.Option(min=1, max=MOST_ROUNDS, help="Designs to compile and simulate.")
    ] = None,
    time_s: TimeLimit = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Seed of all that is random.")
    ] = None,
    workers: Processes = None,
    scheduler: Scheduler = None,
    results: ResultsFile = DEFAULT_RESULTS,
    prove: Annotated[
        int,
        typer.Option(min=0, max=MOST_ROUNDS, help="Run so many of the front in RTL, best first."),
    ] = 0,
    build: Annotated[
        int,
        typer.Option(min=0, max=MOST_ROUNDS, help="Also verify, place and route so many of them."),
    ] = 0,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for what is built."),
        Fills(),
    ] = DEFAULT_OUTPUT,
    png: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Write a picture of the front (.png)."),
        Writes(".png"),
    ] = None,
    html: Html = None,
    json_file: JsonFile = None,
) -> int:
    """Search for designs that suit networks within limits: the front of those that no other beats.
    Ctrl-C keeps all results; the same command goes on. The best are those with the least of the
    first objective; what is run in RTL must have the same cycles.
    """
    from ..bench.sweep import Results
    from ..explore.exploration import Exploration
    from ..explore.report import draw_front, make_report
    from ..explore.spec import Spec
    from ..runtime.workers import check_address

    spec = Spec.load(spec_file)
    given = {"trials": trials, "seed": seed}
    spec = replace(spec, **{name: value for name, value in given.items() if value is not None})
    if png is not None and len(spec.objectives) == 1:
        raise VdlaError(f"png: expected two objectives to draw, got {', '.join(spec.objectives)}")
    if scheduler is not None:
        check_address(scheduler)
    measured = Results(results)
    with _pool(scheduler) as pool, _shown() as status:
        workers = workers or host().cores
        exploration = Exploration(
            spec,
            measured,
            workers,
            lambda state: status.update(_told(state)),
            pool=pool,
            time_s=inf if time_s is None else time_s,
        )
        exploration.run()
        if not exploration.outcomes:
            raise VdlaError("interrupted before the first design was measured")
        proofs = {}
        if not exploration.interrupted:
            proofs = _proofs(exploration, prove, build, output, status.update)
    report = make_report(exploration, proofs) | {"results": str(results)}
    if html is not None:
        from ..pages.explore import explore_page

        write_text(html, explore_page(report))
    if png is not None:
        with whole_file(png) as place:
            draw_front(report, place)
    show_report(report, json_file, _show)
    if exploration.interrupted:
        raise VdlaError(
            f"interrupted after {exploration.measured} of {spec.trials} designs; the same command"
            " goes on"
        )
    missed = [line for proof in proofs.values() for line in proof.get("missed", ())]
    for line in missed:
        print(f"vdla: {line}", file=sys.stderr)
    if not exploration.front:
        print("vdla: none of these designs is within the limits", file=sys.stderr)
    return 0 if exploration.front and not missed else 1


def _pool(scheduler: str | None) -> AbstractContextManager[Pool | None]:
    """The workers of a scheduler that have the simulator."""
    if scheduler is None:
        return nullcontext()
    from ..api.tuning import STEPS
    from ..bench.sweep import TIMEOUT_S
    from ..compiler.tune.pool import Pool

    return closing(Pool(STEPS["sim"], scheduler, 0, TIMEOUT_S))


def _shown() -> Status:
    """Shows how far an exploration is, on standard error where that is a terminal."""
    return Console(stderr=True).status("explore")


def _told(state: State) -> str:
    rate = state.measured / max(state.elapsed_s, 1e-9)
    left_s = min((state.trials - state.measured) / max(rate, 1e-9), state.left_s)
    return (
        f"{state.measured} of {state.trials} designs, {state.on_front} on the front,"
        f" hypervolume {state.hypervolume:.4f}, {3600 * rate:,.0f} an hour,"
        f" {left_s / 60:.0f} min left at most"
    )


def _proofs(
    exploration: Exploration, proved: int, built: int, output: Path, progress: Callable[[str], None]
) -> dict[int, dict[str, Any]]:
    """The proofs of the best designs, by their places on the front."""
    from ..explore import proof

    proofs = {}
    for number, outcome in enumerate(exploration.front[: max(proved, built)]):
        if number < built:
            params, _ = outcome.design.machine
            proofs[number] = proof.build(exploration, outcome, output / params.hash, progress)
        else:
            proofs[number] = proof.prove(exploration, outcome, progress)
    return proofs


def _show(console: Console, report: dict[str, Any]) -> None:
    from ..report.report import significant

    names = report["shown"]
    knobs = list(report["first"]["knobs"])
    table = new_table("front", "design", *names, *knobs)
    for number, design in enumerate([report["first"], *report["front"]]):
        label = "first" if number == 0 else str(number)
        values = [significant(design["values"][name]) for name in names]
        table.add_row(label, *values, *(f"{design['knobs'][name]:,}" for name in knobs))
    console.print(table)
    for number, design in enumerate(report["front"], 1):
        if design["proof"] is not None:
            console.print(f"design {number}: {design['proof']['text']}")
    counted = ", ".join(f"{count} {rung}" for rung, count in report["rungs"].items())
    console.print(
        f"{sum(report['rungs'].values())} of {report['space']:,} designs ({counted});"
        f" {report['evaluated']} compiled and simulated;"
        f" hypervolume {report['hypervolume'][-1]:.4f}"
    )
    for name in names:
        console.print(f"{name}: {report['marks'][name]}")
    made = ", ".join(f"{count:,} by {name}" for name, count in report["chosen_by"].items())
    console.print(f"choices for layers of these designs: {made}")
    for ranking in report["rankings"]:
        if ranking["of"] in names and len(ranking["by"]) > 1:
            console.print(
                f"{ranking['of']}: {ranking['agreement']}; Kendall's tau of all"
                f" {ranking['designs']} designs {ranking['kendall']:.2f}"
            )
