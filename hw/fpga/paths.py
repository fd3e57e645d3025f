"""The longest paths of a placement that is not routed. nextpnr reports paths only of what it has
routed, but it writes the delays of every cell and wire as an SDF file, for wires its estimates.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

#: ``((MIN:TYP:MAX)``: delays in ps.
_LARGEST = re.compile(r"\(-?\d+:-?\d+:(-?\d+)\)")


class Pin(NamedTuple):
    """A pin of a cell."""

    cell: str
    port: str


def longest_path(sdf: Iterable[str]) -> list[dict[str, Any]]:
    """The longest path between two registers of the clock with most of them.

    Parameters
    ----------
    sdf : lines of the SDF file

    Returns
    -------
    list
        The steps, as in the reports of nextpnr: ``delay`` in ns, and for wires ``net``, here the
        name of the cell that drives it; ``to`` is the pin's ``cell`` and ``port``.
    """
    return max(longest_paths(sdf), key=lambda path: sum(step["delay"] for step in path), default=[])


def longest_paths(sdf: Iterable[str]) -> Iterator[list[dict[str, Any]]]:
    """For every register's input the longest path that ends there."""
    delays = _Delays(sdf)
    into: dict[Pin, list[tuple[Pin, int]]] = defaultdict(list)
    waits: dict[Pin, int] = defaultdict(int)
    for begin, end, ps in delays.wires + delays.cells:
        into[begin].append((end, ps))
        waits[end] += 1
    arrival: dict[Pin, tuple[int, Pin | None]] = dict.fromkeys(delays.clocks, (0, None))
    ready = [pin for pin in into if not waits[pin]]
    while ready:
        pin = ready.pop()
        for end, ps in into[pin]:
            if pin in arrival:
                at = arrival[pin][0] + ps
                if end not in arrival or arrival[end][0] < at:
                    arrival[end] = at, pin
            waits[end] -= 1
            if not waits[end]:
                ready.append(end)
    for end, ps in delays.setups.items():
        if end in arrival:
            yield _steps(arrival, end, ps)


class _Delays:
    """What an SDF file says: (from, to, ps) of wires and cells; the clock pins of the clock with
    most registers; ps of setup by the pins that it clocks.
    """

    def __init__(self, sdf: Iterable[str]):
        self.wires: list[tuple[Pin, Pin, int]] = []
        self.cells: list[tuple[Pin, Pin, int]] = []
        setups: dict[tuple[Pin, Pin], int] = {}
        cell = ""
        for line in sdf:
            kind, *words = line.strip().replace("\\", "").strip("()").split(" ")
            if kind == "INSTANCE":
                cell = words[0]
            elif kind == "INTERCONNECT":
                self.wires.append((_pin(words[0]), _pin(words[1]), _largest(line)))
            elif kind == "IOPATH":
                self.cells.append((Pin(cell, words[0]), Pin(cell, words[1]), _largest(line)))
            elif kind == "SETUPHOLD":
                pin, clock = (Pin(cell, words[n].strip("()")) for n in (1, 3))
                setups[pin, clock] = _largest(line)
        drivers = {end: begin for begin, end, _ in self.wires}
        readers = defaultdict(set)
        for _, clock in setups:
            readers[drivers.get(clock)].add(clock)
        self.clocks: set[Pin] = max(readers.values(), key=len, default=set())
        self.setups = {pin: ps for (pin, clock), ps in setups.items() if clock in self.clocks}


def _pin(name: str) -> Pin:
    return Pin(*name.rsplit("/", 1))


def _largest(line: str) -> int:
    """The slowest of the first delay of a line."""
    found = _LARGEST.search(line)
    return int(found[1]) if found else 0


def _steps(
    arrival: dict[Pin, tuple[int, Pin | None]], end: Pin, setup: int
) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"delay": setup / 1000, "to": {"cell": end.cell}}]
    pin: Pin | None = end
    while pin is not None:
        at, before = arrival[pin]
        if before is not None:
            step: dict[str, Any] = {"delay": (at - arrival[before][0]) / 1000}
            step["to"] = {"cell": pin.cell}
            if before.cell != pin.cell:
                step["net"] = before.cell
            steps.append(step)
        pin = before
    return steps[::-1]
