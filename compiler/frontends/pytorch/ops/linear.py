"""Products of matrices."""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from .call import Call, Reader, Value


def _product(call: Call, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """``a @ b + bias`` of matrices. A transposed weight is read as it lies."""
    source = call.untransposed(b)
    operands = [a, b if source is None else source, *([] if bias is None else [bias])]
    return call.onnx("Gemm", *operands, transB=int(source is not None))


def _linear(call: Call) -> Value:
    """Leading dimensions are rows of one product."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    rows = call.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    if len(weight.shape) == 1:
        weight = call.reshape(weight, (1, *weight.shape))
    y = call.onnx("Gemm", rows, weight, *([] if bias is None else [bias]), transB=1)
    return call.reshape(y, call.shape)


def _addmm(call: Call) -> Value:
    a, b, bias = call["mat1"], call["mat2"], call["self"]
    if call["alpha"] == call["beta"] == 1:
        return _product(call, a, b, bias)
    factors = {"alpha": float(call["alpha"]), "beta": float(call["beta"])}
    return call.onnx("Gemm", a, b, bias, **factors)


def _matmul(second: str) -> Reader:
    return lambda call: call.onnx("MatMul", call["self"], call[second])


def _baddbmm(call: Call) -> Value:
    product = call.onnx("MatMul", call["batch1"], call["batch2"])
    scaled = [
        term if call[name] == 1 else call.onnx("Mul", term, call.constant(call[name], term.dtype))
        for term, name in ((call["self"], "beta"), (product, "alpha"))
    ]
    return call.onnx("Add", *scaled)


def _cumulative_sum(call: Call) -> Value:
    """Along an axis, the product with a triangle of ones."""
    x = call.tensor(call["self"], call.dtype)
    if not x.shape:
        return x
    axis, size = call["dim"] % len(x.shape), x.shape[call["dim"]]
    return along_axis(call, x, axis, np.tri(size))


def along_axis(call: Call, x: Tensor, axis: int, matrix: np.ndarray) -> Tensor:
    """``x`` with an axis multiplied by a constant matrix [size after, size before]."""
    rank = len(x.shape)
    order = [d for d in range(rank) if d != axis] + [axis]
    weight = call.constant(matrix.T, x.dtype)
    if axis == rank - 1:
        return call.onnx("MatMul", x, weight)
    y = call.onnx("MatMul", call.onnx("Transpose", x, perm=order), weight)
    return call.onnx("Transpose", y, perm=np.argsort(order).tolist())


READERS: dict[str, Reader] = {
    "aten.addmm": _addmm,
    "aten.baddbmm": _baddbmm,
    "aten.bmm": _matmul("mat2"),
    "aten.cumsum": _cumulative_sum,
    "aten.dot": _matmul("tensor"),
    "aten.linear": _linear,
    "aten.matmul": _matmul("other"),
    "aten.mm": lambda call: _product(call, call["self"], call["mat2"], None),
    "aten.mv": _matmul("vec"),
}
