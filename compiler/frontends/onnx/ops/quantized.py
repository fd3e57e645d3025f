"""Conversions between floats and integers, and operators on quantised integers.

Where scale and zero point are constants of a form that the quantised flow knows, ``Quantize`` and
``Dequantize`` are made, which passes fuse; elsewhere, general arithmetic.
"""

from __future__ import annotations

import math

import numpy as np

from ....graph.arithmetic.requant import (
    MULTIPLIER_BITS,
    OFFSET,
    UINT8_MAX,
    Requant,
    centre,
    requant,
)
from ....graph.ir import Tensor
from ....graph.ops.convolution import Convolution, QConv2d
from ....graph.ops.elementwise import SubtractZeroPoint
from ....graph.ops.linear import QDense, QMatMul
from ....graph.ops.quantisation import Dequantize, Quant, Quantize
from ....te.expr import FLOAT_DTYPES, INT_DTYPES, Expr, integer_range, maximum, minimum, select
from ....te.expr import Call as FunctionCall
from .call import Call, Outputs, Reader, as_before, signed
from .elementwise import dtype_of, number
from .linear import matmul
from .spatial import convolution_of, image_shape, image_window


def _known_quant(call: Call, dtype: str) -> Quant | None:
    """Constant scales of the quantised flow's form, or None."""
    scale, zero = call.operand(1), call.optional(2)
    if scale.data is None or (zero is not None and zero.data is None):
        return None
    stored = np.zeros(scale.shape, dtype) if zero is None else zero.data
    assert stored is not None
    fits = scale.dtype == "float32" and len(scale.shape) <= 1 and stored.shape == scale.shape
    if not fits or str(stored.dtype) not in ("int8", "uint8", "int32"):
        return None
    if not (np.isfinite(scale.data).all() and (scale.data > 0).all()):
        raise call.refuse("expected positive finite scales")
    rank = len(call.operand(0).shape)
    axis = call.integer("axis", 1)
    axis = None if scale.data.size == 1 else axis + rank if axis < 0 else axis
    flat = scale.data.reshape(-1)
    return Quant(flat, stored.reshape(-1).astype(np.int32), str(stored.dtype), axis)


def _along(call: Call, values: Tensor, x: Tensor) -> Tensor:
    """Scales or zero points, per tensor, per axis or per block, in a shape that broadcasts."""
    if not values.shape or values.shape == (1,):
        return call.reshape(values, ())
    rank = len(x.shape)
    axis = call.axis(call.integer("axis", 1), rank)
    block = call.integer("block_size", 0)
    if not block:
        if values.shape != (x.shape[axis],):
            raise call.refuse(
                f"expected {x.shape[axis]} scales and zero points for shape {list(x.shape)},"
                f" got {values.type_text}"
            )
        return call.reshape(
            values, (-1 if rank == 0 else values.shape[0], *[1] * (rank - axis - 1))
        )
    blocks = -(-x.shape[axis] // block)
    if values.shape != (*x.shape[:axis], blocks, *x.shape[axis + 1 :]):
        raise call.refuse(f"expected a scale per {block} elements, got {values.type_text}")
    return call.gather(values, np.arange(x.shape[axis]) // block, axis)


def saturated(steps: Expr, zero: Expr, dtype: str) -> Expr:
    """``clamp(round_half_even(steps) + zero)`` as ``dtype``. Bounds apply before the conversion."""
    low, high = integer_range(dtype)
    shifted = FunctionCall("round", (steps,), steps.dtype) + zero.astype(steps.dtype)
    return minimum(maximum(shifted, number(low, steps)), number(high, steps)).astype(dtype)


def _quantize(call: Call) -> Outputs:
    x, scale, zero = call.operand(0), call.operand(1), call.optional(2)
    output = call.integer("output_dtype", 0)
    dtype = dtype_of(call, output) if output else "uint8" if zero is None else zero.dtype
    if dtype not in INT_DTYPES or dtype[-2:] in ("32", "64"):
        raise call.refuse(f"supported output types are int8, uint8, int16, uint16, got {dtype}")
    if x.dtype == "float32" and not call.integer("block_size", 0):
        quant = _known_quant(call, dtype)
        if quant is not None:
            return call.emit(Quantize(quant), x)
    precision = call.integer("precision", 0)
    float_dtype = dtype_of(call, precision) if precision else scale.dtype
    if float_dtype not in FLOAT_DTYPES:
        raise call.refuse(f"expected float scales, got {scale.type_text}")
    offset = call.value(0, dtype) if zero is None else _along(call, zero, x)

    def rule(v: Expr, s: Expr, z: Expr) -> Expr:
        return saturated(v.astype(float_dtype) / s.astype(float_dtype), z, dtype)

    return call.map(rule, x, _along(call, scale, x), offset)


def _dequantize(call: Call) -> Outputs:
    x, scale, zero = call.operand(0), call.operand(1), call.optional(2)
    if x.dtype not in INT_DTYPES:
        raise call.refuse(f"expected integers, got {x.type_text}")
    if x.dtype in ("int8", "uint8", "int32") and not call.integer("block_size", 0):
        quant = _known_quant(call, x.dtype)
        if quant is not None:
            return call.emit(Dequantize(quant), x)
    output = call.integer("output_dtype", 0)
    dtype = dtype_of(call, output) if output else scale.dtype
    offset = call.value(0, x.dtype) if zero is None else _along(call, zero, x)

    def rule(v: Expr, s: Expr, z: Expr) -> Expr:
        shifted = v.astype("int64") - z.astype("int64")
        return (shifted.astype(s.dtype) * s).astype(dtype)

    return call.map(rule, x, _along(call, scale, x), offset)


def dynamic_quantize(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor as uint8, with its scale and zero point, which follow from its range."""
    axes = tuple(range(len(x.shape)))
    least, most = (call.reduce(kind, x, axes, keepdims=False) for kind in ("min", "max"))

    def scale_of(a: Expr, b: Expr) -> Expr:
        """1 where there are only zeros, as ONNX Runtime has it."""
        low, high = minimum(a, number(0, a)), maximum(b, number(0, b))
        return select(high.equal(low), number(1, a), (high - low) / 255)

    scale = call.map(scale_of, least, most)
    zero = call.map(
        lambda a, s: saturated(number(0, a) - minimum(a, number(0, a)) / s, number(0, a), "uint8"),
        least, scale,
    )  # fmt: skip
    return call.map(lambda v, s, z: saturated(v / s, z, "uint8"), x, scale, zero), scale, zero


# ---- products of integers ----


def subtract_zero_point(call: Call, x: Tensor, zero: Tensor | None, last: bool = False) -> Tensor:
    """``x - zero`` in int32; several zero points belong to the first axis, or to the last one."""
    if zero is None:
        zero = call.value(0, x.dtype)
    elif zero.shape in ((), (1,)):
        zero = call.reshape(zero, ())
    elif len(zero.shape) == 1:
        rank = len(x.shape)
        zero = call.reshape(zero, zero.shape if last else (*zero.shape, *[1] * (rank - 1)))
    return call.emit(SubtractZeroPoint(), x, zero)


def _rows(call: Call, zero: Tensor | None) -> Tensor | None:
    """Zero points of the rows of a matrix as a column."""
    many = zero is not None and len(zero.shape) == 1 and zero.shape != (1,)
    return call.reshape(zero, (*zero.shape, 1)) if many and zero is not None else zero


def _matmul_integer(call: Call) -> Outputs:
    a = subtract_zero_point(call, call.operand(0), _rows(call, call.optional(2)))
    b = subtract_zero_point(call, call.operand(1), call.optional(3), last=True)
    return matmul(call, a, b)


def _conv_integer(call: Call) -> Outputs:
    return _convolution(call, *map(call.operand, (0, 1)), *map(call.optional, (2, 3)))


def _convolution(
    call: Call, x: Tensor, weight: Tensor, zero_x: Tensor | None, zero_w: Tensor | None
) -> Tensor:
    """A convolution of int32; over a line, as over an image."""
    op, as_image = convolution_of(call, x, weight), len(x.shape) == 3
    if as_image:
        x, weight = (call.reshape(t, image_shape(t.shape)) for t in (x, weight))
        op = Convolution(*image_window(op), op.groups)
    factors = (subtract_zero_point(call, *pair) for pair in ((x, zero_x), (weight, zero_w)))
    y = call.emit(op, *factors)
    return call.reshape(y, y.shape[:3]) if as_image else y


def _requantized(call: Call, acc: Tensor, factors: list[Tensor], zero: Tensor) -> Tensor:
    """``saturate(acc * (scale_a * scale_b / scale_y)) + zero``, in float32."""
    dtype = zero.dtype

    def rule(v: Expr, a: Expr, b: Expr, y: Expr, z: Expr) -> Expr:
        return saturated(v.astype(a.dtype) * (a * b / y), z, dtype)

    return call.map(rule, acc, *factors, call.reshape(zero, ()) if zero.shape == (1,) else zero)


def _qlinear_matmul(call: Call) -> Outputs:
    made = _dense(call) or _of_activations(call)
    if made is not None:
        return made
    a = subtract_zero_point(call, call.operand(0), _rows(call, call.operand(2)))
    b = subtract_zero_point(call, call.operand(3), call.operand(5), last=True)
    scale_a, scale_b, scale_y = (call.operand(i) for i in (1, 4, 6))
    scale_a = _rows(call, scale_a) or scale_a
    return _requantized(call, matmul(call, a, b), [scale_a, scale_b, scale_y], call.operand(7))


def _qlinear_conv(call: Call) -> Outputs:
    made = _conv2d(call)
    if made is not None:
        return made
    acc = _convolution(call, *map(call.operand, (0, 3, 2, 5)))
    spatial = len(acc.shape) - 2
    bias = call.optional(8)
    if bias is not None:
        column = call.reshape(bias, (*bias.shape, *[1] * spatial))
        acc = call.map(lambda v, b: v + b, acc, column)
    scale_w = call.operand(4)
    if scale_w.shape not in ((), (1,)):
        scale_w = call.reshape(scale_w, (*scale_w.shape, *[1] * spatial))
    factors = [call.operand(1), scale_w, call.operand(6)]
    return _requantized(call, acc, factors, call.operand(7))


# ---- by the integer operators of the quantised flow ----


def _conv2d(call: Call) -> Tensor | None:
    """QLinearConv as QConv2d, where weights, scales and zero points are constants that fit it."""
    x, weight = call.operand(0), call.operand(3)
    op = convolution_of(call, x, weight)
    parameters = _parameters(call, channel_axis=0)
    if parameters is None or len(x.shape) not in (3, 4) or min(op.pads) < 0:
        return None
    zero, centred, rescale = parameters
    bias = call.optional(8) or call.value(np.zeros(weight.shape[0], np.int32))
    if bias.data is None or bias.dtype != "int32" or bias.shape != weight.shape[:1]:
        return None
    fused = QConv2d(*image_window(op), op.groups, zero, rescale)
    image = call.reshape(signed(call, x), image_shape(x.shape))
    kernel = call.value(centred.reshape(image_shape(centred.shape)))
    y = call.emit(fused, image, kernel, bias)
    return as_before(call, call.reshape(y, y.shape[: len(x.shape)]), call.operand(7).dtype)


def _dense(call: Call) -> Tensor | None:
    """QLinearMatMul by a constant matrix as QDense; leading dimensions of ``a`` are rows."""
    a, b = call.operand(0), call.operand(3)
    parameters = _parameters(call, channel_axis=1)
    if parameters is None or len(b.shape) != 2 or len(a.shape) < 2 or a.shape[-1] != b.shape[0]:
        return None
    zero, centred, rescale = parameters
    rows = call.reshape(signed(call, a), (math.prod(a.shape[:-1]), a.shape[-1]))
    weight, bias = call.value(np.ascontiguousarray(centred.T)), np.zeros(b.shape[1], np.int32)
    y = call.emit(QDense(zero, rescale), rows, weight, call.value(bias))
    y = call.reshape(y, (*a.shape[:-1], b.shape[1]))
    return as_before(call, y, call.operand(7).dtype)


def _parameters(call: Call, channel_axis: int) -> tuple[int, np.ndarray, Requant] | None:
    """The first operand's zero point as for int8, the weight less its zero point, and the
    requantisation of their product. None unless all scales and zero points are constants, one value
    each or, for weights, one per channel, and :func:`requant` takes the factors."""
    x, weight, zero_y = call.operand(0), call.operand(3), call.operand(7)
    known = [call.operand(i) for i in (1, 2, 3, 4, 5, 6, 7)]
    if any(t.data is None for t in known):
        return None
    scale_x, zero_x, data, scale_w, zero_w, scale_y, zero = (np.asarray(t.data) for t in known)
    single = all(v.size == 1 for v in (scale_x, zero_x, scale_y, zero))
    channels = data.shape[channel_axis] if data.ndim > channel_axis else 1
    eight_bits = all(t.dtype in ("int8", "uint8") for t in (x, weight, zero_y))
    fits = all(v.size in (1, channels) for v in (scale_w, zero_w))
    floats = all(v.dtype == np.float32 for v in (scale_x, scale_w, scale_y))
    if not (single and fits and eight_bits and floats):
        return None
    shape = [1] * data.ndim
    shape[channel_axis] = -1
    rescale = _rescale(scale_x, scale_w, scale_y, zero)
    if rescale is None:
        return None
    return _signed_zero(zero_x), centre(data, zero_w.reshape(shape)), rescale


def _of_activations(call: Call) -> Tensor | None:
    """QLinearMatMul of two activations as QMatMul, where all scales and zero points are constants,
    one value each, and no sum of products can leave int32."""
    a, b, zero_y = call.operand(0), call.operand(3), call.operand(7)
    known = [call.operand(i).data for i in (1, 2, 4, 5, 6, 7)]
    eight_bits = all(t.dtype in ("int8", "uint8") for t in (a, b, zero_y))
    matrices = len(a.shape) >= 2 and len(b.shape) >= 2
    if not (eight_bits and matrices) or any(v is None or v.size != 1 for v in known):
        return None
    scale_a, zero_a, scale_b, zero_b, scale_y, zero = (np.asarray(v) for v in known)
    floats = all(v.dtype == np.float32 for v in (scale_a, scale_b, scale_y))
    rescale = _rescale(scale_a, scale_b, scale_y, zero) if floats else None
    if rescale is None or math.prod(a.shape[-1:]) * UINT8_MAX**2 >= 2**MULTIPLIER_BITS:
        return None
    op = QMatMul(_signed_zero(zero_a), _signed_zero(zero_b), rescale)
    return as_before(call, call.emit(op, signed(call, a), signed(call, b)), zero_y.dtype)


def _rescale(
    scale_a: np.ndarray, scale_b: np.ndarray, scale_y: np.ndarray, zero_y: np.ndarray
) -> Requant | None:
    """The requantisation of a product; None for factors that :func:`requant` does not take.

    The factor is computed in float32, as ONNX Runtime does; the product with it is then exact.
    """
    factor = scale_a.reshape(-1) * scale_b.reshape(-1) / scale_y.reshape(-1)
    if not ((factor > 0) & (factor < 2.0 ** (MULTIPLIER_BITS - 1))).all():
        return None
    return requant(factor.astype(np.float64), _signed_zero(zero_y))


def _signed_zero(zero: np.ndarray) -> int:
    return int(zero.item()) - (OFFSET if zero.dtype == np.uint8 else 0)


READERS: dict[str, Reader] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": lambda call: dynamic_quantize(call, call.operand(0)),
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
