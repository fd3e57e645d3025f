"""Products that read and store tensors as they are, whatever the order of their dimensions.

::

    r = Reshape(x, [1 * 64, 256])
    p = Dense(r, w)                           y = MatMul(x, w)
    y = Reshape(p, [1, 64, 1024])     ->

    k = Transpose(x)                          y = TransposedMatMul(q, x)
    y = Transpose(MatMul(q, k))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.linear import Dense, MatMul, TransposedMatMul
from ....graph.ops.movement import Reshape, Transpose
from ....graph.passes.dead_code import dead_code


def remove_reshapes(graph: Graph) -> Graph:
    """The graph with MatMul for each Dense whose rows become matrices by a Reshape, so that
    element-wise operators can follow it at once."""
    makers, nodes, made = graph.producers(), list[Node](), dict[str, Tensor]()
    for node in graph.nodes:
        dense = makers.get(node.inputs[0]) if isinstance(node.op, Reshape) else None
        if dense is not None and dense.op == Dense(False) and len(dense.inputs) == 2:
            name, weight = dense.inputs
            shape, rows = graph.result(node).shape, makers.get(name)
            if shape[-1:] == graph[weight].shape[1:]:
                wanted = (*shape[:-1], graph[weight].shape[0])
                if (
                    rows
                    and isinstance(rows.op, Reshape)
                    and graph.operands(rows)[0].shape == wanted
                ):
                    name = rows.inputs[0]
                else:
                    flat, name = name, f"{node.name}.matrices"
                    made[name] = Tensor(name, wanted, graph[flat].dtype)
                    nodes.append(Node(name, Reshape(wanted), (flat,), name, node.target))
                node = replace(dense, op=MatMul(), inputs=(name, weight), output=node.output)
        nodes.append(node)
    return dead_code(graph.with_nodes(nodes, *made.values()))


def fold_transposes(graph: Graph, is_product: Callable[[Graph, Node], bool]) -> Graph:
    """The graph with transpositions of a product's factors and of its result in the product, where
    steps or columns stay side by side. Constant weights of products on tensor cores are transposed
    here, so that asynchronous copies bring their steps at once."""
    made: dict[str, Node] = {}
    constants: dict[str, Tensor] = {}
    readers = graph.consumers()
    for node in graph.nodes:
        rank = len(graph.result(node).shape)
        plain = tuple(range(rank))
        match node.op:
            case Dense(transposed=False) | MatMul() as op if is_constant_matrix(graph, node):
                if is_product(graph, node):
                    x, w, *bias = node.inputs
                    name, data = f"{w}.columns", graph[w].data
                    assert data is not None
                    constants[name] = Tensor.constant(name, np.ascontiguousarray(data.T))
                    by_column = TransposedMatMul((plain, (1, 0), plain))
                    op = replace(op, transposed=True) if isinstance(op, Dense) else by_column
                    node = replace(node, op=op, inputs=(x, name, *bias))
            case MatMul() if all(len(t.shape) == rank > 2 for t in graph.operands(node)):
                (x, left), (w, right) = (
                    _transposed(made, name, plain, last)
                    for name, last in zip(node.inputs, ((rank - 1,), plain[-2:]), strict=True)
                )
                if (left, right) != (plain, plain):
                    op = TransposedMatMul((left, right, plain))
                    node = replace(node, op=op, inputs=(x, w))
            case Transpose(order):
                source = made.get(node.inputs[0])
                if source is not None and isinstance(source.op, MatMul):
                    orders = (plain, plain, plain)
                    if isinstance(source.op, TransposedMatMul):
                        orders = source.op.orders
                    shape = graph[source.output].shape
                    moved = [d for d in order if shape[d] > 1 or d >= rank - 2]
                    swaps = len(moved) == 3 and (moved[0], moved[2]) == plain[-2:]
                    only = len(readers[source.output]) == 1 and source.output not in graph.outputs
                    if swaps and only and orders[2] == plain:
                        op = TransposedMatMul((*orders[:2], order))
                        node = replace(source, op=op, output=node.output)
        made[node.output] = node
    return dead_code(graph.with_nodes(list(made.values()), *constants.values()))


def is_constant_matrix(graph: Graph, node: Node) -> bool:
    """Whether a product has constant weights for all rows."""
    weight = graph[node.inputs[1]]
    return weight.data is not None and len(weight.shape) == 2


def _transposed(
    made: Mapping[str, Node], name: str, plain: tuple[int, ...], last: Sequence[int]
) -> tuple[str, tuple[int, ...]]:
    """The tensor of which a factor is a transposition, and the order of its dimensions; the factor
    itself, unless the dimension that is the ``last`` one in memory is among these of the factor."""
    node = made.get(name)
    if node is None or not isinstance(node.op, Transpose):
        return name, plain
    order = node.op.order
    return (node.inputs[0], order) if order.index(plain[-1]) in last else (name, plain)
