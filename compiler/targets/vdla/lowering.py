"""Which expression and schedule an operator of the graph gets on the accelerator, and its constants
as they lie in DRAM.
"""

from __future__ import annotations

import numpy as np

from ....isa.errors import VdlaError
from ....isa.memory import MemoryParams
from ....isa.params import HwParams
from ....runtime.layout import blocks, pack_depthwise_weight, pack_parameters, pack_weight
from ...graph.arithmetic.bends import FRACTION_BITS, Bends
from ...graph.arithmetic.lift import Lift, lift
from ...graph.arithmetic.requant import INT8_MAX, INT8_MIN, Requant
from ...graph.arithmetic.subpixel import Subpixel, phase_weights, subpixels
from ...graph.ir import Graph, Node
from ...graph.ops.convolution import QConv2d, QConvTranspose2d
from ...graph.ops.integer import QAdd, QAddFixed, QTable
from ...graph.ops.linear import QDense
from ...graph.ops.pooling import QAvgPool, QMaxPool
from ...tir.ir import PrimFunc
from ...topi.quantisation import RESCALE
from .add import add_fixed
from .expressions import Clamp, Kind, Window, add, conv2d, window2d
from .planner import ConvShape, plan_conv, plan_window
from .table import bent
from .transpose import conv2d_transpose, transposed_shape

#: Integer operators with weights.
Product = QConv2d | QConvTranspose2d | QDense

#: A requantisation that changes nothing: multiplier / 2**shift = 1.
IDENTITY_MULTIPLIER, IDENTITY_SHIFT = 1 << 30, 30


def _image(shape: tuple[int, ...], params: HwParams) -> tuple[int, int, int]:
    """(channel blocks, H, W) of an activation; vectors are images of one pixel."""
    _, channels, *spatial = shape
    height, width = spatial or (1, 1)
    return blocks(channels, params), height, width


def _clamp(requant: Requant) -> Clamp:
    return Clamp(requant.zero_point, requant.lo, requant.hi, RESCALE[requant.rounding])


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether a node is a convolution of every channel by itself."""
    return isinstance(node.op, QConv2d) and node.op.is_depthwise(graph[node.inputs[1]].shape)


def lifts(op: QAddFixed) -> tuple[Lift, Lift] | None:
    """What equals the rescaled first and second operand for every value, if there is such."""
    first = lift(op.zero_a, op.mult_a, op.shift_a)
    second = lift(op.zero_b, op.mult_b, op.shift_b)
    return (first, second) if first and second else None


def on_tensor_core(graph: Graph, node: Node) -> bool:
    """Whether the tensor core computes the operator, not the vector unit alone."""
    return isinstance(node.op, Product) and not is_depthwise(graph, node)


def conv_shape(graph: Graph, node: Node, params: HwParams) -> ConvShape:
    """An operator that moves a window over an image (a dense layer: of one pixel), in blocks."""
    ic_blocks, _, _ = _image(graph[node.inputs[0]].shape, params)
    if isinstance(node.op, QConvTranspose2d):
        oc_blocks, _, _ = _image(graph.result(node).shape, params)
        return transposed_shape(ic_blocks, oc_blocks, *_phases(graph, node))
    window, result = _window(graph, node), _image(graph.result(node).shape, params)
    return ConvShape(
        ic_blocks, *result, *window.kernel, *window.strides, *window.dilations,
        skips_rows=on_tensor_core(graph, node), parts=_part_count(graph, node),
    )  # fmt: skip


def _part_count(graph: Graph, node: Node) -> int:
    return len(_parts(graph, node)) if isinstance(node.op, QConv2d | QDense) else 1


def _window(graph: Graph, node: Node) -> Window:
    match node.op:
        case QConv2d() as op:
            kernel = graph[node.inputs[1]].shape[2:]
            return Window((kernel[0], kernel[1]), op.strides, op.pads, op.dilations)
        case QMaxPool() | QAvgPool() as op:
            return Window(op.kernel, op.strides, op.pads)
    return Window((1, 1))


def lower_node(
    graph: Graph,
    node: Node,
    params: HwParams,
    memory: MemoryParams,
    vthreads: int,
    rows_first: bool | None = None,
    beside: bool = False,
) -> PrimFunc:
    """The loop program of one operator: parameters are its activations, the arrays of
    :func:`parameters_of`, its result. Tiles are chosen for ``memory``, and so that results come
    rows first, or not, where that is given; ``beside`` operators of the other lane, or alone.
    """
    data = _image(graph[node.inputs[0]].shape, params)
    op = node.op
    if isinstance(op, QAdd):
        clamp = Clamp(op.zero_point, op.lo, op.hi)
        return add(node.name, int(np.prod(data)), (op.mult_a, op.mult_b), clamp, params, vthreads)
    if isinstance(op, QAddFixed) and (parts := lifts(op)):
        entries, clamp = int(np.prod(data)), _clamp(op.requant)
        return add_fixed(node.name, entries, parts, op.subtract, clamp, params, vthreads)
    if isinstance(op, QTable) and isinstance(op.bends, Bends):
        entries, clamp = int(np.prod(data)), Clamp(0, op.bends.lo, op.bends.hi)
        return bent(node.name, entries, len(op.bends.knots), clamp, params, vthreads)
    if not isinstance(op, Product | QMaxPool | QAvgPool):
        raise VdlaError(
            f"node {node.name!r}: operator {type(op).__name__} has no schedule for the accelerator"
        )
    if isinstance(op, QConvTranspose2d):
        rows, cols = _phases(graph, node)
        shape = conv_shape(graph, node, params)
        tiling = plan_conv(shape, params, memory, vthreads, rows_first, beside)
        return conv2d_transpose(
            node.name, data, shape.oc_blocks, rows, cols, op.x_zero_point, _clamp(op.requant),
            params, tiling, vthreads,
        )  # fmt: skip
    window, shape = _window(graph, node), conv_shape(graph, node, params)
    if on_tensor_core(graph, node):
        assert isinstance(op, QConv2d | QDense)
        tiling = plan_conv(shape, params, memory, vthreads, rows_first, beside)
        return conv2d(
            node.name, data, shape.oc_blocks, window, op.x_zero_point, _clamp(op.requant), params,
            tiling, vthreads, shape.parts,
        )  # fmt: skip
    kind, pad_value, clamp = _reduction(op)  # type: ignore[arg-type]
    tiling = plan_window(shape, kind == "weighted sum", params, memory, vthreads, bool(rows_first))
    return window2d(
        node.name, kind, data, window, pad_value, clamp, params, tiling, vthreads, shape.parts
    )


def _reduction(op: QConv2d | QDense | QMaxPool | QAvgPool) -> tuple[Kind, int, Clamp]:
    """How the vector unit reduces a window, what is around the image, how the result is rounded."""
    if isinstance(op, QMaxPool):
        return "max", INT8_MIN, Clamp(0, op.lo, op.hi)
    kind: Kind = "sum" if isinstance(op, QAvgPool) else "weighted sum"
    return kind, op.x_zero_point, _clamp(op.requant)


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


def _phases(graph: Graph, node: Node) -> tuple[Subpixel, Subpixel]:
    """The decomposition of a transposed convolution, which ``partition`` has seen to exist."""
    assert isinstance(node.op, QConvTranspose2d)
    kernel = graph[node.inputs[1]].shape[2:]
    op = node.op
    found = subpixels((kernel[0], kernel[1]), op.strides, op.before, op.size)
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
