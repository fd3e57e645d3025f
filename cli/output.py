"""What all commands print: JSON, tables, numbers and progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

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
    out: Console,
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    left: int = 1,
    first_to_go: Sequence[str] = (),
) -> None:
    """Print a table of these rows; ``left`` and ``first_to_go`` as of :func:`new_table`."""
    table = new_table(title, *columns, left=left, first_to_go=first_to_go)
    for row in rows:
        table.add_row(*row)
    out.print(table)


#: A column of text that is folded has at least so many characters.
LEAST_TEXT = 8


class Folding(Table):
    """A table for narrow terminals, too: headers and text are folded, numbers never. Where that is
    not enough, columns are left out: those of ``first_to_go`` in order, then from the right, text
    before the first number. A line below says which.
    """

    def __init__(self, first_to_go: Sequence[str] = (), **options: Any):
        super().__init__(**options)
        self.first_to_go = first_to_go

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - 1  # a border on the left; each column has 2 spaces and a border
        longest = [max(map(len, map(str, c.cells)), default=0) for c in self.columns]
        wide = [max(n, len(str(c.header))) for n, c in zip(longest, self.columns, strict=True)]
        if sum(width + 3 for width in wide) <= room:
            yield from super().__rich_console__(console, options)
            return
        least = [
            max(n, *map(len, str(c.header).split() or [""])) if c.justify == "right"
            else min(width, LEAST_TEXT)
            for n, width, c in zip(longest, wide, self.columns, strict=True)
        ]  # fmt: skip
        kept = list(range(len(self.columns)))
        while len(kept) > 1 and sum(least[i] + 3 for i in kept) > room:
            kept.remove(self._next_to_go(kept))
        folded = copy(self)
        folded.columns = [
            replace(
                c, _index=place, overflow="fold", width=least[i] if c.justify == "right" else None
            )
            for place, i in enumerate(kept)
            for c in (self.columns[i],)
        ]
        yield from Table.__rich_console__(folded, console, options)
        gone = [str(c.header) for i, c in enumerate(self.columns) if i not in kept]
        if gone:
            yield Text(f"no room for {', '.join(gone)}; --json has them")

    def _next_to_go(self, kept: list[int]) -> int:
        """Which of the columns that are kept is left out next."""
        named = {str(self.columns[i].header): i for i in kept[1:]}
        numbers = [i for i in kept if self.columns[i].justify == "right"]
        first = next((named[name] for name in self.first_to_go if name in named), None)
        if first is not None:
            return first
        return kept[-2] if numbers[:1] == kept[-1:] and len(kept) > 2 else kept[-1]


def new_table(title: str, *columns: str, left: int = 1, first_to_go: Sequence[str] = ()) -> Table:
    """A table whose first ``left`` columns hold text; the others hold numbers. In narrow terminals
    those of ``first_to_go`` are the first to be left out.
    """
    table = Folding(first_to_go, title=title, title_justify="left")
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
