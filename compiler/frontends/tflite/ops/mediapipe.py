"""MediaPipe's custom operators. Their options are the fields of the C structures
``TfLiteTransposeConvParams`` and ``TfLitePoolParams``, in order, as int32.
"""

from __future__ import annotations

import struct

import numpy as np
import tflite

from ....graph.ops.base import Pads, Pair
from ....graph.ops.convolution import ConvTranspose2d
from ....graph.ops.pooling import MaxPool, Pool, PoolArg
from ....te.expr import Call as Function
from ....te.expr import Const, Expr, select
from ..graph import Call, Rows
from .convolution import image_shape
from .weights import float_bias, float_weight

#: The C enumeration of paddings, whose first one is unknown.
_SAME, _VALID = 1, 2
_NO_ACTIVATION = int(tflite.ActivationFunctionType.NONE)


def _fields(call: Call, count: int) -> tuple[int, ...]:
    """The first fields of the options: a padding, and numbers of at least 1."""
    data = call.operator.options
    if len(data) < 4 * count:
        raise call.refuse(f"expected options of at least {4 * count} bytes, got {len(data)}")
    padding, *rest = struct.unpack(f"<{count}i", data[: 4 * count])
    if padding not in (_SAME, _VALID) or min(rest) < 1 or max(rest) > 1 << 14:
        raise call.refuse(f"its options are damaged: {padding}, {rest}")
    return padding, *rest


def _transposed_convolution(call: Call) -> None:
    """A transposed convolution with a bias, whose result's size follows from the image's."""
    padding, stride_w, stride_h = _fields(call, 3)
    weight, image = float_weight(call), image_shape(call)[1:3]
    if weight.ndim != 4:
        raise call.refuse(f"expected a weight of 4 dimensions, got {list(weight.shape)}")
    strides, cut, size = (stride_h, stride_w), [0, 0], [0, 0]
    for i, (n, k, s) in enumerate(zip(image, weight.shape[1:3], strides, strict=True)):
        cut[i] = max(0, k - (n - 1) % s - 1) if padding == _SAME else 0
        size[i] = s * (n - 1) + k - cut[i]
    op = ConvTranspose2d(strides, (cut[0] // 2, cut[1] // 2), (size[0], size[1]))
    operands = (call.tensor(0, "nchw"), call.value(weight.transpose(3, 0, 1, 2)))
    call.define(call.emit(op, *operands, *float_bias(call, 2)), "nchw")


def _pool(call: Call) -> tuple[Pair, Pair, bool]:
    """Kernel and strides of a window, and whether the padding is "same"."""
    padding, stride_w, stride_h, width, height = _fields(call, 5)
    activation = call.operator.options[20:24]
    if activation and struct.unpack("<i", activation)[0] != _NO_ACTIVATION:
        raise call.refuse("a fused activation is not supported")
    return (height, width), (stride_h, stride_w), padding == _SAME


def _max_pool(call: Call) -> None:
    """The maxima, and for each the place in its window plus 0.1, as a float."""
    kernel, (sh, sw), same = _pool(call)
    image, spread = image_shape(call)[1:3], [0, 0]
    for i, (n, k, s) in enumerate(zip(image, kernel, (sh, sw), strict=True)):
        spread[i] = max((-(-n // s) - 1) * s + k - n, 0) if same else 0
    top, left = (n // 2 for n in spread)
    pads: Pads = (top, left, spread[0] - top, spread[1] - left)
    x = call.tensor(0, "nchw")
    largest = call.emit(MaxPool(kernel, (sh, sw), pads), x)
    where = call.emit(PoolArg(Pool("max", kernel, (sh, sw), pads, (1, 1))), x)
    rows, columns = (np.arange(n) for n in largest.shape[2:])
    size, width = (Const(int(n), "int64") for n in (image[0] * image[1], image[1]))

    def place(at: Expr, row: Expr, column: Expr) -> Expr:
        inside = Function("remainder", (at, size), "int64")
        y = Function("divide", (inside, width), "int64") - row
        x = Function("remainder", (inside, width), "int64") - column
        return (y * kernel[1] + x).astype("float32") + 0.1

    starts = (
        call.value((rows * sh - top)[:, None], "int64"),
        call.value(columns * sw - left, "int64"),
    )
    values, places = call.results
    call.define(largest, "nchw", values)
    call.define(call.map(place, where, *starts), "nchw", places)


def _unpool(call: Call) -> None:
    """Each element at its place in a window of zeros; windows lie side by side."""
    kernel, strides, _ = _pool(call)
    if kernel != strides:
        raise call.refuse(f"expected windows side by side, got {kernel} every {strides}")
    n, height, width, channels = image_shape(call)
    apart = (n, height, 1, width, 1, channels)
    codes = call.value(
        np.arange(kernel[0] * kernel[1]).reshape(kernel[0], 1, kernel[1], 1), "int32"
    )

    def rule(v: Expr, place: Expr, code: Expr) -> Expr:
        return select(place.astype("int32").equal(code), v, Const(0.0, "float32"))

    x, places = (call.reshape(call.tensor(i), apart) for i in (0, 1))
    spread = call.map(rule, x, places, codes)
    call.define(call.reshape(spread, (n, height * kernel[0], width * kernel[1], channels)))


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "Convolution2DTransposeBias": {"float32": _transposed_convolution},
    "MaxPoolingWithArgmax2D": {"float32": _max_pool},
    "MaxUnpooling2D": {"float32": _unpool},
}
