"""Decide for every node where it runs, with the reason."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node
from ..ops import QAdd, QAvgPool, QConv2d, QDense, QMaxPool, Quantize, Reshape


def partition(graph: Graph) -> Graph:
    """Set ``target`` ("accel" where the accelerator can, else "cpu") and ``reason``."""
    nodes = []
    for node in graph.nodes:
        target, reason = _place(graph, node)
        nodes.append(replace(node, target=target, reason=node.reason or reason))
    return graph.with_nodes(nodes)


def _place(graph: Graph, node: Node) -> tuple[str, str]:
    match node.op:
        case QConv2d(groups=1):
            return "accel", "convolution on the tensor core"
        case QConv2d(groups=groups):
            return "cpu", f"convolution in {groups} groups"
        case QDense():
            return "accel", "matrix product on the tensor core"
        case QAdd() | QMaxPool() | QAvgPool():
            return "accel", "on the vector unit"
        case Reshape(shape):
            source = graph[node.inputs[0]]
            flat = source.shape[:2] == shape and all(size == 1 for size in source.shape[2:])
            if source.dtype == "int8" and flat:
                return "accel", "no data moves"
            return "cpu", "the elements change places in the blocked layout"
        case Quantize():
            return "cpu", "float input"
        case _:
            dtype = graph.result(node).dtype
            if dtype.startswith("float"):
                return "cpu", dtype
            return "cpu", "no operator of the accelerator"
