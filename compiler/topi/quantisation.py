"""Between real numbers and integers, and between integers of different scales."""

from __future__ import annotations

from collections.abc import Callable

from ..te.expr import Call, Const, Expr, integer_range
from ..te.tensor import Tensor, clip, compute

#: The intrinsic of each way to round a requantisation (``isa/vector_ops.py`` defines both).
RESCALE = {"even": "requantize", "tflite": "requantize_tflite"}


def rescale(
    acc: Expr,
    multiplier: Expr | int,
    shift: Expr | int,
    rounding: str = "even",
    dtype: str = "int64",
) -> Expr:
    """int32 ``acc * multiplier / 2**shift``, rounded "even" or as "tflite" does; as ``dtype``,
    which the result must fit.
    """
    factors = [Const(v) if isinstance(v, int) else v for v in (multiplier, shift)]
    return Call(RESCALE[rounding], (acc, *factors), dtype)


def requantize(
    acc: Tensor,
    multiplier: Tensor,
    shift: Tensor,
    zero_point: int = 0,
    lo: int = -128,
    hi: int = 127,
    rounding: str = "even",
    bias: Tensor | None = None,
    name: str = "out",
) -> Tensor:
    """``clip(rescale(acc + bias) + zero_point, lo, hi)`` as int8.

    Parameters
    ----------
    acc : int32, channels along axis 1
    multiplier, shift : int32 [channels], or [1] for all of them
    bias : int32 [channels], or None
    """

    def rule(*index: Expr) -> Expr:
        channel = index[1] if multiplier.shape[0] > 1 else Const(0)
        total = acc[index] + bias[index[1]] if bias is not None else acc[index]
        scaled = rescale(total, multiplier[channel], shift[channel], rounding)
        return clipped(scaled, zero_point, lo, hi)

    return compute(acc.shape, rule, name)


def clipped(scaled: Expr, zero_point: int, lo: int, hi: int) -> Expr:
    """``clip(scaled + zero_point, lo, hi)`` as int8. It is computed in int64, because the result of
    a large scale does not fit int32 before it is clipped.
    """
    return clip(scaled + zero_point, lo, hi).astype("int8")


#: Gives the scale or the zero point of the element at an index.
Along = Callable[[tuple[Expr, ...]], Expr]


def quantize(x: Tensor, scale: Along, zero_point: Along, dtype: str) -> Tensor:
    """``clip(round_half_even(x / scale) + zero_point)`` of float32 to an 8-bit integer.

    Bounds apply before the conversion, in float32: beyond 2**24, where adding the zero point would
    round, the result is a bound anyway.
    """
    low, high = integer_range(dtype)

    def rule(*index: Expr) -> Expr:
        steps = Call("round", (x[index] / scale(index),), "float32")
        stored = steps + zero_point(index).astype("float32")
        return clip(stored, float(low), float(high)).astype(dtype)

    return compute(x.shape, rule, "out")


def dequantize(x: Tensor, scale: Along, zero_point: Along) -> Tensor:
    """``float32(x - zero_point) * scale`` of an integer tensor."""

    def rule(*index: Expr) -> Expr:
        shifted = x[index].astype("int64") - zero_point(index).astype("int64")
        return shifted.astype("float32") * scale(index)

    return compute(x.shape, rule, "out")
