"""Operators that ONNX never settled, which ONNX Runtime reads in operator sets before 10: files of
Core ML's and Caffe2's converters have them. What they mean is what ONNX Runtime computes.
"""

from __future__ import annotations

from collections.abc import Callable

from ....graph.ops.movement import Slice
from ....te.expr import Expr
from .call import Call, Outputs, Reader
from .elementwise import function, number, softplus


def _function(rule: Callable[..., Expr], **defaults: float) -> Reader:
    """A function of elements with numbers as attributes."""

    def read(call: Call) -> Outputs:
        values = [call.number(name, default) for name, default in defaults.items()]
        return call.map(lambda x: rule(x, *(number(value, x) for value in values)), call.operand(0))

    return read


def _image_scaler(call: Call) -> Outputs:
    x = call.operand(0)
    bias = call.value(call.array("bias", "float32"), x.dtype)
    if bias.shape != x.shape[1:2]:
        raise call.refuse(
            f"expected a bias for each channel of {x.type_text}, got {bias.type_text}"
        )
    column = call.reshape(bias, (*bias.shape, *[1] * (len(x.shape) - 2)))
    scale = call.number("scale", 1.0)
    return call.map(lambda v, b: v * number(scale, v) + b, x, column)


def _crop(call: Call) -> Outputs:
    """An image [N, C, H, W] without borders (left, top, right, bottom); ``scale`` is the height and
    the width that are left of what lies behind the first two."""
    x = call.operand(0)
    if len(x.shape) != 4:
        raise call.refuse(f"expected an image [N, C, H, W], got {x.type_text}")
    left, top, right, bottom = call.integers("border", (0, 0, 0, 0))
    size = (x.shape[2] - top - bottom, x.shape[3] - left - right)
    if call.attributes.get("scale"):
        size = call.integers("scale", size)
    room = (x.shape[2] - top, x.shape[3] - left)
    if min(left, top) < 0 or any(not 0 < n <= most for n, most in zip(size, room, strict=True)):
        raise call.refuse(f"cannot cut {size} at {(top, left)} from {x.type_text}")
    return call.emit(Slice((0, 0, top, left), (1, 1, 1, 1), (*x.shape[:2], *size)), x)


READERS: dict[str, Reader] = {
    "Affine": _function(lambda x, a, b: x * a + b, alpha=1.0, beta=0.0),
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _function(lambda x, a, b: softplus(x * b) * a, alpha=1.0, beta=1.0),
    "Scale": _function(lambda x, a: x * a, scale=1.0),
    "ScaledTanh": _function(lambda x, a, b: function("tanh", x * b) * a, alpha=1.0, beta=1.0),
}
