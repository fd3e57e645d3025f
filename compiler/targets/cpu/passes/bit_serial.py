"""Compute products of integers of one or two bits bit by bit, where that is chosen.

::

    q = Quantize(Clip(x, 0, 3 * scale))       q = Quantize(Clip(x, 0, 3 * scale))
    y = QConv2d(q, w, bias)              ->   y = BitSerialConv2d(q, packed, bias)

How many bits an element has follows from the operator that computes it: from the bounds of a clip
or of a requantisation, or from the values of a table. How many bits a weight has follows from its
constant values. NaN has no code: the two algorithms may turn it into different numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ....graph.arithmetic.requant import INT8_MAX, INT8_MIN
from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.base import Bounded
from ....graph.ops.bit_serial import BitSerialConv2d, BitSerialDense
from ....graph.ops.convolution import QConv2d
from ....graph.ops.elementwise import Clip
from ....graph.ops.integer import QAdd, QTable
from ....graph.ops.linear import QDense
from ....graph.ops.pooling import QMaxPool
from ....graph.ops.quantisation import Quant, Quantize
from ....topi.bit_serial import MAX_BITS, Levels, pack_weights

#: Whether a node is computed bit by bit, by the bits of its elements and of its weight.
IsBitSerial = Callable[[Graph, Node, int, int], bool]


def bit_serial(graph: Graph, chosen: IsBitSerial = lambda *args: True) -> Graph:
    """The graph with bit-serial operators where they are possible and chosen."""
    producers = graph.producers()
    nodes, tensors = list[Node](), list[Tensor]()
    for node in graph.nodes:
        found = _packed(graph, node, producers, chosen)
        if found is not None:
            node, weight = found
            tensors.append(weight)
        nodes.append(node)
    return graph.with_nodes(nodes, *tensors)


def _packed(
    graph: Graph, node: Node, producers: dict[str, Node], chosen: IsBitSerial
) -> tuple[Node, Tensor] | None:
    """The bit-serial node and its packed weight; None where that is not possible or not chosen."""
    op = node.op
    if not isinstance(op, QConv2d | QDense):
        return None
    if isinstance(op, QConv2d) and (op.groups, op.dilations) != (1, (1, 1)):
        return None
    data = graph[node.inputs[1]].data
    if data is None or 0 in (*data.shape, *graph.result(node).shape):
        return None
    least, most = _range(graph, node.inputs[0], producers)
    bits = max(most - op.x_zero_point, 1).bit_length()
    levels, weight_bits = Levels.of(data)
    if least < op.x_zero_point or max(bits, weight_bits) > MAX_BITS:
        return None
    if not chosen(graph, node, bits, weight_bits):
        return None
    codes = levels.codes(data)
    attributes = bits, levels, op.x_zero_point, op.requant
    if isinstance(op, QConv2d):
        codes, new = codes.transpose(0, 2, 3, 1), BitSerialConv2d(op.strides, op.pads, *attributes)
    else:
        new = BitSerialDense(*attributes)
    weight = Tensor.constant(f"{node.name}.planes", pack_weights(codes, weight_bits))
    return replace(node, op=new, inputs=(node.inputs[0], weight.name, node.inputs[2])), weight


def _range(graph: Graph, name: str, producers: dict[str, Node]) -> tuple[int, int]:
    """Bounds of the values of an int8 tensor."""
    node = producers.get(name)
    if node is None:
        data = graph[name].data
        return (INT8_MIN, INT8_MAX) if data is None else (int(data.min()), int(data.max()))
    op = node.op
    if op.moves:
        return _range(graph, node.inputs[0], producers)
    if isinstance(op, QMaxPool):
        least, most = _range(graph, node.inputs[0], producers)
        least = INT8_MIN if any(op.pads) else least  # a window may lie outside the image
        return min(max(least, op.lo), op.hi), max(min(most, op.hi), op.lo)
    if isinstance(op, QTable):
        return int(op.table.min()), int(op.table.max())
    if isinstance(op, Quantize) and op.quant.axis is None:
        before = producers.get(node.inputs[0])
        if before is not None and isinstance(before.op, Clip | Bounded):
            return _stored(op.quant, before.op.lo), _stored(op.quant, before.op.hi)
    ending = op if isinstance(op, QAdd) else getattr(op, "requant", None)
    return (ending.lo, ending.hi) if ending is not None else (INT8_MIN, INT8_MAX)


def _stored(quant: Quant, real: float) -> int:
    """A bound of real values as int8. It bounds the stored values: quantisation is monotone."""
    found = Quantize(quant).evaluate(np.array([real], np.float32))
    return int(found[0])
