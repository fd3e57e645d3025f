"""Reshape between images and vectors in the accelerator's own order of elements, so that no data
moves and the host has nothing to do in between.

An image [N,C,H,W] lies in memory as [C/block][H][W][block], a vector [N,K] as [K/block][block]. A
dense layer next to a reshape can read or write the vector in the image's order if its weights are
in that order, too::

    v = Reshape(x);       y = QDense(v, w, b)      BlockReshape(x), columns of w in its order
    v = QDense(x, w, b);  y = Reshape(v)           rows of w and b in its order, BlockReshape(v)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....graph.arithmetic.requant import Requant
from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.layout import BlockReshape
from ....graph.ops.linear import QDense
from ....graph.ops.movement import Reshape
from ..machine import ACCELERATOR, HOST

Shape = tuple[int, ...]


def reshape_blocks(graph: Graph, block: int) -> Graph:
    """Rewrite reshapes on the host whose vector only dense layers on the accelerator use."""
    producers, consumers = graph.producers(), graph.consumers()
    nodes = {node.output: node for node in graph.nodes}
    made: list[Tensor] = []
    for node in graph.nodes:
        source = graph[node.inputs[0]]
        if not isinstance(node.op, Reshape) or node.target != HOST or source.dtype != "int8":
            continue
        image, is_flattening = _image(source.shape, node.op.shape)
        if image is None or image[1] % block:
            continue
        order = _order(image, block)
        dense = consumers[node.output] if is_flattening else [producers.get(source.name)]
        vector = node.output if is_flattening else source.name
        alone = is_flattening or len(consumers[vector]) == 1
        if vector in graph.outputs or not alone or not all(map(_is_product, dense)):
            continue
        for layer in dense:
            assert layer is not None
            turned, tensors = _permuted(graph, nodes[layer.output], order, is_flattening)
            nodes[layer.output] = turned
            made += tensors
        op, reason = BlockReshape(node.op.shape, block), "no data moves: weights in another order"
        nodes[node.output] = replace(node, op=op, target=ACCELERATOR, reason=reason)
    return graph.with_nodes(list(nodes.values()), *made)


def _image(given: Shape, wanted: Shape) -> tuple[Shape | None, bool]:
    """For a reshape between images and vectors, one vector for each image: the image's shape, and
    whether the image is the given one.
    """
    for image, vector in ((given, wanted), (wanted, given)):
        if (len(image), len(vector)) == (4, 2) and image[0] == vector[0]:
            return image, image is given
    return None, False


def _is_product(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, QDense) and node.target == ACCELERATOR


def _order(image: Shape, block: int) -> np.ndarray:
    """The index in the plain vector of each element in the blocked order."""
    _, c, h, w = image
    plain = np.arange(c * h * w).reshape(c // block, block, h, w)
    return plain.transpose(0, 2, 3, 1).reshape(-1)


def _permuted(
    graph: Graph, node: Node, order: np.ndarray, columns: bool
) -> tuple[Node, list[Tensor]]:
    """A dense layer whose operand, or result, has its elements in another order."""
    op = node.op_as(QDense)
    weight, bias = (graph[name] for name in node.inputs[1:])
    assert weight.data is not None and bias.data is not None
    suffix = f".{node.output}.blocks"  # a weight may be another layer's, too
    if columns:
        data = np.ascontiguousarray(weight.data[:, order])
        turned = replace(weight, name=weight.name + suffix, data=data)
        return replace(node, inputs=(node.inputs[0], turned.name, bias.name)), [turned]
    turned = replace(weight, name=weight.name + suffix, data=weight.data[order])
    moved = replace(bias, name=bias.name + suffix, data=bias.data[order])
    op = replace(op, requant=_permuted_requant(op.requant, order))
    return replace(node, op=op, inputs=(node.inputs[0], turned.name, moved.name)), [turned, moved]


def _permuted_requant(requant: Requant, order: np.ndarray) -> Requant:
    if requant.multiplier.size == 1:
        return requant
    return replace(requant, multiplier=requant.multiplier[order], shift=requant.shift[order])
