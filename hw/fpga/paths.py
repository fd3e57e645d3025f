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


def critical_path(sdf: Iterable[str], mhz: float) -> list[dict[str, Any]]:
    """The longest path of the clock that reaches ``mhz``.

    Parameters
    ----------
    sdf : lines of the SDF file
    mhz : what nextpnr estimates for the clock that is critical

    Returns
    -------
    list
        The steps, as in the reports of nextpnr: ``delay`` in ns, and for wires ``net``, here the
        name of the cell that drives it; ``to`` is the pin's ``cell``.
    """
    longest = (max(paths, key=_ns, default=[]) for paths in longest_paths(sdf))
    return min(longest, key=lambda path: abs(_ns(path) - 1000 / mhz), default=[])


def longest_paths(sdf: Iterable[str]) -> Iterator[Iterator[list[dict[str, Any]]]]:
    """For each clock: for every input of a register the longest path that ends there."""
    delays = _Delays(sdf)
    into: dict[Pin, list[tuple[Pin, int]]] = defaultdict(list)
    waits: dict[Pin, int] = defaultdict(int)
    for begin, end, ps in delays.ways:
        into[begin].append((end, ps))
        waits[end] += 1
    ready = [pin for pin in into if not waits[pin]]
    # Every pin after those that it waits for.
    for pin in ready:
        for end, _ in into[pin]:
            waits[end] -= 1
            if not waits[end]:
                ready.append(end)
    for clocks in delays.clocks:
        arrival: dict[Pin, tuple[int, Pin | None]] = dict.fromkeys(clocks, (0, None))
        for pin in ready:
            if pin in arrival:
                for end, ps in into[pin]:
                    at = arrival[pin][0] + ps
                    if end not in arrival or arrival[end][0] < at:
                        arrival[end] = at, pin
        yield (
            _steps(arrival, end, ps)
            for (end, clock), ps in delays.setups.items()
            if clock in clocks and end in arrival
        )


class _Delays:
    """What an SDF file says: (from, to, ps) of wires and cells; ps of setup by pins and those that
    clock them; for each clock the pins that it reaches.
    """

    def __init__(self, sdf: Iterable[str]):
        self.ways: list[tuple[Pin, Pin, int]] = []
        self.setups: dict[tuple[Pin, Pin], int] = {}
        drivers: dict[Pin, Pin] = {}
        cell = ""
        for line in sdf:
            kind, *words = line.strip().replace("\\", "").strip("()").split(" ")
            if kind == "INSTANCE":
                cell = words[0]
            elif kind == "INTERCONNECT":
                begin, end = _pin(words[0]), _pin(words[1])
                drivers[end] = begin
                self.ways.append((begin, end, _largest(line)))
            elif kind == "IOPATH":
                self.ways.append((Pin(cell, words[0]), Pin(cell, words[1]), _largest(line)))
            elif kind == "SETUPHOLD":
                pin, clock = (Pin(cell, words[n].strip("()")) for n in (1, 3))
                self.setups[pin, clock] = _largest(line)
        reached: dict[Pin | None, set[Pin]] = defaultdict(set)
        for _, clock in self.setups:
            reached[drivers.get(clock)].add(clock)
        self.clocks = list(reached.values())


def _ns(path: list[dict[str, Any]]) -> float:
    return sum(step["delay"] for step in path)


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
