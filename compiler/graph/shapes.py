"""Result shapes and dtypes of operators: one rule for the importer and the verifier."""

from __future__ import annotations

import math

import numpy as np

from ...isa.errors import VdlaError
from .ir import Tensor
from .ops.fixed_point import FixedOp
from .ops.general import Misfit, Primitive
from .ops.integer import (
    Add,
    AvgPool,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Dense,
    Dequantize,
    Identity,
    MaxPool,
    Op,
    Pads,
    Pair,
    QAdd,
    QAvgPool,
    QConv2d,
    QConvTranspose2d,
    QDense,
    QMaxPool,
    Quantize,
    Relu,
    Reshape,
)

Type = tuple[tuple[int, ...], str]


def window_extent(size: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> int:
    """Positions of a window along one dimension, <= 0 if it does not fit; pad is both ends'."""
    return (size + pad - (kernel - 1) * dilation - 1) // stride + 1


def infer(op: Op, operands: tuple[Tensor, ...], where: str) -> Type:
    """The shape and dtype of ``op``'s result.

    Raises
    ------
    VdlaError
        Naming the node ``where``, when the operands do not fit the operator.
    """
    types = [(t.shape, t.dtype) for t in operands]
    match op, types:
        case Primitive(), _:
            try:
                return op.infer(*types)
            except Misfit as misfit:
                raise _misfit(op, operands, where, str(misfit)) from None
        case Quantize(), [(shape, "float32")]:
            return _per_channel(op, shape, where), op.quant.dtype
        case Dequantize(), [(shape, dtype)] if dtype == op.quant.dtype:
            return _per_channel(op, shape, where), "float32"
        case Reshape(), [(shape, dtype)]:
            if min(op.shape, default=1) < 0 or math.prod(op.shape) != math.prod(shape):
                raise _misfit(op, operands, where, f"as many elements as {list(op.shape)}")
            return op.shape, dtype
        case Identity(), [(shape, dtype)]:
            return shape, dtype
        case Relu() | Clip(), [(shape, "float32")]:
            return shape, "float32"
        case Conv2d(), [(x, "float32"), (w, "float32"), *bias]:
            return _conv(op, x, w, bias, "float32", operands, where), "float32"
        case QConv2d(), [(x, "int8"), (w, "int8" | "int16"), bias]:
            return _conv(op, x, w, [bias], "int32", operands, where), "int8"
        case ConvTranspose2d(), [(x, "float32"), (w, "float32"), *bias]:
            return _conv_transpose(op, x, w, bias, "float32", operands, where), "float32"
        case QConvTranspose2d(), [(x, "int8"), (w, "int8"), bias]:
            return _conv_transpose(op, x, w, [bias], "int32", operands, where), "int8"
        case Dense(), [(x, "float32"), (w, "float32"), *bias]:
            w = w[::-1] if op.transposed else w
            return _dense(op, x, w, bias, "float32", operands, where), "float32"
        case QDense(), [(x, "int8"), (w, "int8" | "int16"), bias]:
            return _dense(op, x, w[::-1], [bias], "int32", operands, where), "int8"
        case Add(), [(a, "float32"), (b, "float32")]:
            try:
                return tuple(np.broadcast_shapes(a, b)), "float32"
            except ValueError:
                raise _misfit(op, operands, where, "shapes that broadcast") from None
        case QAdd(), [(a, "int8"), (b, "int8")] if a == b:
            return a, "int8"
        case MaxPool() | AvgPool(), [(x, "float32")]:
            return _pool(op.kernel, op.strides, op.pads, op, operands, where), "float32"
        case QMaxPool() | QAvgPool(), [(x, "int8")]:
            return _pool(op.kernel, op.strides, op.pads, op, operands, where), "int8"
        case FixedOp(), _ if (made := op.result(*types)) is not None:
            return made
        case _:
            raise _misfit(op, operands, where, "operands of the operator's types")


def _misfit(op: Op, operands: tuple[Tensor, ...], where: str, expected: str) -> VdlaError:
    got = ", ".join(f"{t.name}: {t.type_text}" for t in operands)
    return VdlaError(f"node {where!r}: {type(op).__name__} expects {expected}, got {got}")


def _per_channel(op: Quantize | Dequantize, shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    quant = op.quant
    sizes = {quant.scale.size, quant.zero_point.size}
    axis = quant.axis
    if axis is not None and not 0 <= axis < len(shape):
        raise VdlaError(
            f"node {where!r}: quantisation axis {axis!r} is outside shape {list(shape)}"
        )
    expected = 1 if axis is None else shape[axis]
    if sizes != {expected}:
        raise VdlaError(
            f"node {where!r}: expected {expected} scales and zero points for shape {list(shape)},"
            f" got {quant.scale.size} and {quant.zero_point.size}"
        )
    return shape


def _bias_fits(bias: list[Type], channels: int, dtype: str) -> bool:
    return not bias or bias == [((channels,), dtype)]


def _conv(
    op: Conv2d | QConv2d,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: list[Type],
    bias_dtype: str,
    operands: tuple[Tensor, ...],
    where: str,
) -> tuple[int, ...]:
    if len(x) != 4 or len(w) != 4:
        raise _misfit(op, operands, where, "a 4-dimensional input and weight (2-D convolution)")
    if op.groups < 1 or x[1] != w[1] * op.groups or w[0] % op.groups:
        raise _misfit(op, operands, where, f"channels that divide into {op.groups} groups")
    if not _bias_fits(bias, w[0], bias_dtype):
        raise _misfit(op, operands, where, f"a bias {bias_dtype}[{w[0]}]")
    size = _windows(x, (w[2], w[3]), op.strides, op.pads, op.dilations, where)
    return (x[0], w[0], *size)


def _conv_transpose(
    op: ConvTranspose2d | QConvTranspose2d,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: list[Type],
    bias_dtype: str,
    operands: tuple[Tensor, ...],
    where: str,
) -> tuple[int, ...]:
    if len(x) != 4 or len(w) != 4 or x[1] != w[0]:
        raise _misfit(op, operands, where, "an image and a weight of as many channels")
    if not _bias_fits(bias, w[1], bias_dtype):
        raise _misfit(op, operands, where, f"a bias {bias_dtype}[{w[1]}]")
    if min(*op.strides, *op.size) < 1 or min(op.before) < 0:
        raise VdlaError(
            f"node {where!r}: expected strides and a size >= 1 and a crop >= 0,"
            f" got {op.strides!r}, {op.size!r}, {op.before!r}"
        )
    return (x[0], w[1], *op.size)


def _dense(
    op: Dense | QDense,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: list[Type],
    bias_dtype: str,
    operands: tuple[Tensor, ...],
    where: str,
) -> tuple[int, ...]:
    if len(x) != 2 or len(w) != 2 or x[1] != w[0]:
        raise _misfit(op, operands, where, "a matrix and a weight matrix of its width")
    if not _bias_fits(bias, w[1], bias_dtype):
        raise _misfit(op, operands, where, f"a bias {bias_dtype}[{w[1]}]")
    return (x[0], w[1])


def _pool(
    kernel: Pair, strides: Pair, pads: Pads, op: Op, operands: tuple[Tensor, ...], where: str
) -> tuple[int, ...]:
    shape = operands[0].shape
    if len(shape) != 4:
        raise _misfit(op, operands, where, "a 4-dimensional input (2-D pooling)")
    if max(pads[0], pads[2]) >= kernel[0] or max(pads[1], pads[3]) >= kernel[1]:
        raise VdlaError(
            f"node {where!r}: expected padding smaller than the window {kernel}, got {pads!r}"
        )
    return (shape[0], shape[1], *_windows(shape, kernel, strides, pads, (1, 1), where))


def _windows(
    x: tuple[int, ...], kernel: Pair, strides: Pair, pads: Pads, dilations: Pair, where: str
) -> Pair:
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise VdlaError(
            f"node {where!r}: expected kernel, strides and dilations >= 1 and pads >= 0,"
            f" got {kernel!r}, {strides!r}, {dilations!r}, {pads!r}"
        )
    height = window_extent(x[2], kernel[0], strides[0], pads[0] + pads[2], dilations[0])
    width = window_extent(x[3], kernel[1], strides[1], pads[1] + pads[3], dilations[1])
    if height < 1 or width < 1:
        raise VdlaError(
            f"node {where!r}: window {kernel} with pads {pads} is larger than the image {list(x)}"
        )
    return height, width
