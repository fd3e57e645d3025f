"""Merge transpositions that follow one another; those that undo one another disappear."""

from __future__ import annotations

from dataclasses import replace

from ..fixed_ops import Transpose
from ..ir import Graph, Node
from ..ops import Identity


def merge_transposes(graph: Graph) -> Graph:
    """``Transpose(Transpose(x))`` becomes one, or ``x``; what nothing reads falls to ``dead_code``.

    A node that computes a graph output stays, as an Identity where nothing moves.
    """
    made: dict[str, Node] = {}
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        source = made.get(node.inputs[0])
        if isinstance(node.op, Transpose) and source and isinstance(source.op, Transpose):
            perm = tuple(source.op.perm[axis] for axis in node.op.perm)
            node = replace(node, op=Transpose(perm), inputs=source.inputs)
            if perm == tuple(range(len(perm))):
                node = replace(node, op=Identity())
                if node.output not in graph.outputs:
                    renamed[node.output] = node.inputs[0]
        made[node.output] = node
    return graph.with_nodes(list(made.values()))
