"""The lines of Amaranth source that signals of a netlist come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[2]
_SOURCE = re.compile(r'src = "([^"]*)"')
_BIT = re.compile(r"\[\d+\]$")


def relative_sources(text: str) -> str:
    """Verilog whose lines of source do not depend on the place of the package."""
    return _SOURCE.sub(_relative, text)


def _relative(match: re.Match[str]) -> str:
    """Source lines by their place in the package; those of libraries by file name."""
    parts = []
    for source in match[1].split("|"):
        path, _, line = source.rpartition(":")
        place = Path(path)
        if place.resolve().is_relative_to(_PACKAGE) and "site-packages" not in path:
            parts.append(f"{place.resolve().relative_to(_PACKAGE).as_posix()}:{line}")
        else:
            parts.append(f"{place.name}:{line}")
    return f'src = "{"|".join(parts)}"'


def signal_sources(module: dict[str, Any]) -> dict[str, str]:
    """The Amaranth line of every signal, and of every component by its path, from the module of a
    netlist.
    """
    named = {**module["cells"], **module["netnames"]}
    sources = {}
    for name, item in named.items():
        attributes = item["attributes"]
        lines = "|".join(attributes.get(key, "") for key in ("src", "module_src", "cell_src"))
        line = next((x for x in lines.split("|") if x.startswith("hw/")), None)
        if line is not None:
            sources[name] = line
    return sources


def source_of(signal: str, sources: dict[str, str]) -> str | None:
    """The source line of the signal, or of the innermost component that it is in."""
    name = _BIT.sub("", signal)
    while name and name not in sources:
        name = name.rpartition(".")[0]
    return sources.get(name)
