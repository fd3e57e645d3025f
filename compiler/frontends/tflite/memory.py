"""What readers of operators with a memory of earlier runs share, and one of them, SVDF."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph.arithmetic.requant import tflite_params
from ...graph.ir import Tensor
from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Concat
from ...te.expr import Expr, integer_range
from ...te.tensor import clip
from .geometry import activation
from .graph import Call
from .hybrid import products, stored_weight
from .mapping import between, rescaled, saturated

Reader = Callable[[Call], None]


def state_of(call: Call, position: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """The value of a variable in another shape."""
    tensor = call.operand(position)
    if not tensor.variable or tensor.dtype != dtype:
        found = f"{tensor.dtype} of {tensor}" if tensor.variable else f"{tensor}, which is none"
        raise call.refuse(f"expected a variable of {dtype}, got {found}")
    if int(np.prod(tensor.shape)) != int(np.prod(shape)):
        raise call.refuse(f"expected {list(shape)} of {tensor}, got {list(tensor.shape)}")
    return call.reshape(call.tensor(position), shape)


def keep(call: Call, position: int, value: Tensor) -> None:
    """The next value of a variable."""
    tensor = call.operand(position)
    call.importer.assign(tensor, call.reshape(value, call.importer.shape(tensor)))


def matrix(call: Call, position: int, dtypes: Sequence[str], columns: int | None) -> np.ndarray:
    """A constant matrix of weights, of one scale and zero point 0 if it is of integers."""
    tensor, data = call.operand(position), call.constant(position, "weight")
    wrong = tensor.dtype not in dtypes or data.ndim != 2
    if wrong or (columns is not None and data.shape[1] != columns):
        raise call.refuse(
            f"expected {' or '.join(dtypes)} in {columns or 'some'} columns, got"
            f" {tensor.dtype}{list(data.shape)} of {tensor}"
        )
    if tensor.dtype != "float32" and (tensor.scale.size != 1 or tensor.zero_point[0]):
        raise call.refuse(f"expected one scale and zero point 0 of {tensor}")
    return data


# ---- SVDF ----------------------------------------------------------------------------------------


def _svdf(call: Call) -> None:
    """Each filter is a product with the input, kept for some runs, and a product along these; the
    result sums ``rank`` filters."""
    (batch, width), real = _two(call.importer.shape(call.operand(0)), call), _is_real(call)
    rank, bounds = call.option("Rank"), activation(call)
    feature = matrix(call, 1, ("float32", "int8") if real else ("int8",), width)
    time = matrix(call, 2, ("float32", "int8") if real else ("int8", "int16"), None)
    hybrid = real and feature.dtype == np.int8
    if real and (time.dtype == np.int8) != hybrid:
        raise call.refuse(f"expected weights of one type, got {feature.dtype} and {time.dtype}")
    if hybrid:
        time = time * np.float32(call.operand(2).scale[0])
    filters, memory = time.shape
    if feature.shape[0] != filters or rank < 1 or filters % rank:
        raise call.refuse(f"{feature.shape[0]} and {filters} filters do not fit rank {rank}")
    wide, dtype = ("float32", "float32") if real else ("int32", call.operand(4).dtype)
    if not real and (dtype != time.dtype or bounds not in ((0.0, np.inf), (-np.inf, np.inf))):
        raise call.refuse(
            f"expected a state of {time.dtype} and the activation NONE or RELU, got {dtype} and"
            f" bounds {bounds}"
        )
    state = state_of(call, 4, (batch, filters, memory), dtype)
    if hybrid:
        scales = np.broadcast_to(call.operand(1).scale, (1, filters))
        new = products(call, call.tensor(0), stored_weight(call, feature.T, scales))
    else:
        stored = call.value(np.ascontiguousarray(feature.T.astype(wide)))
        new = call.emit(MatMul(), _svdf_operand(call, real), stored)
        new = new if real else _svdf_scaled(call, new, dtype)
    new = call.reshape(new, (batch, filters, 1))
    if memory > 1:
        new = call.emit(Concat(2), call.part(state, 2, 1, memory - 1), new)
    keep(call, 4, new)
    zero = 0 if real else call.quant(call.operand(4))[1]
    weights = call.value(time.astype(wide).reshape(1, filters, memory))
    terms = call.map(lambda s, w: (s.astype(wide) - zero) * w, new, weights)
    total = call.reduce("+", terms, (2,), False)
    total = call.reshape(total, (batch, filters // rank, rank))
    total = call.reduce("+", total, (2,), False)
    bias = np.zeros(filters // rank, wide)
    if call.optional(3) is not None:
        bias = call.constant(3, "bias").reshape(-1)
    operands = total, call.value(bias.astype(wide))
    call.define(call.map(_svdf_rule(call, real), *operands))


def _is_real(call: Call) -> bool:
    return call.operand(0).dtype == "float32"


def _two(shape: tuple[int, ...], call: Call) -> tuple[int, int]:
    if len(shape) != 2:
        raise call.refuse(f"expected a matrix of rows, got {list(shape)}")
    return shape[0], shape[1]


def _svdf_operand(call: Call, real: bool) -> Tensor:
    value = call.tensor(0)
    if real:
        return value
    zero = call.quant(call.operand(0))[1]
    return call.map(lambda x: x.astype("int32") - zero, value)


def _svdf_scaled(call: Call, total: Tensor, dtype: str) -> Tensor:
    """The products with the input as elements of the state."""
    (x, _), (state, zero) = call.quant(call.operand(0)), call.quant(call.operand(4))
    factors = tflite_params(float(x * call.operand(1).scale[0] / state))
    low, high = integer_range(dtype)

    def rule(acc: Expr) -> Expr:
        return (clip(rescaled(acc, *factors), low, high) + zero).astype(dtype)

    return call.map(rule, total)


def _svdf_rule(call: Call, real: bool) -> Callable[[Expr, Expr], Expr]:
    if real:
        return lambda acc, bias: between(call, bias + acc)
    (state, _), (y, zero) = call.quant(call.operand(4)), call.quant(call.result)
    factors = tflite_params(float(state * call.operand(2).scale[0] / y))
    return lambda acc, bias: saturated(
        rescaled(acc + bias, *factors) + zero, -128, 127, "int8"
    )  # without the activation, as the kernel


#: Readers by operator and by the first operand's type.
TYPED: dict[str, dict[str, Reader]] = {"SVDF": {"float32": _svdf, "int8": _svdf}}
