"""Which expression and schedule an operator of the graph gets on the accelerator, and its constants
as they lie in DRAM.
"""

from __future__ import annotations

import numpy as np

from ...isa.errors import VdlaError
from ...isa.memory import MemoryParams
from ...isa.params import HwParams
from ..graph.fixed_ops import QAddFixed
from ..graph.ir import Graph, Node
from ..graph.lift import lifts
from ..graph.ops import QAdd, QAvgPool, QConv2d, QConvTranspose2d, QDense, QMaxPool
from ..graph.requant import INT8_MIN, Requant
from ..graph.subpixel import Subpixel, phase_weights, subpixels
from ..runtime.layout import blocks, pack_depthwise_weight, pack_parameters, pack_weight
from ..tir.ir import PrimFunc
from .accel import Clamp, Window, add, conv2d, window2d
from .accel_add import add_fixed
from .accel_transpose import conv2d_transpose
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
            window = Window((kernel[0], kernel[1]), op.strides, op.pads, op.dilations)
            if op.groups > 1:
                return window2d(
                    node.name, "weighted sum", data, window, op.x_zero_point, _clamp(op.requant),
                    params, memory, vthreads,
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
            )
        case QDense() as op:
            window = Window((1, 1))
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
            )
        case QConvTranspose2d():
            rows, cols = _phases(graph, node)
            return conv2d_transpose(
                node.name, data, result[0], rows, cols, node.op.x_zero_point,
                _clamp(node.op.requant), params, memory, vthreads,
            )  # fmt: skip
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
            if isinstance(op, QConv2d) and op.groups > 1:
                depthwise = pack_depthwise_weight(weight, params)
                return [depthwise, _requant_parameters(folded, op.requant, params)]
            return [pack_weight(weight, params), _requant_parameters(folded, op.requant, params)]
        case QConvTranspose2d():
            return _transposed_parameters(graph, node, params)
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
    raise VdlaError(f"node {node.name!r}: no parameters for {type(node.op).__name__}")


def _phases(graph: Graph, node: Node) -> tuple[Subpixel, Subpixel]:
    """The decomposition of a transposed convolution, which ``partition`` has seen to exist."""
    assert isinstance(node.op, QConvTranspose2d)
    kernel = graph[node.inputs[1]].shape[2:]
    found = subpixels(node.op, (kernel[0], kernel[1]))
    assert found is not None
    return found


def _transposed_parameters(graph: Graph, node: Node, params: HwParams) -> list[np.ndarray]:
    """Weights [O/block][I/block][phases][taps][block][block], and parameters of every phase, which
    has its own sum of weights: [O/block][phases][3][block].
    """
    op = node.op
    assert isinstance(op, QConvTranspose2d)
    weight, bias = (graph[name].data for name in node.inputs[1:])
    assert weight is not None and bias is not None
    phases = phase_weights(weight, *_phases(graph, node))
    weights, requants = [], []
    for part in phases.reshape(-1, *phases.shape[2:]):
        folded = bias - op.x_zero_point * part.astype(np.int64).sum((1, 2, 3))
        weights.append(pack_weight(part, params))
        requants.append(_requant_parameters(folded.astype(np.int32), op.requant, params))
    return [np.stack(weights, axis=2), np.stack(requants, axis=1)]


def _requant_parameters(bias: np.ndarray, requant: Requant, params: HwParams) -> np.ndarray:
    multiplier, shift = (
        np.broadcast_to(values, bias.shape) for values in (requant.multiplier, requant.shift)
    )
    return pack_parameters(bias, multiplier, shift, params)


def _uniform(bias: int, multiplier: int, shift: int, params: HwParams) -> np.ndarray:
    """One parameter set for all channels."""
    rows = [np.full(params.block, value, np.int32) for value in (bias, multiplier, shift)]
    return pack_parameters(rows[0], rows[1], rows[2], params)
