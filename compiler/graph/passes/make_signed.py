"""Store 8-bit values as int8, the only 8-bit type of the integer operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arithmetic.requant import OFFSET
from ..ir import Graph, Node, Tensor
from ..ops.movement import Identity, Reshape
from ..ops.quantisation import Dequantize, Quant, Quantize, Recentre


def make_signed(graph: Graph) -> Graph:
    """Turn uint8 tensors into int8, with values and zero points less 128, which means the same.

    Inputs and outputs of the graph stay uint8, as do tensors that an operator other than Quantize,
    Dequantize, Reshape and Identity reads or writes: there the stored number matters. Between such
    a tensor and Quantize or Dequantize, Recentre converts.
    """
    unchanged = _find_unchanged(graph)
    changed = {
        t.name: _signed_tensor(t)
        for t in graph.tensors.values()
        if t.dtype == "uint8" and t.name not in unchanged
    }
    nodes: list[Node] = []
    for node in graph.nodes:
        node = _signed_node(node, changed)
        match node.op:
            case Quantize(quant) if quant.dtype == "uint8":
                signed = _beside(graph, node.output)
                nodes.append(replace(node, op=Quantize(_signed(quant)), output=signed.name))
                node = Node(f"{node.name}.unsigned", Recentre(), (signed.name,), node.output)
                changed[signed.name] = signed
            case Dequantize(quant) if quant.dtype == "uint8":
                (name,) = node.inputs
                signed = _beside(graph, name)
                if signed.name not in changed and not signed.is_constant:
                    nodes.append(Node(f"{name}.signed", Recentre(), (name,), signed.name))
                node = replace(node, op=Dequantize(_signed(quant)), inputs=(signed.name,))
                changed[signed.name] = signed
        nodes.append(node)
    return graph.with_nodes(nodes, *changed.values())


def _beside(graph: Graph, name: str) -> Tensor:
    """The signed form of a tensor that stays uint8."""
    signed = f"{name}.int8"
    while signed in graph.tensors:
        signed += "'"
    return replace(_signed_tensor(graph[name]), name=signed)


def _find_unchanged(graph: Graph) -> set[str]:
    """Names of tensors that keep their dtype. If one side of a Reshape or Identity does, so does
    the other.
    """
    unchanged = {*graph.inputs, *graph.outputs}
    for node in graph.nodes:
        if not isinstance(node.op, Quantize | Dequantize | Reshape | Identity):
            unchanged |= {*node.inputs, node.output}
    size = 0
    while size != len(unchanged):
        size = len(unchanged)
        for node in graph.nodes:
            ends = {node.inputs[0], node.output}
            if isinstance(node.op, Reshape | Identity) and ends & unchanged:
                unchanged |= ends
    return unchanged


def _signed_node(node: Node, changed: dict[str, Tensor]) -> Node:
    match node.op:
        case Quantize(quant) if node.output in changed:
            return replace(node, op=Quantize(_signed(quant)))
        case Dequantize(quant) if node.inputs[0] in changed:
            return replace(node, op=Dequantize(_signed(quant)))
    return node


def _signed(quant: Quant) -> Quant:
    return replace(quant, zero_point=quant.zero_point - OFFSET, dtype="int8")


def _signed_tensor(tensor: Tensor) -> Tensor:
    data = tensor.data
    if data is not None:
        data = (data.astype(np.int32) - OFFSET).astype(np.int8)
    quant = _signed(tensor.quant) if tensor.quant else None
    return replace(tensor, dtype="int8", data=data, quant=quant)
