"""Compute nodes whose inputs are all constant."""

from __future__ import annotations

from ..interpret import evaluate_op
from ..ir import Graph, Tensor
from ..ops import Dequantize, Quantize


def fold_constants(graph: Graph) -> Graph:
    """Replace such nodes by constants, except Dequantize: integer operators want its integers."""
    tensors = dict(graph.tensors)
    nodes = []
    for node in graph.nodes:
        values = [tensors[name].data for name in node.inputs]
        known = [value for value in values if value is not None]
        if len(known) < len(values) or isinstance(node.op, Dequantize):
            nodes.append(node)
            continue
        quant = node.op.quant if isinstance(node.op, Quantize) else None
        tensors[node.output] = Tensor.constant(node.output, evaluate_op(node.op, *known), quant)
    return graph.with_nodes(nodes, *tensors.values())
