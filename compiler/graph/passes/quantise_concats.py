"""Quantise the operands of a concatenation, so that it moves integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir import Graph, Node, Tensor
from ..ops.linear import QMatMul
from ..ops.movement import Concat
from ..ops.quantisation import Dequantize, Quantize
from .fuse_tables import is_int8, known_value


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
        values: dict[str, np.ndarray | None] = {}
        if concat is not None and isinstance(concat.op, Concat):
            values = {name: known_value(graph, producers, name) for name in concat.inputs}
        fits = all(v is not None or _is_real(producers.get(n)) for n, v in values.items())
        quant = node.op.quant if isinstance(node.op, Quantize) else None
        if concat is None or quant is None or not (is_int8(quant) and values and fits):
            nodes.append(node)
            continue
        inputs = []
        for number, name in enumerate(concat.inputs):
            value = values[name]
            part = f"{node.output}.part{number}"
            if value is None:
                like = replace(graph.result(node), name=part, shape=graph[name].shape)
                nodes.append(replace(node, name=f"{node.name}.part{number}", inputs=(name,),
                                     output=part))  # fmt: skip
            else:
                like = Tensor.constant(part, node.op.evaluate(value), quant)
            tensors.append(like)
            inputs.append(part)
        nodes.append(replace(node, name=concat.name, op=concat.op, inputs=tuple(inputs)))
    return graph.with_nodes(nodes, *tensors)


def _is_real(node: Node | None) -> bool:
    """Whether a tensor is dequantised from int8 of one scale."""
    return node is not None and isinstance(node.op, Dequantize) and is_int8(node.op.quant)
