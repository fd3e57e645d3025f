"""Helpers of readers of TensorFlow Lite operators: activations, windows, matrices of rows."""

from __future__ import annotations

import math

import numpy as np
import tflite

from ...graph.ir import Tensor
from ...graph.ops.base import Op, Pads, Pair
from ...graph.ops.movement import Reshape
from .graph import Call

_Activation = tflite.ActivationFunctionType
#: Real bounds of each fused activation.
ACTIVATIONS = {
    _Activation.NONE: (-math.inf, math.inf),
    _Activation.RELU: (0.0, math.inf),
    _Activation.RELU_N1_TO_1: (-1.0, 1.0),
    _Activation.RELU6: (0.0, 6.0),
}
#: Pixels from end to end of a window; more is a damaged file.
MAX_REACH = 1 << 14
_ACTIVATION_NAMES = {code: name for name, code in vars(_Activation).items() if type(code) is int}


def activation(call: Call) -> tuple[float, float]:
    """Real bounds of the fused activation, if the operator has one."""
    code = call.operator.options.get("FusedActivationFunction", _Activation.NONE)
    if code not in ACTIVATIONS:
        raise call.refuse(
            f"fused activation {_ACTIVATION_NAMES.get(code, code)} is not supported;"
            f" supported are {', '.join(_ACTIVATION_NAMES[c] for c in ACTIVATIONS)}"
        )
    return ACTIVATIONS[code]


# ---- windows -------------------------------------------------------------------------------------


def _strides(call: Call) -> Pair:
    strides = call.option("StrideH"), call.option("StrideW")
    if min(strides) < 1:
        raise call.refuse(f"expected strides of at least 1, got {strides!r}")
    return strides


def _pads(call: Call, kernel: Pair, strides: Pair, dilations: Pair = (1, 1)) -> Pads:
    mode = call.option("Padding")
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    if max(reach) > MAX_REACH:
        raise call.refuse(f"expected a window within {MAX_REACH} pixels, got one of {reach}")
    if mode == tflite.Padding.VALID:
        return 0, 0, 0, 0
    if mode != tflite.Padding.SAME:
        raise call.refuse(f"expected padding SAME or VALID, got {mode!r}")
    before, after = [], []
    sizes = call.operand(0).shape[1:3]
    for size, r, s in zip(sizes, reach, strides, strict=True):
        total = max((-(-size // s) - 1) * s + r - size, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return before[0], before[1], after[0], after[1]


def image_shape(call: Call) -> tuple[int, ...]:
    """The shape [N,H,W,C] of the first operand."""
    shape = call.operand(0).shape
    if len(shape) != 4:
        raise call.refuse(f"expected an image [N,H,W,C], got {call.operand(0)} {list(shape)}")
    return shape


def window_geometry(call: Call, kernel: Pair) -> tuple[Pair, Pads, Pair]:
    """Strides, pads and dilations of a convolution."""
    strides = _strides(call)
    dilations = call.option("DilationHFactor"), call.option("DilationWFactor")
    if min(dilations) < 1:
        raise call.refuse(f"expected dilations of at least 1, got {dilations!r}")
    return strides, _pads(call, kernel, strides, dilations), dilations


def window(call: Call) -> tuple[Pair, Pair, Pads]:
    """Kernel, strides and pads of a pooling."""
    image_shape(call)
    kernel, strides = (call.option("FilterHeight"), call.option("FilterWidth")), _strides(call)
    if min(kernel) < 1:
        raise call.refuse(f"expected a window of at least 1x1, got {kernel!r}")
    return kernel, strides, _pads(call, kernel, strides)


# ---- matrices ------------------------------------------------------------------------------------


def dense_operands(call: Call, weight: np.ndarray) -> tuple[Tensor, Tensor]:
    """The rows that a dense layer reads, and its weight, in the rows' order."""
    if call.option("WeightsFormat") != tflite.FullyConnectedOptionsWeightsFormat.DEFAULT:
        raise call.refuse("shuffled weights are not supported")
    if weight.ndim != 2:
        raise call.refuse(f"expected a weight matrix, got {list(weight.shape)}")
    x, order = _rows(call, weight.shape[1])
    name = call.importer.label(call.operand(1))
    if order is not None:
        name, weight = f"{name}.{call.name}", weight[:, order]
    return x, call.importer.constant(name, weight)


def emit_matrix(call: Call, op: Op, *operands: Tensor) -> None:
    """The node of a dense layer, whose result may have more than two dimensions in the file."""
    matrix = call.emit(op, *operands)
    if len(call.result.shape) != 2:
        matrix = call.reshape(matrix, matrix_shape(call, matrix.shape[1]))
    call.define(matrix)


def rows_of(call: Call, value: Tensor, width: int) -> Tensor:
    """A tensor of the graph as rows of ``width`` elements."""
    count = math.prod(value.shape)
    if count % width:
        raise call.refuse(f"{call.operand(0)} has no rows of {width} elements")
    return call.reshape(value, (count // width, width))


def matrix_shape(call: Call, units: int) -> tuple[int, ...]:
    """The shape of a dense layer's result: all dimensions of its rows, or one."""
    said = call.importer.shape(call.result)
    if -1 not in call.result.signature:
        return said
    shape = call.importer.shape(call.operand(0))
    if call.option("KeepNumDims"):
        return (*shape[:-1], units)
    return (math.prod(shape) // call.operand(1).shape[-1], units)


def _rows(call: Call, width: int) -> tuple[Tensor, np.ndarray | None]:
    """The operand as a matrix of rows, and the order in which weights must come, or None."""
    importer, layouts = call.importer, call.layouts(0)
    if "plain" not in layouts and "flat" in layouts:
        image = importer.tensors[importer.nodes_of(layouts["flat"]).inputs[0]].shape[1:]
        if math.prod(image) == width:
            return importer.tensors[layouts["flat"]], _nchw_order(image)
    if "plain" not in layouts and "nchw" in layouts:
        batch, *image = importer.tensors[layouts["nchw"]].shape
        if math.prod(image) == width:
            shape = (batch, width)
            return _reshaped(call, layouts["nchw"], shape, "rows"), _nchw_order(tuple(image))
    source = call.tensor(0)
    if math.prod(source.shape) % width:
        raise call.refuse(f"{call.operand(0)} {list(source.shape)} has no rows of {width} elements")
    rows = (math.prod(source.shape) // width, width)
    if source.shape == rows:
        return source, None
    return _reshaped(call, source.name, rows, f"rows{width}"), None


def _reshaped(call: Call, source: str, shape: tuple[int, ...], layout: str) -> Tensor:
    """The operand in another shape, which all operators that read it so share."""
    importer, name = call.importer, f"{call.importer.label(call.operand(0))}.{layout}"
    if name not in importer.tensors:
        importer.emit(name, Reshape(shape), (source,), name)
    return importer.tensors[name]


def _nchw_order(image: tuple[int, ...]) -> np.ndarray:
    """For each element of a flattened [C,H,W], its place in the flattened [H,W,C]."""
    channels, height, width = image
    places = np.arange(math.prod(image)).reshape(height, width, channels)
    return places.transpose(2, 0, 1).reshape(-1)
