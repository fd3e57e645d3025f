"""Which expression and schedule an operator of the graph gets on the accelerator, and its constants
as they lie in DRAM.
"""

from __future__ import annotations

import numpy as np

from ...isa.errors import VdlaError
from ...isa.memory import MemoryParams
from ...isa.params import HwParams
from ..graph.bends import FRACTION_BITS, Bends
from ..graph.fixed_ops import QAddFixed, QTable
from ..graph.ir import Graph, Node, is_depthwise
from ..graph.lift import lifts
from ..graph.ops import QAdd, QAvgPool, QConv2d, QDense, QMaxPool
from ..graph.requant import INT8_MAX, INT8_MIN, Requant
from ..runtime.layout import blocks, pack_depthwise_weight, pack_parameters, pack_weight
from ..tir.ir import PrimFunc
from .accel import Clamp, Window, add, conv2d, window2d
from .accel_add import add_fixed
from .accel_table import bent
from .ops import RESCALE

#: A requantisation that changes nothing: multiplier / 2**shift = 1.
IDENTITY_MULTIPLIER, IDENTITY_SHIFT = 1 << 30, 30


def _image(shape: tuple[int, ...], params: HwParams) -> tuple[int, int, int]:
    """(channel blocks, H, W) of an activation; vectors are images of one pixel."""
    _, channels, *spatial = shape
    height, width = spatial or (1, 1)
    return blocks(channels, params), height, width


def _clamp(requant: Requant) -> Clamp:
    return Clamp(requant.zero_point, requant.lo, requant.hi, RESCALE[requant.rounding])


def lower_node(
    graph: Graph, node: Node, params: HwParams, memory: MemoryParams, vthreads: int
) -> PrimFunc:
    """The loop program of one operator: parameters are its activations, the arrays of
    :func:`parameters_of`, its result. Tiles are chosen for ``memory``.
    """
    data = _image(graph[node.inputs[0]].shape, params)
    result = _image(graph.result(node).shape, params)
    match node.op:
        case QConv2d() as op:
            kernel = graph[node.inputs[1]].shape[2:]
            parts = len(_parts(graph, node))
            window = Window((kernel[0], kernel[1]), op.strides, op.pads, op.dilations)
            if is_depthwise(graph, node):
                return window2d(
                    node.name, "weighted sum", data, window, op.x_zero_point, _clamp(op.requant),
                    params, memory, vthreads, parts,
                )  # fmt: skip
            return conv2d(
                node.name,
                data,
                result[0],
                window,
                op.x_zero_point,
                _clamp(op.requant),
                params,
                memory,
                vthreads,
                parts,
            )
        case QDense() as op:
            window = Window((1, 1))
            parts = len(_parts(graph, node))
            return conv2d(
                node.name,
                data,
                result[0],
                window,
                op.x_zero_point,
                _clamp(op.requant),
                params,
                memory,
                vthreads,
                parts,
            )
        case QMaxPool() as op:
            window = Window(op.kernel, op.strides, op.pads)
            clamp = Clamp(0, op.lo, op.hi)
            return window2d(
                node.name, "max", data, window, INT8_MIN, clamp, params, memory, vthreads
            )
        case QAvgPool() as op:
            window = Window(op.kernel, op.strides, op.pads)
            clamp = _clamp(op.requant)
            return window2d(
                node.name, "sum", data, window, op.x_zero_point, clamp, params, memory, vthreads
            )
        case QAdd() as op:
            entries = int(np.prod(data))
            clamp = Clamp(op.zero_point, op.lo, op.hi)
            return add(node.name, entries, (op.mult_a, op.mult_b), clamp, params, vthreads)
        case QAddFixed() as op if parts := lifts(op):
            entries = int(np.prod(data))
            clamp = _clamp(op.requant)
            return add_fixed(node.name, entries, parts, op.subtract, clamp, params, vthreads)
        case QTable(bends=Bends() as found):
            entries = int(np.prod(data))
            clamp = Clamp(0, found.lo, found.hi)
            return bent(node.name, entries, len(found.knots), clamp, params, vthreads)
    raise VdlaError(
        f"node {node.name!r}: operator {type(node.op).__name__} has no schedule for the accelerator"
    )


def parameters_of(graph: Graph, node: Node, params: HwParams) -> list[np.ndarray]:
    """Constant operands in DRAM layout: weights where there are any, then requantisation
    parameters.
    """
    match node.op:
        case QConv2d() | QDense() as op:
            weight, bias = (graph[name].data for name in node.inputs[1:])
            assert weight is not None and bias is not None
            weight = weight.reshape(*weight.shape, *(1,) * (4 - weight.ndim))
            # sum((x - zx) * w) = sum(x * w) - zx * sum(w); padding is zx and so contributes
            # nothing.
            offset = op.x_zero_point * weight.astype(np.int64).sum((1, 2, 3))
            folded = (bias.astype(np.int64) - offset).astype(np.int32)
            parts = _parts(graph, node)
            groups = op.groups if isinstance(op, QConv2d) else 1
            if is_depthwise(graph, node):
                packed, axis = [pack_depthwise_weight(part, params) for part in parts], 1
            else:
                packed = [pack_weight(_across_groups(part, groups), params) for part in parts]
                axis = 2
            together = packed[0] if len(packed) == 1 else np.stack(packed, axis)
            return [together, _requant_parameters(folded, op.requant, params)]
        case QAvgPool() as op:
            count = op.kernel[0] * op.kernel[1]
            bias = np.full(params.block, -op.x_zero_point * count, np.int32)
            return [_requant_parameters(bias, op.requant, params)]
        case QMaxPool():
            return [_uniform(0, IDENTITY_MULTIPLIER, IDENTITY_SHIFT, params)]
        case QAdd() as op:
            return [_uniform(op.const, 1, op.shift, params)]
        case QAddFixed() as op:
            multiplier, shift = int(op.requant.multiplier[0]), int(op.requant.shift[0])
            return [_uniform(0, multiplier, shift, params)]
        case QTable(bends=Bends() as found):
            lanes = (np.repeat(v[:, None], params.block, 1) for v in (found.knots, found.slopes))
            return [*lanes, _uniform(found.bias, 1, FRACTION_BITS, params)]
    raise VdlaError(f"node {node.name!r}: no parameters for {type(node.op).__name__}")


def _parts(graph: Graph, node: Node) -> list[np.ndarray]:
    """The fewest int8 weights [OC,C,KH,KW] whose sum is the node's weight."""
    weight = graph[node.inputs[1]].data
    assert weight is not None
    rest = weight.reshape(*weight.shape, *(1,) * (4 - weight.ndim)).astype(np.int16)
    parts: list[np.ndarray] = []
    while not parts or rest.any():
        parts.append(np.clip(rest, INT8_MIN, INT8_MAX).astype(np.int8))
        rest = rest - parts[-1]
    return parts


def _across_groups(weight: np.ndarray, groups: int) -> np.ndarray:
    """A weight [OC,C/groups,KH,KW] as [OC,C,KH,KW]: zero for the channels of other groups."""
    outputs, channels = weight.shape[0] // groups, weight.shape[1]
    wide = np.zeros((weight.shape[0], groups * channels, *weight.shape[2:]), weight.dtype)
    for g in range(groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        wide[rows, g * channels : (g + 1) * channels] = weight[rows]
    return wide


def _requant_parameters(bias: np.ndarray, requant: Requant, params: HwParams) -> np.ndarray:
    multiplier, shift = (
        np.broadcast_to(values, bias.shape) for values in (requant.multiplier, requant.shift)
    )
    return pack_parameters(bias, multiplier, shift, params)


def _uniform(bias: int, multiplier: int, shift: int, params: HwParams) -> np.ndarray:
    """One parameter set for all channels."""
    rows = [np.full(params.block, value, np.int32) for value in (bias, multiplier, shift)]
    return pack_parameters(rows[0], rows[1], rows[2], params)
