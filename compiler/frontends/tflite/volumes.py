"""Readers of convolutions over three dimensions, of float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tflite

from ...graph.ir import Tensor
from ...graph.ops.convolution import Convolution, ConvolutionTranspose
from ...te.expr import Expr
from .elementwise import numbers
from .geometry import MAX_REACH
from .graph import Call
from .mapping import between

Reader = Callable[[Call], None]
_TO_FRONT, _TO_BACK = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def _triple(call: Call, name: str) -> tuple[int, ...]:
    """An option of each dimension, such as ``Stride{}``."""
    found = tuple(call.option(name.format(axis)) for axis in "DHW")
    if min(found) < 1:
        raise call.refuse(f"expected strides and dilations of at least 1, got {found}")
    return found


def _operands(call: Call, position: int) -> tuple[Tensor, np.ndarray]:
    """The image with its channels first, and the weight [D, H, W, ...]."""
    value, weight = call.tensor(position), call.constant(1, "weight")
    if len(value.shape) != 5 or weight.ndim != 5 or weight.dtype != np.float32:
        raise call.refuse(
            f"expected [N,D,H,W,C] and a weight float32 of 5 dimensions, got"
            f" {list(value.shape)} and {weight.dtype}{list(weight.shape)}"
        )
    return call.transpose(value, _TO_FRONT), weight


def _emit(call: Call, total: Tensor, bias: int) -> None:
    """The sums with bias and activation, channels last again."""
    channels = total.shape[1]
    operands = [call.transpose(total, _TO_BACK)]
    if call.optional(bias) is not None:
        data = call.constant(bias, "bias")
        if data.dtype != np.float32 or data.shape != (channels,):
            raise call.refuse(f"expected a bias float32[{channels}], got {call.operand(bias)}")
        operands.append(call.value(data))

    def rule(x: Expr, *b: Expr) -> Expr:
        return between(call, x + b[0] if b else x * 1.0)

    call.define(call.map(rule, *operands))


def _convolved(call: Call) -> None:
    value, weight = _operands(call, 0)
    strides, dilations = _triple(call, "Stride{}"), _triple(call, "Dilation{}Factor")
    before, after = [0] * 3, [0] * 3
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape, dilations, strict=False)]
    if max(reach) > MAX_REACH:
        raise call.refuse(f"expected a window within {MAX_REACH} places, got {reach}")
    if call.option("Padding") == tflite.Padding.SAME:
        for axis, size in enumerate(value.shape[2:]):
            stride = strides[axis]
            total = max((-(-size // stride) - 1) * stride + reach[axis] - size, 0)
            before[axis], after[axis] = total // 2, total - total // 2
    groups, rest = divmod(value.shape[1], weight.shape[3])
    if rest or not groups:
        raise call.refuse(f"weight {list(weight.shape)} does not fit {value.shape[1]}")
    op = Convolution(strides, (*before, *after), dilations, groups)
    stored = call.value(np.ascontiguousarray(weight.transpose(4, 3, 0, 1, 2)))
    _emit(call, call.emit(op, value, stored), 2)


def _spread(call: Call) -> None:
    """Operand 0 is the result's shape, 1 the weight [D, H, W, results, operands], 2 the image."""
    value, weight = _operands(call, 2)
    strides, dilations = _triple(call, "Stride{}"), _triple(call, "Dilation{}Factor")
    size = tuple(numbers(call, 0, "shape")[1:4])
    before = [0] * 3
    if call.option("Padding") == tflite.Padding.SAME:
        for axis, n in enumerate(size):
            reach, stride = (weight.shape[axis] - 1) * dilations[axis] + 1, strides[axis]
            before[axis] = max((-(-n // stride) - 1) * stride + reach - n, 0) // 2
    op = ConvolutionTranspose(strides, tuple(before), dilations, 1, size)
    stored = call.value(np.ascontiguousarray(weight.transpose(4, 3, 0, 1, 2)))
    _emit(call, call.emit(op, value, stored), 3)


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {
    "CONV_3D": {"float32": _convolved},
    "CONV_3D_TRANSPOSE": {"int32": _spread},
}
