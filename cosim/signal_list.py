"""A list of signals for a waveform viewer: the handshakes of every unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..runtime.files import write_text

#: Signals that a bench watches first: the two sides of a handshake, and what is passed.
_WATCHED = re.compile(
    r"\w+__(valid|ready|payload(\.index)?)|axi_\w+(valid|ready)|clk|cycle|running|started|ended"
)
#: Signals are listed of the core and its units.
_DEPTH = 2


def write_signal_list(waves: Path) -> None:
    """Write a list beside a waveform, with the suffix ``.gtkw``, which GTKWave and Surfer open.

    Parameters
    ----------
    waves : the waveform (.vcd), whose header names the signals
    """
    lines, scope_before = [f'[dumpfile] "{waves.absolute()}"', "[timestart] 0"], None
    for scope, signal in sorted(_signals(waves), key=lambda found: (len(found[0]), found)):
        if scope != scope_before:
            lines.append(f"-{'.'.join(scope)}")
            scope_before = scope
        lines.append(".".join((*scope, signal)))
    write_text(waves.with_suffix(".gtkw"), "\n".join(lines) + "\n")


def _signals(waves: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """The scope and the name, with its bits, of each signal to watch."""
    scopes: list[str] = []
    with waves.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            match line.split():
                case ["$scope", _, name, "$end"]:
                    scopes.append(name)
                case ["$upscope", "$end"]:
                    scopes.pop()
                case ["$var", _, _, _, name, *bits, "$end"]:
                    if scopes[0][0] != "$" and len(scopes) <= _DEPTH and _WATCHED.fullmatch(name):
                        yield tuple(scopes), name + "".join(bits)
                case ["$enddefinitions", *_]:
                    return
