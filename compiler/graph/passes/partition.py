"""Decide for every node where it runs, with the reason."""

from __future__ import annotations

from dataclasses import replace

from ..arithmetic.lift import lift
from ..arithmetic.subpixel import subpixels
from ..ir import Graph, Node
from ..ops.convolution import Convolution, QConv2d, QConvTranspose2d
from ..ops.integer import QAdd, QAddFixed, QMul, QSoftmax, QTable
from ..ops.linear import MatMul, QDense
from ..ops.movement import Concat, Pad, Reshape, Transpose
from ..ops.pooling import QAvgPool, QAvgPoolValid, QMaxPool
from ..ops.quantisation import Quantize, QuantizeAway, Recentre

#: Pieces of a table's line that are worth it: the vector unit takes two cycles a vector for each.
MOST_BENDS = 60

#: A convolution in groups is computed as one whose weights are zero from group to group; that many
#: groups, or channels where groups share blocks, are worth it.
MOST_GROUPS, MOST_GROUPED_CHANNELS = 8, 128


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
        case QConv2d() as op if op.is_depthwise(graph[node.inputs[1]].shape):
            return "accel", "depthwise convolution on the vector unit"
        case QConv2d(groups=groups):
            channels = graph[node.inputs[0]].shape[1]
            if groups > MOST_GROUPS and channels > MOST_GROUPED_CHANNELS:
                return "cpu", f"convolution in {groups} groups of several channels"
            return "accel", f"on the tensor core, with zeros between its {groups} groups"
        case QConvTranspose2d() as op:
            kernel = graph[node.inputs[1]].shape[2:]
            if subpixels((kernel[0], kernel[1]), op.strides, op.before, op.size):
                return "accel", "transposed convolution on the tensor core, phase by phase"
            return "cpu", f"a result of {op.size} that strides {op.strides} do not divide"
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
        case Concat(axis=1) if graph.result(node).dtype == "int8":
            return "accel", "no data moves"
        case QAddFixed():
            a, b = graph.operands(node)
            if a.shape == b.shape and _lifts(node.op):
                return "accel", "on the vector unit, the factors in two parts"
            return "cpu", "broadcasting" if a.shape != b.shape else "scales too far apart"
        case QTable():
            found = node.op.bends
            if found is None or len(found.knots) > MOST_BENDS:
                return "cpu", "a table too uneven for a line with few bends"
            return "accel", f"on the vector unit, as a line with {len(found.knots) - 1} bends"
        case QSoftmax():
            return "cpu", "exponentials and a division"
        case Recentre():
            return "cpu", "uint8 at the edge of the model"
        case Quantize() | QuantizeAway():
            return "cpu", "float input"
        case QMul() | QAvgPoolValid() | Transpose() | Pad() | Concat() if _is_int8(graph, node):
            return "cpu", f"{node.op.name} has no schedule for the accelerator"
        case Convolution() | MatMul() if graph.result(node).dtype == "int32":
            return "cpu", "an int32 result; what leaves the accelerator is int8"
        case _:
            dtype = graph.result(node).dtype
            if dtype.startswith("float"):
                return "cpu", f"{dtype}; the accelerator computes with int8"
            return "cpu", "no operator of the accelerator"


def _is_int8(graph: Graph, node: Node) -> bool:
    return graph.result(node).dtype == "int8"


def _lifts(op: QAddFixed) -> bool:
    first = lift(op.zero_a, op.mult_a, op.shift_a)
    return bool(first and lift(op.zero_b, op.mult_b, op.shift_b))
