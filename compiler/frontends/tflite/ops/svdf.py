"""SVDF: filters along time, as products of two vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....graph.arithmetic.requant import tflite_params
from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat
from ....te.expr import Expr, integer_range
from ....te.tensor import clip
from ..graph import Call, Rows
from .rnn import gate_weights, keep, matrix, product, state_of
from .rules import between, rescaled, saturated
from .weights import widened


def _svdf(call: Call) -> None:
    """Each filter is a product with the input, kept for some runs, and a product along these; the
    result sums ``rank`` filters."""
    shape, real = call.importer.shape(call.operand(0)), call.operand(0).dtype == "float32"
    if len(shape) != 2:
        raise call.refuse(f"expected a matrix of rows, got {list(shape)}")
    batch, width = shape
    rank, bounds = call.option("Rank"), call.activation()
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
    if real:
        new = product(call, call.tensor(0), gate_weights(call, [1], width))
    else:
        operands = widened(call, 0, "plain", wide), call.value(feature.T.astype(wide))
        new = _scaled(call, call.emit(MatMul(), *operands), dtype)
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
    call.define(call.map(_rule(call, real), total, call.value(bias.astype(wide))))


def _scaled(call: Call, total: Tensor, dtype: str) -> Tensor:
    """The products with the input as elements of the state."""
    (x, _), (state, zero) = call.quant(call.operand(0)), call.quant(call.operand(4))
    factors = tflite_params(float(x * call.operand(1).scale[0] / state))
    low, high = integer_range(dtype)

    def rule(acc: Expr) -> Expr:
        return (clip(rescaled(acc, *factors), low, high) + zero).astype(dtype)

    return call.map(rule, total)


def _rule(call: Call, real: bool) -> Callable[[Expr, Expr], Expr]:
    if real:
        return lambda acc, bias: between(call, bias + acc)
    (state, _), (y, zero) = call.quant(call.operand(4)), call.quant(call.result)
    factors = tflite_params(float(state * call.operand(2).scale[0] / y))
    return lambda acc, bias: saturated(
        rescaled(acc + bias, *factors) + zero, -128, 127, "int8"
    )  # without the activation, as the kernel


#: Readers by operator and by the first operand's types.
READERS: Rows = {"SVDF": {"float32 int8": _svdf}}
