"""Matrix products."""

from __future__ import annotations

import math

from ....graph.ir import Tensor
from ....graph.ops.base import broadcast
from ....graph.ops.linear import Dense, MatMul
from .call import Call, Outputs, Reader
from .elementwise import number


def _gemm(call: Call) -> Outputs:
    a, b, bias = call.operand(0), call.operand(1), call.optional(2)
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    trans_a, trans_b = bool(call.integer("transA", 0)), bool(call.integer("transB", 0))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise call.refuse(f"expected two matrices, got {a.type_text} and {b.type_text}")
    width = b.shape[0 if trans_b else 1]
    plain_bias = bias is None or bias.shape == (width,)
    if a.dtype == "float32" and not trans_a and alpha == beta == 1 and plain_bias:
        return call.emit(Dense(trans_b), a, b, *([] if bias is None else [bias]))
    a = call.transpose(a, (1, 0)) if trans_a else a
    b = call.transpose(b, (1, 0)) if trans_b else b
    y = call.emit(MatMul(), a, b)
    if bias is None:
        return y if alpha == 1 else call.map(lambda v: number(alpha, v) * v, y)
    if broadcast(bias.shape, y.shape) != y.shape:
        raise call.refuse(f"bias {bias.type_text} does not broadcast to {y.type_text}")
    return call.map(lambda v, c: number(alpha, v) * v + number(beta, c) * c, y, bias)


def _matmul(call: Call) -> Outputs:
    a, b = call.operand(0), call.operand(1)
    if len(a.shape) == len(b.shape) == 2 and a.dtype == b.dtype == "float32":
        return call.emit(Dense(transposed=False), a, b)
    if len(a.shape) > len(b.shape) == 2 and a.dtype == b.dtype == "float32":
        rows = call.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))
        y = call.emit(Dense(transposed=False), rows, b)
        return call.reshape(y, (*a.shape[:-1], b.shape[1]))
    return matmul(call, a, b)


def matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """NumPy's matrix product: vectors get a dimension that the result does not have."""
    if not a.shape or not b.shape:
        raise call.refuse(f"expected matrices, got {a.type_text} and {b.type_text}")
    left = call.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = call.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    y = call.emit(MatMul(), left, right)
    shape = list(y.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[len(shape) - (1 if len(b.shape) == 1 else 2)]
    return call.reshape(y, tuple(shape))


READERS: dict[str, Reader] = {"Gemm": _gemm, "MatMul": _matmul}
