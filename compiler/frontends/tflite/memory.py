"""What readers of operators with a memory of earlier runs share, and one of them, SVDF."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph.arithmetic.requant import tflite_params
from ...graph.ops.linear import MatMul
from ...graph.ops.movement import Concat, Reshape, Slice
from ...graph.ops.reduction import Reduce
from ...te.expr import Expr, integer_range
from ...te.tensor import clip
from .geometry import activation
from .graph import Call
from .hybrid import products, stored_weight
from .mapping import between, map_of, rescaled, saturated, step_map

Reader = Callable[[Call], None]


def part(call: Call, value: str, axis: int, start: int, count: int) -> str:
    """``count`` elements along an axis."""
    shape = list(call.shape_of(value))
    starts = [start if i == axis else 0 for i in range(len(shape))]
    shape[axis] = count
    return call.step("part", Slice(tuple(starts), (1,) * len(shape), tuple(shape)), value)


def shaped(call: Call, value: str, shape: tuple[int, ...]) -> str:
    """A tensor in another shape."""
    return value if call.shape_of(value) == shape else call.step("shaped", Reshape(shape), value)


def state_of(call: Call, position: int, shape: tuple[int, ...], dtype: str) -> str:
    """The value of a variable in another shape."""
    tensor = call.operand(position)
    if not tensor.variable or tensor.dtype != dtype:
        found = f"{tensor.dtype} of {tensor}" if tensor.variable else f"{tensor}, which is none"
        raise call.refuse(f"expected a variable of {dtype}, got {found}")
    if int(np.prod(tensor.shape)) != int(np.prod(shape)):
        raise call.refuse(f"expected {list(shape)} of {tensor}, got {list(tensor.shape)}")
    return shaped(call, call.importer.value(tensor, "plain"), shape)


def keep(call: Call, position: int, value: str) -> None:
    """The next value of a variable."""
    tensor = call.operand(position)
    call.importer.assign(tensor, shaped(call, value, call.importer.shape(tensor)))


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
        new = products(call, call.value(0, "plain"), stored_weight(call, feature.T, scales))
    else:
        stored = call.constant_of("feature", np.ascontiguousarray(feature.T.astype(wide)))
        new = call.step("features", MatMul(), _svdf_operand(call, real), stored)
        new = new if real else _svdf_scaled(call, new, dtype)
    new = shaped(call, new, (batch, filters, 1))
    if memory > 1:
        new = call.step("state", Concat(2), part(call, state, 2, 1, memory - 1), new)
    keep(call, 4, new)
    zero = 0 if real else call.quant(call.operand(4))[1]
    weights = call.constant_of("time", time.astype(wide).reshape(1, filters, memory))
    terms = step_map(call, "terms", lambda s, w: (s.astype(wide) - zero) * w, new, weights)
    total = call.step("sums", Reduce("+", (2,), False), terms)
    total = shaped(call, total, (batch, filters // rank, rank))
    total = call.step("total", Reduce("+", (2,), False), total)
    bias = np.zeros(filters // rank, wide)
    if call.optional(3) is not None:
        bias = call.constant(3, "bias").reshape(-1)
    operands = total, call.constant_of("bias", bias.astype(wide))
    call.emit(map_of(call, "Svdf", _svdf_rule(call, real), *operands), operands, "plain")


def _is_real(call: Call) -> bool:
    return call.operand(0).dtype == "float32"


def _two(shape: tuple[int, ...], call: Call) -> tuple[int, int]:
    if len(shape) != 2:
        raise call.refuse(f"expected a matrix of rows, got {list(shape)}")
    return shape[0], shape[1]


def _svdf_operand(call: Call, real: bool) -> str:
    value = call.value(0, "plain")
    if real:
        return value
    zero = call.quant(call.operand(0))[1]
    return step_map(call, "wide", lambda x: x.astype("int32") - zero, value)


def _svdf_scaled(call: Call, total: str, dtype: str) -> str:
    """The products with the input as elements of the state."""
    (x, _), (state, zero) = call.quant(call.operand(0)), call.quant(call.operand(4))
    factors = tflite_params(float(x * call.operand(1).scale[0] / state))
    low, high = integer_range(dtype)

    def rule(acc: Expr) -> Expr:
        return (clip(rescaled(acc, *factors), low, high) + zero).astype(dtype)

    return step_map(call, "scaled", rule, total)


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
