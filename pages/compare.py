"""The page of two reports of ``vdla run`` side by side: ``vdla compare --html``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..isa.errors import VdlaError
from ..report.compare import host_lines, moved_unit
from .layers import (
    Report,
    dram_bars,
    on_accelerator,
    report_facts,
    roofline,
    stall_bars,
)
from .page import write_page
from .parts import Bars, Beside, Chart, Facts, Page, Scatter, Section, Series, Table, View

#: The colours of the two reports where they share a chart.
_COLOURS = (2, 1)


def compare_page(a: Report, b: Report, compared: dict[str, Any], names: tuple[str, str]) -> str:
    """The page as HTML.

    Parameters
    ----------
    a, b : reports of ``vdla run`` on the accelerator
    compared : what :func:`~vdla.report.compare.compare` says of them
    names : of their files, which must differ for a person to tell them apart

    Raises
    ------
    VdlaError
        For reports of anything else, and of an older version, which lack what the charts show.
    """
    for report, name in ((a, names[0]), (b, names[1])):
        _check(report, name)
    ratio = b["cycles"] / a["cycles"]
    moved = compared["layers_moved"]
    text = [f"{names[0]}: {a['cycles']:,} cycles. {names[1]}: {b['cycles']:,}, {ratio:.3f} of it."]
    most = f", {moved[0]['layer']} furthest" if moved else ""
    text.append(f"{len(moved)} layers moved{most}.")
    text = [f"{line}." for line in host_lines(compared, names)] + text
    sections = list(_sections(a, b, compared, names))
    return write_page(Page(f"{names[0]} and {names[1]}", text, _facts(a, b, names), sections))


def _facts(a: Report, b: Report, names: tuple[str, str]) -> Facts:
    """What both have in common once, the rest of each by its name."""
    old, new = report_facts(a).values, report_facts(b).values
    found = {name: value for name, value in old.items() if new.get(name) == value}
    for which, values in zip(names, (old, new), strict=True):
        found |= {f"{name}, {which}": v for name, v in values.items() if name not in found}
    return Facts(found)


def _check(report: Report, name: str) -> None:
    layers = on_accelerator(report) if report["command"] == "run" else []
    if not layers or any("dram" not in layer for layer in layers):
        raise VdlaError(
            f"html: expected a report of vdla run on the accelerator by this version, got {name};"
            " make it anew with vdla run --json"
        )


def _sections(
    a: Report, b: Report, compared: dict[str, Any], names: tuple[str, str]
) -> Iterator[Section]:
    yield Section(
        "What changed",
        "Settings and knobs that differ: of the hardware, of the memory, of layers.",
        [_knobs(compared, names), _numbers(compared, names)],
    )
    yield Section(
        "Layers that moved",
        "Cycles of each layer in both. The table is sorted by how far they moved.",
        [_layers(a, b, compared, names)],
    )
    charts = (("Units", stall_bars), ("Roofline", roofline), ("DRAM traffic", dram_bars))
    for title, chart in charts:
        one, other = chart(a), chart(b)
        pair = (_alike(one, other), names[0]), (_alike(other, one), names[1])
        yield Section(
            title,
            f"Left or first {names[0]}, right or below {names[1]}, on the same scale.",
            [Beside([_named(part, name) for part, name in pair])],
        )


def _alike(one: Chart, other: Chart) -> Chart:
    """The first chart, with axes that reach as far as the other's."""
    match one, other:
        case Bars(), Bars():
            longest = [max(map(sum, view.values), default=0.0) for view in other.views]
            views = [replace(v, longest=x) for v, x in zip(one.views, longest, strict=True)]
            return replace(one, views=views)
        case Scatter(), Scatter():
            corners = [corner for line in other.lines for corner in line.points]
            return replace(one, also=[*corners, *((point.x, point.y) for point in other.points)])
    return one


def _named(chart: Chart, name: str) -> Chart:
    """The chart with the report's name in its titles."""
    table = replace(chart.table, title=f"{chart.table.title}, {name}")
    return replace(chart, title=f"{chart.title}: {name}", table=table)


def _knobs(compared: dict[str, Any], names: tuple[str, str]) -> Table:
    rows = [
        ("settings", name, str(old), str(new))
        for name, (old, new) in compared["settings"].items()
        if old != new
    ]
    rows += [
        (row["where"], row["knob"], _shown(row["a"]), _shown(row["b"]))
        for row in compared["knobs_changed"]
    ]
    return Table("Settings and knobs", ("of", "name", *names), rows)


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _numbers(compared: dict[str, Any], names: tuple[str, str]) -> Table:
    rows = [
        (row["metric"], row["a"], row["b"], row["ratio"])
        for row in compared["rows"]
        if row["a"] != row["b"]
    ]
    return Table("Numbers that differ", ("metric", *names, "ratio"), rows)


def _layers(a: Report, b: Report, compared: dict[str, Any], names: tuple[str, str]) -> Bars:
    before = {layer["name"]: layer["cycles"] for layer in on_accelerator(a)}
    after = {layer["name"]: layer["cycles"] for layer in on_accelerator(b)}
    labels = [f"{layer} ({name})" for layer in before if layer in after for name in names]
    values = [
        value for layer in before if layer in after
        for value in ([before[layer], 0], [0, after[layer]])
    ]  # fmt: skip
    moved = [
        (row["layer"], row["a"], row["b"], row["delta"], row["ratio"])
        for row in compared["layers_moved"]
    ]
    return Bars(
        title="Cycles by layer",
        note=f"{len(moved)} of {len(labels) // 2} layers moved.",
        table=Table(
            f"Layers that moved, in {moved_unit(compared)}",
            ("layer", *names, "difference", "ratio"),
            moved,
        ),
        series=[Series(n, colour) for n, colour in zip(names, _COLOURS, strict=True)],
        views=[View("cycles", labels, values)],
    )
