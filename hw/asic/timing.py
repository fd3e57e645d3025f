"""Static timing: when the last signal of each net has settled, and the longest path to a register.

Delays and slews are those of the library's tables, with the capacitances of the pins that a net
has; wires have none. Clocks are ideal: all edges come at once, with no slew. Where arcs meet, the
latest arrival and the slowest slew count, each for itself. Ports of the core begin and end no path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...isa.errors import VdlaError
from ..fpga.sources import source_of
from .liberty import FALL, RISE, Arc, Pair
from .macros import Tiled
from .netlist import Bit, Instance, Netlist

_EDGES = (RISE, FALL)
#: The edges of an input that bring about an edge of an output, by the arc's sense.
_CAUSES = {
    "positive_unate": ((RISE,), (FALL,)),
    "negative_unate": ((FALL,), (RISE,)),
    "non_unate": (_EDGES, _EDGES),
}


class Node(NamedTuple):
    """A net that changes to 1 (:data:`RISE`) or to 0."""

    net: Bit
    edge: int


@dataclass(slots=True)
class Arrival:
    """When a change has happened at last: ns after the clock's edge, its slew in ns, through which
    cell, and because of which change; None for registers and macros.
    """

    ns: float
    slew_ns: float
    cell: str
    cause: Node | None


@dataclass(frozen=True)
class Path:
    """The longest path.

    Attributes
    ----------
    ns : from edge to edge, the register's setup included
    end : the register or macro where it ends
    setup_ns : for how long the signal must be there before the edge
    nodes : what changes on the way, with its arrival
    """

    ns: float
    end: str
    setup_ns: float
    nodes: list[tuple[Node, Arrival]]

    @property
    def mhz(self) -> float:
        """The fastest clock."""
        return 1000 / self.ns

    def steps(self, netlist: Netlist) -> list[dict[str, Any]]:
        """The path by signals of the design: [{ns, cells, signal, source}], ``cells`` since the
        signal before.
        """
        steps: list[dict[str, Any]] = []
        cells = 0

        def add(ns: float, signal: str) -> None:
            source = source_of(signal, netlist.sources)
            steps.append({"ns": ns, "cells": cells, "signal": signal, "source": source})

        for place, (node, arrival) in enumerate(self.nodes):
            cells += place > 0
            signal = netlist.name_of(node.net, arrival.cell)
            if signal is not None:
                add(arrival.ns, signal)
                cells = 0
        flop = next((one for one in netlist.instances if one.name == self.end), None)
        signal = None if flop is None else netlist.name_of(state_of(flop), flop.name)
        add(self.ns, signal or self.end)
        return steps


def state_of(flop: Instance) -> Bit:
    """The net of a flip-flop's output; the inverted one where it has no other."""
    outputs = [pin for pin in flop.cell.pins.values() if pin.direction == "output"]
    straight = [pin for pin in outputs if pin.function.strip("() ") == flop.cell.state]
    return next(flop.nets[pin.name] for pin in (*straight, *outputs) if pin.name in flop.nets)


class Timing:
    """The arrivals of a netlist. Raises VdlaError for logic whose output is its own input.

    Attributes
    ----------
    load_pf : by net, the capacitance of the pins that read it
    arrivals : by change of a net; those that no register brings about have none
    """

    def __init__(self, netlist: Netlist, memories: list[Tiled]):
        self.netlist, self.memories = netlist, memories
        self.load_pf = loads_pf(netlist, memories)
        self.arrivals: dict[Node, Arrival] = {}
        ways: list[Instance | tuple[Bit, tuple[Bit, ...], Tiled]] = []
        self._launch()
        for instance in netlist.instances:
            if not instance.cell.clock:
                ways.append(instance)
        for tiled in memories:
            for port in tiled.memory.reads:
                if not port.clocked:
                    ways.extend((net, port.address, tiled) for net in port.data)
        for way in in_order(ways):
            if isinstance(way, Instance):
                self._through(way)
            else:
                self._read(*way)

    def longest_path(self) -> Path:
        """The longest path between registers and macros. Raises VdlaError where there is none."""
        slowest = max(self.ends(), key=lambda end: end[0], default=None)
        if slowest is None:
            raise VdlaError("timing: expected a path between registers, the netlist has none")
        ns, end, setup_ns, last = slowest
        nodes, node = [], last
        while node is not None:
            arrival = self.arrivals[node]
            nodes.append((node, arrival))
            node = arrival.cause
        return Path(ns, end, setup_ns, nodes[::-1])

    def _launch(self) -> None:
        """What registers and macros show after the clock's edge."""
        for instance in self.netlist.instances:
            for arc, net in _arcs_to_outputs(instance) if instance.cell.clock else ():
                if arc.kind == "rising_edge":
                    for edge in _EDGES:
                        self._arrive(Node(net, edge), instance.name, arc, 0.0, 0.0, None)
        for tiled in self.memories:
            for port in tiled.memory.reads:
                for net in port.data if port.clocked else ():
                    for edge in _EDGES:
                        arrival = Arrival(tiled.macro.access_ns, 0.0, tiled.memory.name, None)
                        self.arrivals[Node(net, edge)] = arrival

    def _through(self, instance: Instance) -> None:
        nets, arrivals = instance.nets, self.arrivals
        for arc, net in _arcs_to_outputs(instance):
            given = nets.get(arc.related)
            if given is None:
                continue
            for edge in _EDGES:
                for cause in _CAUSES[arc.sense][edge]:
                    before = Node(given, cause)
                    at = arrivals.get(before)
                    if at is not None:
                        self._arrive(Node(net, edge), instance.name, arc, at.ns, at.slew_ns, before)

    def _arrive(
        self, node: Node, cell: str, arc: Arc, ns: float, slew_ns: float, cause: Node | None
    ) -> None:
        delay, slew = arc.delay[node.edge], arc.slew[node.edge]
        if delay is None:
            return
        load = self.load_pf.get(node.net, 0.0)
        ns += delay.at(slew_ns, load)
        out_ns = 0.0 if slew is None else slew.at(slew_ns, load)
        known = self.arrivals.get(node)
        if known is None:
            self.arrivals[node] = Arrival(ns, out_ns, cell, cause)
            return
        if known.ns < ns:
            known.ns, known.cell, known.cause = ns, cell, cause
        if known.slew_ns < out_ns:
            known.slew_ns = out_ns

    def _read(self, net: Bit, address: tuple[Bit, ...], tiled: Tiled) -> None:
        """A memory that is read within the cycle."""
        known = [Node(bit, edge) for bit in address for edge in _EDGES]
        known = [node for node in known if node in self.arrivals]
        if known:
            last = max(known, key=lambda node: self.arrivals[node].ns)
            ns = self.arrivals[last].ns + tiled.macro.access_ns
            for edge in _EDGES:
                self.arrivals[Node(net, edge)] = Arrival(ns, 0.0, tiled.memory.name, last)

    def ends(self) -> Iterator[tuple[float, str, float, Node]]:
        """For every input of a register or a macro: ns from edge to edge, the register's or macro's
        name, its setup in ns, what changes there.
        """
        for instance in self.netlist.instances:
            cell = instance.cell
            if not cell.clock:
                continue
            for arc in cell.pins[cell.next].arcs:
                if arc.kind == "setup_rising":
                    yield from self._end(instance.name, instance.nets[cell.next], arc.delay)
        for tiled in self.memories:
            memory, setup_ns = tiled.memory, tiled.macro.setup_ns
            ports = [*memory.writes, *(port for port in memory.reads if port.clocked)]
            for port in ports:
                data = port.data if port in memory.writes else ()
                for net in {*port.enable, *port.address, *data}:
                    for edge in _EDGES:
                        at = self.arrivals.get(Node(net, edge))
                        if at is not None:
                            yield at.ns + setup_ns, memory.name, setup_ns, Node(net, edge)

    def _end(self, name: str, net: Bit, setup: Pair) -> Iterator[tuple[float, str, float, Node]]:
        for edge in _EDGES:
            at, table = self.arrivals.get(Node(net, edge)), setup[edge]
            if at is not None and table is not None:
                setup_ns = table.at(at.slew_ns)
                yield at.ns + setup_ns, name, setup_ns, Node(net, edge)


def loads_pf(netlist: Netlist, memories: list[Tiled]) -> dict[Bit, float]:
    """By net, the capacitance of the pins that read it; a memory has a pin for each of its
    macros that an input goes to.
    """
    found: dict[Bit, float] = defaultdict(float)
    for instance in netlist.instances:
        for pin, net in instance.inputs().items():
            found[net] += instance.cell.pins[pin].capacitance_pf
    for tiled in memories:
        across = tiled.columns * tiled.rows
        for port, copies in (
            *((port, tiled.copies) for port in tiled.memory.writes),
            *((port, 1) for port in tiled.memory.reads),
        ):
            for net in port.address:
                found[net] += across * copies * tiled.macro.pin_pf
            for net in port.data if port in tiled.memory.writes else ():
                found[net] += tiled.rows * copies * tiled.macro.pin_pf
            for net in {*port.enable}:
                found[net] += across * copies * tiled.macro.pin_pf
    return found


def _arcs_to_outputs(instance: Instance) -> Iterator[tuple[Arc, Bit]]:
    for pin in instance.cell.pins.values():
        if pin.direction == "output" and pin.name in instance.nets:
            for arc in pin.arcs:
                yield arc, instance.nets[pin.name]


def in_order(ways: list[Any]) -> Iterator[Any]:
    """Cells, and memories that are read within a cycle, each after all that drive its inputs."""

    def nets(way: Any) -> tuple[list[Bit], list[Bit]]:
        if not isinstance(way, Instance):
            return list(way[1]), [way[0]]
        return [*way.inputs().values()], [*way.outputs().values()]

    readers: dict[Bit, list[int]] = defaultdict(list)
    waits, driven = [0] * len(ways), {net for way in ways for net in nets(way)[1]}
    for number, way in enumerate(ways):
        for net in nets(way)[0]:
            if net in driven:
                readers[net].append(number)
                waits[number] += 1
    ready = [number for number, count in enumerate(waits) if not count]
    for number in ready:
        yield ways[number]
        for net in nets(ways[number])[1]:
            for reader in readers[net]:
                waits[reader] -= 1
                if not waits[reader]:
                    ready.append(reader)
    if len(ready) < len(ways):
        stuck = next(number for number, count in enumerate(waits) if count)
        raise VdlaError(
            f"timing: expected logic without circles, got one through "
            f"{getattr(ways[stuck], 'name', ways[stuck])}"
        )
