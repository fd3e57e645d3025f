"""Which nodes run on which target, and in which parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..isa.errors import VdlaError
from .choose.space import Refusal
from .graph.ir import Graph, Node
from .targets.base import Part, Target

#: The reason of a node that runs on the host although the target takes it.
BEHIND_HOST = "too little for a program of its own behind the host; {title} could run it: {how}"

Row = tuple[Node, ...]


def place(graph: Graph, target: Target) -> Graph:
    """Set ``target`` and ``reason`` of every node: this target where it takes the node, else its
    host.

    Raises
    ------
    VdlaError
        For a node that nothing takes, naming it.
    """
    nodes = []
    for node in graph.nodes:
        taken, where = target.takes(graph, node), target
        if isinstance(taken, Refusal):
            if target.host is None:
                raise VdlaError(f"node {node.name!r}: {taken.reason}")
            taken, where = taken.reason, target.host
        nodes.append(replace(node, target=where.name, reason=node.reason or taken))
    return graph.with_nodes(nodes)


def leave_host_for_enough(graph: Graph, target: Target) -> Graph:
    """Move nodes to the host where they would need another program of the target, after an earlier
    one, that does not pay.
    """
    if target.host is None:
        return graph
    places = {node.output: node.target for node in graph.nodes}
    while True:
        rows = [nodes for where, nodes in _rows(graph, target, places) if where is target]
        small = [node for nodes in rows[1:] if not target.worth(graph, nodes) for node in nodes]
        if not small:
            break
        places |= {node.output: target.host.name for node in small}
    host = target.host.name

    def settled(node: Node) -> Node:
        if places[node.output] == node.target:
            return node
        reason = BEHIND_HOST.format(title=target.title, how=node.reason)
        return replace(node, target=host, reason=reason)

    return graph.with_nodes([settled(node) for node in graph.nodes])


def split_parts(graph: Graph, target: Target) -> list[tuple[Target, Part]]:
    """The parts of a graph in running order, in turn for host and target, as few as dependencies
    allow. The last part of the host also has the outputs that are constants.
    """
    places = {node.output: node.target for node in graph.nodes}
    rows = _rows(graph, target, places)
    last = target.host or target
    constants = [name for name in graph.outputs if graph[name].is_constant]
    if not rows or (constants and not any(where is last for where, _ in rows)):
        rows.append((last, ()))
    parts: list[tuple[Target, Part]] = []
    read = {*graph.outputs}
    for where, nodes in reversed(rows):
        wanted = [node.output for node in nodes if node.output in read]
        if where is last:
            wanted, constants = [*wanted, *constants], []
        parts.append((where, Part(graph, nodes, wanted)))
        read |= {name for node in nodes for name in node.inputs}
    return parts[::-1]


def _rows(graph: Graph, target: Target, places: Mapping[str, str]) -> list[tuple[Target, Row]]:
    """Group nodes greedily: all that can run on the host, then all that can run on the target, and
    so on.
    """
    turns = [target.host, target] if target.host else [target]
    for node in graph.nodes:
        if places[node.output] not in {turn.name for turn in turns}:
            raise VdlaError(
                f"node {node.name!r}: expected a target {' or '.join(turn.name for turn in turns)},"
                f" got {places[node.output]!r}"
            )
    waiting = list(graph.nodes)
    missing = {node.output for node in waiting}
    rows: list[tuple[Target, Row]] = []
    turn = 0
    while waiting:
        row = []
        for node in waiting:
            ready = not missing & {*node.inputs}
            if ready and places[node.output] == turns[turn].name:
                row.append(node)
                missing.discard(node.output)
        if row:
            rows.append((turns[turn], tuple(row)))
        waiting = [node for node in waiting if node.output in missing]
        turn = (turn + 1) % len(turns)
    return rows
