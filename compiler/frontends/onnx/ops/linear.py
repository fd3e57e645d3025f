"""Matrix products."""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.base import broadcast
from ....graph.ops.linear import Dense, MatMul
from ....graph.ops.reduction import ArgReduce
from ....te.expr import Expr, select
from .call import Call, Outputs, Reader
from .elementwise import absolute, number


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


#: The largest matrix whose determinant is computed: each of its rows is some nodes.
_MAX_ROWS = 64


def _det(call: Call) -> Outputs:
    """The product of pivots: each step takes the row whose first element is the largest out of the
    matrix, and its column with it."""
    x = call.operand(0)
    size = x.shape[-1] if x.shape else 0
    if len(x.shape) < 2 or x.shape[-2] != size or not 0 < size <= _MAX_ROWS:
        raise call.refuse(f"expected matrices of 1 to {_MAX_ROWS} rows, got {x.type_text}")
    outer = math.prod(x.shape[:-2])
    rest, found = call.reshape(x, (outer, size, size)), None
    for left in range(size, 0, -1):
        column = call.part(rest, 2, 0, 1)
        large = call.map(absolute, column)
        chosen = call.emit(ArgReduce("max", 1, True, False), large)
        own = call.value(np.arange(left).reshape(1, left, 1), "int64")
        row = call.map(
            lambda at, i, v: select(i.equal(at), v, number(0, v)), chosen, own, rest, label="Row"
        )
        row = call.reduce("+", row, (1,))
        pivot = call.part(row, 2, 0, 1)
        signed = call.map(
            lambda at, p: select(at.equal(0), p, number(0, p) - p), chosen, pivot, label="Sign"
        )
        found = signed if found is None else call.map(lambda a, b: a * b, found, signed)
        if left == 1:
            break
        top = call.part(rest, 1, 0, 1)
        swapped = call.map(
            lambda at, i, v, first: select(i.equal(at), first, v), chosen, own, rest, top
        )
        lower = call.part(call.part(swapped, 1, 1, left - 1), 2, 1, left - 1)
        below = call.part(call.part(swapped, 1, 1, left - 1), 2, 0, 1)
        rest = call.map(_eliminated, lower, below, call.part(row, 2, 1, left - 1), pivot)
    assert found is not None
    return call.reshape(found, x.shape[:-2])


def _eliminated(v: Expr, below: Expr, row: Expr, pivot: Expr) -> Expr:
    zero = number(0, pivot)
    safe = select(pivot.equal(zero), number(1, pivot), pivot)
    return v - below / safe * row


READERS: dict[str, Reader] = {"Det": _det, "Gemm": _gemm, "MatMul": _matmul}
