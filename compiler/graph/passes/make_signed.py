"""Store 8-bit values with a sign: the integer operators know int8 only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir import Graph, Tensor
from ..ops import Dequantize, Quant, Quantize

OFFSET = 128


def make_signed(graph: Graph) -> Graph:
    """Turn uint8 tensors into int8, values and zero points less 128, which means the same.

    A graph with uint8 inputs or outputs is left alone: its interface may not change.
    """
    if any(graph[name].dtype == "uint8" for name in (*graph.inputs, *graph.outputs)):
        return graph
    nodes = [
        replace(node, op=replace(node.op, quant=_signed(node.op.quant)))
        if isinstance(node.op, Quantize | Dequantize)
        else node
        for node in graph.nodes
    ]
    changed = [_signed_tensor(t) for t in graph.tensors.values() if t.dtype == "uint8"]
    return graph.with_nodes(nodes, *changed)


def _signed(quant: Quant) -> Quant:
    if quant.dtype != "uint8":
        return quant
    return replace(quant, zero_point=quant.zero_point - OFFSET, dtype="int8")


def _signed_tensor(tensor: Tensor) -> Tensor:
    data = tensor.data
    if data is not None:
        data = (data.astype(np.int32) - OFFSET).astype(np.int8)
    quant = _signed(tensor.quant) if tensor.quant else None
    return replace(tensor, dtype="int8", data=data, quant=quant)
