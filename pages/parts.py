"""What pages are made of: facts, tables and charts.

A chart's class has what its script of the same name in ``assets/`` draws, and a table with the same
numbers, for people who cannot see the picture or want to copy them. Numbers are plain, without
units; titles say the units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeAlias

Cell: TypeAlias = "str | int | float | None"


@dataclass(frozen=True)
class Facts:
    """Names with values, in a box."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers, which a click on a column's name sorts.

    Attributes
    ----------
    columns : the names; those of fractions end in ``%``, and are shown as percent
    rows : cells by column; None is an empty cell
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture, a sentence on how to read it, and its numbers."""

    kind: ClassVar[str]
    title: str
    note: str
    table: Table

    def data(self) -> dict[str, Any]:
        """What the chart's script draws, as JSON."""
        values = asdict(self)
        return {"kind": self.kind} | {k: v for k, v in values.items() if k not in ("note", "table")}


@dataclass(frozen=True)
class Series:
    """Something that a chart has a colour for: colours are numbered from 0 to 7."""

    name: str
    colour: int


@dataclass(frozen=True)
class View:
    """One way to fill bars: for each row a label, and the length of each series. The scale reaches
    ``longest`` at least, so that several charts can have the same.
    """

    name: str
    labels: Sequence[str]
    values: Sequence[Sequence[float]]
    longest: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Horizontal bars, each made of pieces: a row for each label. A person chooses among views."""

    kind: ClassVar[str] = "bars"
    series: Sequence[Series]
    views: Sequence[View]


@dataclass(frozen=True)
class Slices:
    """Pieces of time, a value of each list for each: the row, the lane of the row (slices of one
    lane do not overlap), the first cycle, how many, the layer's and the text's numbers, how many
    instructions were joined, and in how many of the cycles one of them runs.
    """

    row: Sequence[int]
    lane: Sequence[int]
    start: Sequence[int]
    cycles: Sequence[int]
    label: Sequence[int]
    text: Sequence[int]
    count: Sequence[int]
    active: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Timeline(Chart):
    """Rows against time, to zoom and move. Charts with the same ``link`` show the same time."""

    kind: ClassVar[str] = "timeline"
    end: int
    rows: Sequence[str]
    labels: Sequence[str]
    texts: Sequence[str]
    slices: Slices
    link: str = ""


@dataclass(frozen=True)
class Point:
    """A point of a scatter: its name is written beside it, ``facts`` are shown when it is chosen.
    ``series`` is the number of its colour and shape.
    """

    name: str
    x: float
    y: float
    series: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """A line through points."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Scatter(Chart):
    """Points that can be chosen, and lines, on axes that are logarithmic or not. The axes reach the
    places of ``also``, too, so that several charts can have the same.
    """

    kind: ClassVar[str] = "scatter"
    x_title: str
    y_title: str
    points: Sequence[Point]
    series: Sequence[Series] = ()
    lines: Sequence[Line] = ()
    log_axes: bool = True
    also: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Axis:
    """An axis of parallel coordinates."""

    name: str


@dataclass(frozen=True)
class Across:
    """A line across parallel axes: a value for each. ``series`` is the number of its colour."""

    name: str
    values: Sequence[float]
    series: int = 0


@dataclass(frozen=True, kw_only=True)
class Parallel(Chart):
    """An axis for each of several quantities, a line for each thing that has them all."""

    kind: ClassVar[str] = "parallel"
    axes: Sequence[Axis]
    lines: Sequence[Across]
    series: Sequence[Series]


@dataclass(frozen=True)
class Described:
    """Something with facts, and a text to copy."""

    name: str
    facts: Mapping[str, str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Designs(Chart):
    """Two of several things side by side; what is chosen in another chart of the page is shown."""

    kind: ClassVar[str] = "designs"
    designs: Sequence[Described]


@dataclass(frozen=True)
class Steps:
    """The values of one line, each from its place to the next."""

    series: Series
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class StepLines(Chart):
    """Lines of steps over time; the steps divide the time from 0 to ``end`` evenly."""

    kind: ClassVar[str] = "steps"
    end: int
    y_title: str
    y_end: float
    lines: Sequence[Steps]
    link: str = ""


@dataclass(frozen=True)
class Area:
    """A rectangle: from one x to another, from one y to another."""

    name: str
    x: tuple[float, float]
    y: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Areas(Chart):
    """Rectangles with names over time, such as tensors in memory."""

    kind: ClassVar[str] = "areas"
    end: int
    y_title: str
    y_end: float
    areas: Sequence[Area]
    link: str = ""


@dataclass(frozen=True)
class Beside:
    """Parts beside each other where there is room, for example those of two designs."""

    parts: Sequence[Part]


Part: TypeAlias = "Facts | Table | Chart | Beside"


@dataclass(frozen=True)
class Section:
    """Parts under a heading, and a few sentences on what they show."""

    title: str
    text: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A whole page: its title, what it says in a few sentences, facts, and sections."""

    title: str
    summary: Sequence[str]
    facts: Facts
    sections: Sequence[Section]
