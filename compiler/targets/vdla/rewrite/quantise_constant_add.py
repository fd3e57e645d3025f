"""Additions of a constant for each channel between QDQ pairs, and their form in integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....graph.arithmetic.requant import INT8_MAX, INT8_MIN
from ....graph.arithmetic.shifted_scale import find_constants
from ....graph.ir import Graph, Node
from ....graph.ops.elementwise import Add
from ....graph.ops.group_matmul import QAddChannels
from ....graph.ops.quantisation import Dequantize, Quant, Quantize


@dataclass(frozen=True)
class ConstantAdded:
    """``Quantize(Dequantize(x) + constant)``: the constant, float32 [C], lies along the last
    dimension of ``x``."""

    x: str
    before: Quant
    after: Quant
    constant: np.ndarray

    def operator(self) -> QAddChannels | None:
        """The operator that gives the same int8 as ONNX's operators in float32, for every int8 and
        every channel; None if there is none."""
        x = np.arange(INT8_MIN, INT8_MAX + 1).astype(np.int8)
        real = Dequantize(self.before).evaluate(x)[None] + self.constant[:, None]
        tables = Quantize(self.after).evaluate(real.astype(np.float32))
        ratio = float(self.before.scale[0]) / float(self.after.scale[0])
        zero_point = int(self.after.zero_point[0])
        found = find_constants(tables, ratio, zero_point)
        return None if found is None else QAddChannels(*found, zero_point)


def constant_added(graph: Graph, producers: Mapping[str, Node], node: Node) -> ConstantAdded | None:
    """The addition that a Quantize ends, if it is one of a constant for each channel."""
    total = producers.get(node.inputs[0])
    if not isinstance(node.op, Quantize) or total is None or total.op != Add():
        return None
    for x, other in (total.inputs, total.inputs[::-1]):
        source, constant = producers.get(x), _constant(graph, producers, other)
        if source is None or constant is None or not isinstance(source.op, Dequantize):
            continue
        quants = source.op.quant, node.op.quant
        per_tensor = all(quant.dtype == "int8" and quant.axis is None for quant in quants)
        last = graph[x].shape[-1:]
        if per_tensor and constant.size > 1 and (constant.size,) == constant.shape[-1:] == last:
            return ConstantAdded(source.inputs[0], *quants, constant.reshape(-1))
    return None


def _constant(graph: Graph, producers: Mapping[str, Node], name: str) -> np.ndarray | None:
    """The value of a float tensor that is a constant, or is dequantised from one."""
    tensor, node = graph[name], producers.get(name)
    if tensor.data is not None:
        return tensor.data
    if node is not None and isinstance(node.op, Dequantize):
        stored = graph[node.inputs[0]].data
        return None if stored is None else node.op.evaluate(stored)
    return None
