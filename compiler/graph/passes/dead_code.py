"""Remove nodes and constants that no output depends on."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph


def dead_code(graph: Graph) -> Graph:
    """Keep what the outputs need, and the graph's inputs."""
    needed = set(graph.outputs)
    nodes = []
    for node in reversed(graph.nodes):
        if node.output in needed:
            nodes.append(node)
            needed.update(node.inputs)
    needed.update(graph.inputs)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in needed}
    return replace(graph, nodes=tuple(reversed(nodes)), tensors=tensors)
