"""Weights of products on tensor cores by columns, whose steps asynchronous copies bring at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.linear import Dense
from ....graph.passes.dead_code import dead_code


def transpose_weights(graph: Graph, is_product: Callable[[Graph, Node], bool]) -> Graph:
    """``Dense(x, w)`` with a constant w [K, N] reads w [N, K] where it is a product on tensor
    cores."""
    nodes, made = list[Node](), dict[str, Tensor]()
    for node in graph.nodes:
        op = node.op
        if isinstance(op, Dense) and not op.transposed and is_product(graph, node):
            x, weight, *bias = node.inputs
            if (data := graph[weight].data) is not None:
                name = f"{weight}.columns"
                made[name] = Tensor.constant(name, np.ascontiguousarray(data.T))
                op = replace(op, transposed=True)
                node = replace(node, op=op, inputs=(x, name, *bias))
        nodes.append(node)
    return dead_code(graph.with_nodes(nodes, *made.values()))
