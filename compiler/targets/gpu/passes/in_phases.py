"""Transposed convolutions of known weights with these sorted by phases, so that they are products
of matrices.

::

    y = ConvTranspose2d(x, w, b)    ->    y = ConvTranspose2d, in phases(x, w.phases, b)
"""

from __future__ import annotations

from dataclasses import replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.convolution import ConvTranspose2d, QConvTranspose2d
from ....graph.ops.in_phases import InPhases


def in_phases(graph: Graph) -> Graph:
    """The graph with transposed convolutions of several outputs in phases."""
    nodes, tensors = list[Node](), list[Tensor]()
    for node in graph.nodes:
        match node.op:
            case ConvTranspose2d() | QConvTranspose2d() as op if _moves(graph, node):
                weight = graph[node.inputs[1]].data
                assert weight is not None
                name = f"{node.name}.weight_phases"
                tensors.append(Tensor.constant(name, InPhases(op).sorted_weight(weight)))
                inputs = (node.inputs[0], name, *node.inputs[2:])
                node = replace(node, op=InPhases(op), inputs=inputs)
        nodes.append(node)
    return graph.with_nodes(nodes, *tensors)


def _moves(graph: Graph, node: Node) -> bool:
    x, weight = graph.operands(node)[:2]
    return weight.data is not None and 0 not in x.shape and weight.shape[1] > 1
