"""What all commands print: JSON, tables, numbers and progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..runtime.files import write_text


def emit(
    command: str,
    body: dict[str, Any],
    json_file: str | None,
    show: Callable[[Console, dict[str, Any]], object],
    params: HwParams | None = None,
    memory: MemoryParams | None = None,
    seed: int | None = None,
) -> None:
    """As :func:`show_report`: the fields that every report begins with, then ``body``."""
    from ..report.report import header

    show_report(header(command, params, memory, seed) | body, json_file, show)


def show_report(
    report: dict[str, Any],
    json_file: str | None,
    show: Callable[[Console, dict[str, Any]], object],
) -> None:
    """Let ``show`` print a report, and write it as JSON where a file is named; ``-`` prints it as
    JSON instead.
    """
    if json_file == "-":
        print(json.dumps(report, indent=2))
        return
    if json_file is not None:
        write_text(json_file, json.dumps(report, indent=2) + "\n")
    wide = None if sys.stdout.isatty() else 160  # pipes and files have no width to fit
    show(Console(width=wide, highlight=False, markup=False), report)


class Update(Protocol):
    """Shows how much is done, of how much in all, what else is told of it, and of what."""

    def __call__(self, done: int, total: int, told: str = "", what: str = ...) -> None: ...


@contextmanager
def progress_bar(what: str) -> Iterator[Update]:
    """A progress bar on standard error; it is drawn only if that is a terminal. The caller gets the
    function that updates it.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=None, told="")

        def update(done: int, total: int, told: str = "", what: str = what) -> None:
            bar.update(task, completed=done, total=total, told=told, description=what)

        yield update


def show_table(
    out: Console, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1
) -> None:
    """Print a table of these rows; ``left`` as of :func:`new_table`."""
    table = new_table(title, *columns, left=left)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def new_table(title: str, *columns: str, left: int = 1) -> Table:
    """A table whose first ``left`` columns hold text; the others hold numbers."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    return table


def decimals(value: float | None, places: int = 3) -> str:
    """A number with so many decimals; nothing for None."""
    return "" if value is None else f"{value:.{places}f}"


def settings(values: Mapping[str, object]) -> str:
    """Names and their values, in a line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def percent(value: float | None) -> str:
    """A fraction in percent; nothing for None."""
    return "" if value is None else f"{100 * value:.1f} %"


def count(value: int | None) -> str:
    """A number with commas between thousands; nothing for None."""
    return "" if value is None else f"{value:,}"
