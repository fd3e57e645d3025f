"""``vdla explore``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from .files import Merges, Reads
from .options import MOST_ROUNDS, MOST_THREADS, Html, JsonFile
from .output import emit, new_table, write_text

if TYPE_CHECKING:
    from ..explore.exploration import State

#: Where results go if nothing is said.
DEFAULT_RESULTS = Path("explore.jsonl")


def explore(
    spec_file: Annotated[
        Path, typer.Argument(metavar="SPEC", help="What is explored (.toml)."), Reads(".toml")
    ],
    trials: Annotated[
        int | None, typer.Option(min=1, max=MOST_ROUNDS, help="Designs to compile and simulate.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Seed of all that is random.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_THREADS, help="Processes; as many as processors without it."),
    ] = None,
    results: Annotated[
        Path,
        typer.Option(metavar="F", help="File of what was measured, to read and to add to."),
        Merges(),
    ] = DEFAULT_RESULTS,
    html: Html = None,
    json_file: JsonFile = None,
) -> int:
    """Search for designs that suit networks within limits: the front of those that no other beats.
    Ctrl-C keeps all results; the same command goes on.
    """
    from dataclasses import replace

    from ..bench.sweep import Results
    from ..explore.exploration import Exploration
    from ..explore.report import make_report
    from ..explore.spec import Spec

    spec = Spec.load(spec_file)
    given = {"trials": trials, "seed": seed}
    spec = replace(spec, **{name: value for name, value in given.items() if value is not None})
    with _shown() as progress:
        exploration = Exploration(spec, Results(results), workers or os.cpu_count() or 1, progress)
        exploration.run()
    if not exploration.outcomes:
        raise VdlaError("interrupted before the first design was measured")
    report = make_report(exploration) | {"results": str(results)}
    if html is not None:
        from ..pages.explore import explore_page

        write_text(html, explore_page(report))
    emit(report, json_file, lambda console: _show(console, report))
    if exploration.interrupted:
        raise VdlaError(
            f"interrupted after {exploration.measured} of {spec.trials} designs; the same command"
            " goes on"
        )
    return 0 if exploration.front else 1


@contextmanager
def _shown() -> Iterator[Callable[[State], None]]:
    """Shows how far an exploration is, on standard error where that is a terminal."""

    def told(state: State) -> None:
        rate = state.measured / max(state.elapsed_s, 1e-9)
        left_s = (state.trials - state.measured) / rate
        status.update(
            f"{state.measured} of {state.trials} designs, {state.on_front} on the front,"
            f" hypervolume {state.hypervolume:.4f}, {3600 * rate:,.0f} an hour,"
            f" {left_s / 60:.0f} min left at most"
        )

    with Console(stderr=True).status("explore") as status:
        yield told


def _show(console: Console, report: dict[str, Any]) -> None:
    names = report["shown"]
    knobs = list(report["first"]["knobs"])
    table = new_table("front", "design", *names, *knobs)
    for number, design in enumerate([report["first"], *report["front"]]):
        label = "first" if number == 0 else str(number)
        values = [f"{design['values'][name]:,.6g}" for name in names]
        table.add_row(label, *values, *(f"{design['knobs'][name]:,}" for name in knobs))
    console.print(table)
    counted = ", ".join(f"{count} {rung}" for rung, count in report["rungs"].items())
    console.print(
        f"{sum(report['rungs'].values())} of {report['space']:,} designs ({counted});"
        f" {report['measured']} compiled and simulated; hypervolume {report['hypervolume']:.4f}"
    )
    for name in names:
        console.print(f"{name}: {report['marks'][name]}")
    if "energy_uj" in names:
        console.print(
            f"tables of energies agree on the order of {100 * report['agreed_order']:.0f} % of the"
            f" pairs of designs on the front: {', '.join(report['energy_tables'])}; none is of an"
            " FPGA"
        )
