"""Write a page as one HTML file: text and tables as HTML, data of charts as JSON, and the style and
scripts of ``assets/`` inside. A policy in the page forbids the browser to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from ..report.report import significant
from .parts import Beside, Cell, Chart, Facts, Page, Part, Section, Table

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style></head><body>
"""
#: Scripts around those of the charts.
_FIRST, _LAST = "kit", "start"


def write_page(page: Page) -> str:
    """The text of the HTML file."""
    charts = list(_charts(part for section in page.sections for part in section.parts))
    numbers = {id(chart): number for number, chart in enumerate(charts)}
    body = [
        _HEAD.format(title=escape(page.title), style=_asset("page.css")),
        f"<header><h1>{escape(page.title)}</h1>",
        *(f"<p class='summary'>{escape(text)}</p>" for text in page.summary),
        *_part(page.facts, numbers),
        *_contents(page.sections),
        "</header><main>",
        *(text for section in page.sections for text in _section(section, numbers)),
        "</main>",
        f"<script type='application/json' id='data'>{_json(charts)}</script>",
        f"<script>{_scripts(charts)}</script>",
        "</body></html>\n",
    ]
    return "\n".join(body)


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text("utf-8")


def _charts(parts: Sequence[Part] | Iterator[Part]) -> Iterator[Chart]:
    """All charts, in the order of the page."""
    for part in parts:
        if isinstance(part, Beside):
            yield from _charts(part.parts)
        elif isinstance(part, Chart):
            yield part


def _json(charts: Sequence[Chart]) -> str:
    text = json.dumps([chart.data() for chart in charts], separators=(",", ":"))
    return text.replace("<", "\\u003c")  # so that no name in it ends the script


def _scripts(charts: Sequence[Chart]) -> str:
    kinds = dict.fromkeys(chart.kind for chart in charts)
    names = (_FIRST, *kinds, _LAST)
    return '"use strict";\n(() => {\n' + "\n".join(_asset(f"{n}.js") for n in names) + "})();"


def _anchor(title: str) -> str:
    return "-".join(word for word in "".join(c if c.isalnum() else " " for c in title).split())


def _contents(sections: Sequence[Section]) -> Iterator[str]:
    links = (f"<a href='#{_anchor(s.title)}'>{escape(s.title)}</a>" for s in sections)
    yield f"<nav aria-label='Sections'>{' '.join(links)}</nav>"


def _section(section: Section, numbers: dict[int, int]) -> Iterator[str]:
    yield f"<section id='{_anchor(section.title)}'><h2>{escape(section.title)}</h2>"
    yield f"<p>{escape(section.text)}</p>"
    for part in section.parts:
        yield from _part(part, numbers)
    yield "</section>"


def _part(part: Part, numbers: dict[int, int]) -> Iterator[str]:
    match part:
        case Facts():
            yield "<dl class='facts'>"
            for name, value in part.values.items():
                yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            yield "</dl>"
        case Table():
            yield from _table(part)
        case Chart():
            yield f"<figure data-chart='{numbers[id(part)]}' class='{part.kind}'>"
            yield f"<figcaption>{escape(part.title)}</figcaption><div class='plot'></div>"
            yield f"<p class='note'>{escape(part.note)}</p>"
            yield "<details><summary>The numbers</summary>"
            yield from _table(part.table)
            yield "</details></figure>"
        case Beside():
            yield "<div class='beside'>"
            for inner in part.parts:
                yield "<div>"
                yield from _part(inner, numbers)
                yield "</div>"
            yield "</div>"


def _table(table: Table) -> Iterator[str]:
    yield "<div class='scroll' tabindex='0'><table>"
    yield f"<caption>{escape(table.title)}</caption><thead><tr>"
    for number, name in enumerate(table.columns):
        counts = any(isinstance(row[number], int | float) for row in table.rows)
        kind = " class='n'" if counts else ""
        yield f"<th scope='col'{kind}><button type='button'>{escape(name)}</button></th>"
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = zip(row, table.columns, strict=True)
        yield f"<tr>{''.join(_cell(value, name) for value, name in cells)}</tr>"
    yield "</tbody></table></div>"


def _cell(value: Cell, column: str) -> str:
    match value:
        case None:
            return "<td></td>"
        case str():
            return f"<td>{escape(value)}</td>"
        case _ if column.endswith("%"):
            shown = f"{100 * value:.1f}"
        case int():
            shown = f"{value:,}"
        case _:
            shown = significant(value, 4)
    return f"<td class='n' data-value='{value}'>{shown}</td>"
