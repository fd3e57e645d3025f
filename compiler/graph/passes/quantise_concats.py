"""Quantise the operands of a concatenation, so that it moves integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir import Graph, Node, Tensor
from ..ops.linear import QMatMul
from ..ops.movement import Concat
from ..ops.quantisation import Dequantize, Quantize
from .fuse_tables import is_int8


def quantise_concats(graph: Graph) -> Graph:
    """``Quantize(Concat(Dequantize(x), constant))`` becomes ``Concat(Quantize(Dequantize(x)),
    constant)`` with any number of such operands, in graphs that multiply two activations: a class
    token before the patches of an image. Quantize is computed for each element, so that the values
    stay.
    """
    if not any(isinstance(node.op, QMatMul) for node in graph.nodes):
        return graph
    producers = graph.producers()
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    for node in graph.nodes:
        concat = producers.get(node.inputs[0])
        is_concat = concat is not None and isinstance(concat.op, Concat)
        if not (isinstance(node.op, Quantize) and is_int8(node.op.quant) and is_concat):
            nodes.append(node)
            continue
        assert concat is not None
        parts = [producers.get(name) for name in concat.inputs]
        values = [
            _value(graph, part, name) for part, name in zip(parts, concat.inputs, strict=True)
        ]
        if any(v is None and not _is_real(p) for v, p in zip(values, parts, strict=True)):
            nodes.append(node)
            continue
        inputs = []
        for number, (name, value) in enumerate(zip(concat.inputs, values, strict=True)):
            part = f"{node.output}.part{number}"
            if value is None:
                like = replace(graph.result(node), name=part, shape=graph[name].shape)
                nodes.append(replace(node, name=f"{node.name}.part{number}", inputs=(name,),
                                     output=part))  # fmt: skip
            else:
                like = Tensor.constant(part, node.op.evaluate(value), node.op.quant)
            tensors.append(like)
            inputs.append(part)
        nodes.append(replace(node, name=concat.name, op=concat.op, inputs=tuple(inputs)))
    return graph.with_nodes(nodes, *tensors)


def _is_real(node: Node | None) -> bool:
    """Whether a tensor is dequantised from int8 of one scale."""
    return node is not None and isinstance(node.op, Dequantize) and is_int8(node.op.quant)


def _value(graph: Graph, node: Node | None, name: str) -> np.ndarray | None:
    """The value of a float tensor that is a constant, or is dequantised from one."""
    if node is None:
        return graph[name].data
    stored = graph[node.inputs[0]].data
    if stored is None or not isinstance(node.op, Dequantize):
        return None
    return node.op.evaluate(stored)
