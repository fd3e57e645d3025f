"""Products of few rows read their second factor where it lies.

::

    t = Transpose(Pad{wrap}(keys));  y = QMatMul(q, t)    ->    y = QSharedMatMul(q, keys)

A decoder's new token reads all keys and values once for each head of queries. To transpose them, or
to repeat them for heads that share them, would take longer than the products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.base import Shape
from ....graph.ops.linear import QMatMul
from ....graph.ops.movement import Pad, Reshape, Transpose
from ....graph.ops.shared_matmul import QSharedMatMul
from ....graph.passes.dead_code import dead_code


def shared_products(graph: Graph, few_rows: int) -> Graph:
    """The graph with products of fewer than ``few_rows`` rows on what their second factor is made
    of by moves."""
    producers, nodes, tensors = graph.producers(), list[Node](), list[Tensor]()
    for node in graph.nodes:
        found = _find_shared(graph, producers, node, few_rows)
        if found is None:
            nodes.append(node)
            continue
        op, source, shapes = found
        names = [f"{node.output}.{label}" for label in ("rows", "matrices", "products")]
        tensors += [Tensor(*named, "int8") for named in zip(names, shapes, strict=True)]
        steps = [
            (Reshape(shapes[0]), (node.inputs[0],)), (Reshape(shapes[1]), (source,)),
            (op, tuple(names[:2])),
        ]  # fmt: skip
        nodes += [
            replace(node, name=name, op=step, inputs=inputs, output=name)
            for name, (step, inputs) in zip(names, steps, strict=True)
        ]
        nodes.append(replace(node, op=Reshape(graph.result(node).shape), inputs=(names[2],)))
    return dead_code(graph.with_nodes(nodes, *tensors))


def _find_shared(
    graph: Graph, producers: Mapping[str, Node], node: Node, few_rows: int
) -> tuple[QSharedMatMul, str, list[Shape]] | None:
    """The operator in place of a product, its second operand, and the shapes of both operands and
    of the result; None where the product stays as it is."""
    if not isinstance(node.op, QMatMul):
        return None
    a, b = graph.operands(node)
    (*lead, rows, depth), columns = a.shape, b.shape[-1]
    heads, op = math.prod(lead), node.op
    computed = not a.is_constant and not b.is_constant and b.shape[:-2] == a.shape[:-2]
    if not computed or rows >= few_rows or 0 in (*a.shape, columns):
        return None
    for source, order in _origins(graph, producers, b.name):
        size = math.prod(graph[source].shape)
        readers, fits = order.size // size, size % (depth * columns) == 0
        if not fits or heads * depth * columns != readers * size:
            continue
        for turned in (True, False):
            shape = (heads // readers, *((columns, depth) if turned else (depth, columns)))
            places = np.arange(size).reshape(shape).repeat(readers, 0)
            places = places.swapaxes(1, 2) if turned else places
            if (places.reshape(order.shape) == order).all():
                new = QSharedMatMul(op.a_zero_point, op.b_zero_point, op.requant, readers, turned)
                return new, source, [(heads, rows, depth), shape, (heads, rows, columns)]
    return None


def _origins(
    graph: Graph, producers: Mapping[str, Node], name: str
) -> Iterator[tuple[str, np.ndarray]]:
    """What a tensor is made of by moves, furthest first: each with the places in it of the tensor's
    elements."""
    names, moves = [name], list[Node]()
    while (made := producers.get(names[0])) is not None and _is_move(made):
        names, moves = [made.inputs[0], *names], [made, *moves]
    for first, source in enumerate(names):
        shape = graph[source].shape
        order = np.arange(math.prod(shape)).reshape(shape)
        for move in moves[first:]:
            order = move.op.evaluate(order)
        yield source, order


def _is_move(node: Node) -> bool:
    wraps = isinstance(node.op, Pad) and node.op.mode == "wrap"
    return isinstance(node.op, Reshape | Transpose) or wraps
