"""Read a page of ``vdla.pages`` as a test sees it: without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

#: Attributes that make a browser load something.
_LOADING = {"src", "srcset", "poster", "data", "action", "formaction", "background", "ping"}
_VOID = {"meta", "link", "br", "hr", "img", "input", "base"}


@dataclass
class Page(HTMLParser):
    """What stands in a page.

    Attributes
    ----------
    sections : the headings of sections
    facts : names and values
    tables : by caption: the names of the columns, and rows of cells; numbers are numbers again
    data : of the charts
    loads : what a browser would load
    """

    sections: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    tables: dict[str, tuple[list[str], list[list[Any]]]] = field(default_factory=dict)
    data: list[dict[str, Any]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    charts: list[int] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    text: str = ""
    _open: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    _words: str = ""
    _table: tuple[list[str], list[list[Any]]] = ([], [])

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what would be loaded, and begin rows."""
        known = dict(attrs)
        self.loads += [str(value) for name, value in attrs if name in _LOADING]
        href = str(known.get("href", "#"))
        if tag == "link" or not href.startswith("#"):
            self.loads.append(href)
        if tag == "a":
            self.links.append(href[1:])
        self.ids += [str(known["id"])] if "id" in known else []
        if tag == "figure":
            self.charts.append(int(str(known["data-chart"])))
        if tag == "tr":
            self._table[1].append([])
        if tag not in _VOID:
            self._open.append((tag, known))
        self._words = ""

    def handle_data(self, data: str) -> None:
        """Collect words, and look for loads in styles and scripts."""
        self._words += data
        inside, attributes = self._open[-1] if self._open else ("", {})
        if attributes.get("id") == "data":
            assert "<" not in data  # nothing in it can end the script
        elif inside in ("style", "script"):
            self.loads += re.findall(r"@import|url\(|fetch\(|XMLHttp|import\(|WebSocket", data)
            addresses = re.findall(r"(?:https?|wss?|ftp):[^\s\"'<>]+", data)
            self.loads += [a for a in addresses if a != "http://www.w3.org/2000/svg"]
        else:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        """Take what an element says."""
        opened, attributes = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"
        words = self._words
        match tag:
            case "h2":
                self.sections.append(words)
            case "dt":
                self.facts[words] = ""
            case "dd":
                self.facts[list(self.facts)[-1]] = words
            case "caption":
                self._table = ([], [])
                assert words not in self.tables, words
                self.tables[words] = self._table
            case "th":
                self._table[0].append(self._name)
            case "button":
                self._name = words
            case "td":
                number = attributes.get("data-value")
                self._table[1][-1].append(words if number is None else float(number))
            case "script" if attributes.get("id") == "data":
                self.data = json.loads(words)
        self._words = ""

    def rows(self, caption: str) -> list[dict[str, Any]]:
        """The rows of a table, each by the names of columns."""
        columns, rows = self.tables[caption]
        return [dict(zip(columns, row, strict=True)) for row in rows if row]


def read(text: str) -> Page:
    """Read a page, which must be whole: every element is closed."""
    page = Page()
    page.feed(text)
    page.close()
    assert not page._open, page._open
    assert page.charts == list(range(len(page.data)))
    assert set(page.links) <= set(page.ids)
    return page
