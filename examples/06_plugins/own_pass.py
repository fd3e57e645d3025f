"""A plugin with a graph pass: two negations in a row are none.

    vdla run MODEL --plugin examples/06_plugins/own_pass.py --dump-ir ir

A pass is a function from a graph to a graph. The compiler verifies the graph after it, and
``--dump-ir`` writes it.
"""

from __future__ import annotations

from dataclasses import replace

from vdla.compiler.graph.ir import Graph, Node
from vdla.compiler.graph.ops.elementwise import Map
from vdla.compiler.graph.ops.movement import Identity
from vdla.compiler.graph.passes import register_pass


def is_negation(node: Node | None) -> bool:
    """Whether a node computes ``-x``; float operators of one element are a ``Map``."""
    return node is not None and isinstance(node.op, Map) and node.op.label == "Neg"


def drop_double_negations(graph: Graph) -> Graph:
    """Replace ``-(-x)`` by ``x``; ``dead_code`` drops the negation that nobody reads any more."""
    producers, nodes = graph.producers(), []
    for node in graph.nodes:
        before = producers.get(node.inputs[0])
        if before is not None and is_negation(node) and is_negation(before):
            node = replace(node, op=Identity(), inputs=before.inputs)
        nodes.append(node)
    return graph.with_nodes(nodes)


register_pass(drop_double_negations, before="drop_identities")
