"""Give every node a name of its own, by which people and reports can speak of it."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph


def unique_names(graph: Graph) -> Graph:
    """If several nodes have one name, as when an operator of the model became several nodes, the
    second is called ``NAME.1``, the third ``NAME.2``.
    """
    taken = {node.name for node in graph.nodes}
    seen: set[str] = set()
    nodes = []
    for node in graph.nodes:
        name, number = node.name, 0
        while name in seen or (number and name in taken):
            number += 1
            name = f"{node.name}.{number}"
        seen.add(name)
        nodes.append(replace(node, name=name))
    return graph.with_nodes(nodes)
