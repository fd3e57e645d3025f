"""Cut a fixed batch of images into smaller ones, where no operator mixes images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ir import Graph, Node, Tensor, infer
from ..ops.base import Fusion, Op
from ..ops.convolution import (
    Conv2d,
    Convolution,
    ConvolutionTranspose,
    ConvTranspose2d,
    QConv2d,
    QConvTranspose2d,
)
from ..ops.integer import QSoftmax
from ..ops.linear import Dense, QDense
from ..ops.movement import Concat, Identity, Pad, Reshape, Slice, Transpose
from ..ops.pooling import AvgPool, MaxPool, Pool, QAvgPool, QAvgPoolValid, QMaxPool
from ..ops.quantisation import Dequantize, Quantize
from ..ops.reduction import Reduce

#: Operators of images. Without one of them the first dimension has the rows of matrices, which the
#: accelerator computes at once.
_IMAGE_OPERATORS = (
    Convolution, ConvolutionTranspose, Conv2d, ConvTranspose2d, QConv2d, QConvTranspose2d, Pool,
    MaxPool, AvgPool, QMaxPool, QAvgPool, QAvgPoolValid,
)  # fmt: skip


def split_batch(graph: Graph, batch: int) -> Graph:
    """The graph for ``batch`` images instead of the larger batch that the model fixes, which is
    then run several times. The graph stays as it is unless the first dimension of all its inputs
    and outputs is a multiple of ``batch``, every operator is known to leave images apart, and there
    are no states, which go from all images of a run to all of the next.
    """
    if graph.states:
        return graph
    shapes = [graph[name].shape for name in (*graph.inputs, *graph.outputs)]
    sizes = {shape[0] if shape else 0 for shape in shapes}
    images = max(sizes)
    are_images = any(isinstance(node.op, _IMAGE_OPERATORS) for node in graph.nodes)
    if len(sizes) > 1 or not are_images or images <= batch or images % batch:
        return graph
    cut = {name: _cut(graph[name], batch) for name in graph.inputs}
    nodes = []
    for node in graph.nodes:
        if any(name in cut for name in node.inputs):
            op = _split_operator(graph, node, [name in cut for name in node.inputs], batch)
            if op is None:
                return graph
            result = _cut(graph.result(node), batch)
            types = [cut.get(name, graph[name]) for name in node.inputs]
            if infer(op, types, node.name) != (result.shape, result.dtype):
                return graph
            cut[result.name] = result
            node = replace(node, op=op)
        nodes.append(node)
    if any(name not in cut for name in graph.outputs):
        return graph
    return graph.with_nodes(nodes, *cut.values())


def _cut(tensor: Tensor, batch: int) -> Tensor:
    return replace(tensor, shape=(batch, *tensor.shape[1:]))


def _split_operator(graph: Graph, node: Node, cut: Sequence[bool], batch: int) -> Op | None:
    """The operator for fewer images; None if an image of its result may depend on others.
    ``cut`` says which operands have images.
    """
    op, result, operands = node.op, graph.result(node).shape, graph.operands(node)
    images = graph[graph.inputs[0]].shape[0]
    if not result or result[0] != images:
        return None
    if isinstance(op, Concat):
        return op if op.axis % len(result) and all(cut) else None
    if op.fusion is Fusion.ELEMENTWISE:
        aligned = all(
            len(x.shape) == len(result) if has_images else _is_shared(x, len(result))
            for x, has_images in zip(operands, cut, strict=True)
        )
        return op if aligned else None
    if not cut[0] or any(cut[1:]):  # the other operands are weights
        return None
    match op:
        case Reshape() | Slice():
            kept = not isinstance(op, Slice) or (op.starts[0], op.steps[0]) == (0, 1)
            return replace(op, shape=(batch, *op.shape[1:])) if kept else None
        case Quantize() | Dequantize():
            apart = op.quant.axis != 0
        case Transpose():
            apart = op.order[0] == 0
        case Pad():
            apart = op.pads[0] == op.pads[len(result)] == 0
        case Reduce():
            apart = 0 not in op.axes
        case QSoftmax():
            apart = len(result) > 1
        case _:
            apart = isinstance(op, (Identity, Dense, QDense, *_IMAGE_OPERATORS))
    return op if apart else None


def _is_shared(operand: Tensor, rank: int) -> bool:
    """Whether all images of a result of this rank read the same elements of an operand."""
    return len(operand.shape) < rank or operand.shape[0] == 1
