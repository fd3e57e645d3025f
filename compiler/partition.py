"""Which nodes run on which target, and in which parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ..isa.errors import VdlaError
from .choose.space import Refusal
from .graph.ir import Graph, Node
from .targets.base import Part, Target

#: The reason of a node that runs on the host although the target takes it.
BEHIND_HOST = "too little for a program of its own behind the host; {title} could run it: {how}"

Group = tuple[Node, ...]


def assign_targets(
    graph: Graph, target: Target, left: Mapping[str, str] = MappingProxyType({})
) -> Graph:
    """Set ``target`` and ``reason`` of every node: this target where it takes the node, else its
    host. The host also gets what is ``left`` to it: reasons by names of nodes.

    Raises
    ------
    VdlaError
        For a node that nothing takes, naming it.
    """
    nodes = []
    for node in graph.nodes:
        taken, where = target.takes(graph, node), target
        if node.name in left:
            taken = Refusal(left[node.name])
        if isinstance(taken, Refusal):
            if target.host is None:
                raise VdlaError(f"node {node.name!r}: {taken.reason}")
            taken, where = taken.reason, target.host
        nodes.append(replace(node, target=where.name, reason=node.reason or taken))
    return graph.with_nodes(nodes)


def drop_small_programs(graph: Graph, target: Target) -> Graph:
    """Move nodes to the host where they would need another program of the target, after an earlier
    one, that does not pay.
    """
    if target.host is None:
        return graph
    targets = {node.output: node.target for node in graph.nodes}
    while True:
        groups = [
            nodes for where, nodes in _group_by_target(graph, target, targets) if where is target
        ]
        small = [node for nodes in groups[1:] if not target.worth(graph, nodes) for node in nodes]
        if not small:
            break
        targets |= {node.output: target.host.name for node in small}
    host = target.host.name

    def settled(node: Node) -> Node:
        if targets[node.output] == node.target:
            return node
        reason = BEHIND_HOST.format(title=target.title, how=node.reason)
        return replace(node, target=host, reason=reason)

    return graph.with_nodes([settled(node) for node in graph.nodes])


def split_parts(graph: Graph, target: Target) -> list[tuple[Target, Part]]:
    """The parts of a graph in running order, in turn for host and target, as few as dependencies
    allow. The last part of the host also has the outputs that are constants.
    """
    targets = {node.output: node.target for node in graph.nodes}
    groups = _group_by_target(graph, target, targets)
    last = target.host or target
    constants = [name for name in graph.outputs if graph[name].is_constant]
    if not groups or (constants and not any(where is last for where, _ in groups)):
        groups.append((last, ()))
    found: list[tuple[Target, Part]] = []
    read = {*graph.outputs}
    for where, nodes in reversed(groups):
        wanted = [node.output for node in nodes if node.output in read]
        if where is last:
            wanted, constants = [*wanted, *constants], []
        found.append((where, Part(graph, nodes, wanted)))
        read |= {name for node in nodes for name in node.inputs}
    return found[::-1]


def _group_by_target(
    graph: Graph, target: Target, targets: Mapping[str, str]
) -> list[tuple[Target, Group]]:
    """Group nodes greedily: all that can run on the host, then all that can run on the target, and
    so on.
    """
    turns = [target.host, target] if target.host else [target]
    for node in graph.nodes:
        if targets[node.output] not in {turn.name for turn in turns}:
            raise VdlaError(
                f"node {node.name!r}: expected a target {' or '.join(turn.name for turn in turns)},"
                f" got {targets[node.output]!r}"
            )
    waiting = list(graph.nodes)
    missing = {node.output for node in waiting}
    groups: list[tuple[Target, Group]] = []
    turn = 0
    while waiting:
        group = []
        for node in waiting:
            ready = not missing & {*node.inputs}
            if ready and targets[node.output] == turns[turn].name:
                group.append(node)
                missing.discard(node.output)
        if group:
            groups.append((turns[turn], tuple(group)))
        waiting = [node for node in waiting if node.output in missing]
        turn = (turn + 1) % len(turns)
    return groups
