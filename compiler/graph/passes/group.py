"""Group operators that may be computed together without storing the values between them."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph
from ..ops.integer import Product, QAdd, QConv2d, QConvTranspose2d, QDense


def group(graph: Graph) -> Graph:
    """Make a group of each convolution and dense layer (bias and activation are inside already).

    A residual addition joins the group of the last such operand that nothing else reads, when there
    is one. Groups are named after their convolution or dense node.
    """
    consumers = graph.consumers()
    producers = graph.producers()
    group_of: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        name = ""
        match node.op:
            case QConv2d() | QConvTranspose2d() | QDense():
                name = node.name
            case QAdd():
                for operand in reversed(node.inputs):
                    source = producers.get(operand)
                    alone = len(consumers[operand]) == 1 and operand not in graph.outputs
                    if source and alone and isinstance(source.op, Product):
                        name = group_of[operand]
                        break
        group_of[node.output] = name
        nodes.append(replace(node, group=name))
    return graph.with_nodes(nodes)
