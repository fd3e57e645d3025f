"""Random nodes that reduce, normalise and multiply matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Maker, Operand, Sample, constant

REDUCE = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
ROOTS = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
#: Of these ONNX's evaluator changes the dtype where it is narrow.
SUMS = ("ReduceL1", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare")


def _reduce(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        """A reduction over some axes, all, or none. Those with roots or logarithms are of
        floats."""
        floats, integers = ("float32", "float64"), ("int32", "int64")
        dtype = d.choice(floats + integers) if kind in SUMS else d.dtype(kind)
        dtype = d.choice(floats) if kind in ROOTS else dtype
        shape = d.shape(0, 4, 3 if kind == "ReduceProd" else 6)
        array = d.array(shape, dtype, 2)
        if dtype != "bool" and kind in ("ReduceProd", "ReduceSumSquare", "ReduceL1"):
            array = np.clip(array, 0 if dtype[0] == "u" else -3, 3).astype(dtype)
        x = d.operand(np.abs(array) + 0.25 if kind == "ReduceLogSum" else array, dtype)
        axes = d.random.sample(range(len(shape)), d.integer(0, len(shape)))
        axes = [a - len(shape) * d.integer(0, 1) for a in axes]
        attributes = {
            "keepdims": d.integer(0, 1),
            "noop_with_empty_axes": int(d.integer(0, 3) == 0),
        }
        return Sample(kind, [x, constant(axes)] if axes or d.flag() else [x], attributes)

    return make


def _arg(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        x = d.value(d.shape(1), d.dtype(kind))
        attributes: dict[str, Any] = {
            name: d.integer(0, 1) for name in ("keepdims", "select_last_index") if d.flag()
        }
        return Sample(kind, [x], attributes | {"axis": d.axis(x.array.ndim)})

    return make


def _soft(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        x = d.value(d.shape(1), d.choice(("float32", "float64")))
        opset = d.choice((11, 21))  # before 13, over all axes from one on
        return Sample(
            kind, [x], {"axis": d.axis(x.array.ndim)} if d.flag() else {"axis": 0}, opset=opset
        )

    return make


def _hardmax(d: Draw) -> Sample:
    x = d.value(d.shape(1))
    return Sample("Hardmax", [x], {"axis": d.axis(x.array.ndim)})


def _lp_norm(d: Draw) -> Sample:
    x = d.value(d.shape(1), d.choice(("float32", "float64")))
    attributes = {"axis": d.axis(x.array.ndim), "p": d.integer(1, 2)}
    return Sample("LpNormalization", [x], attributes)


def _columns(d: Draw, channels: int, count: int) -> list[Operand]:
    return [d.value((channels,)) for _ in range(count)]


def _batch_norm(d: Draw) -> Sample:
    shape = d.shape(2, 5)
    scale, bias, mean, variance = _columns(d, shape[1], 4)
    spread = Operand(np.abs(variance.array) + np.float32(0.25), variance.is_constant)
    attributes = {"epsilon": d.number(1e-5, 1e-1)} if d.flag() else {}
    operands = [d.value(shape), scale, bias, mean, spread]
    if d.integer(0, 3):
        return Sample("BatchNormalization", operands, attributes)
    training = {"training_mode": 1, "momentum": d.number(0, 1)}
    return Sample("BatchNormalization", operands, attributes | training, outputs=3)


def _instance_norm(d: Draw) -> Sample:
    """ONNX Runtime subtracts the mean after it has divided by the deviation: if that is small, few
    digits of its results are right."""
    shape = d.shape(3, 5)
    operands = [d.value(shape), *_columns(d, shape[1], 2)]
    return Sample("InstanceNormalization", operands, {"epsilon": d.number(1e-3, 1e-1)})


def _lrn(d: Draw) -> Sample:
    shape = (d.integer(1, 2), d.integer(1, 8), d.integer(1, 4), d.integer(1, 4))
    numbers = {"alpha": (1e-4, 0.5), "beta": (0.25, 1), "bias": (1, 2)}
    attributes = {name: d.number(*bounds) for name, bounds in numbers.items() if d.flag()}
    return Sample("LRN", [d.value(shape)], attributes | {"size": d.choice((1, 3, 5, 7))})


def _layer_norm(d: Draw) -> Sample:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    extra = [d.value(shape[axis:]) for _ in range(d.integer(1, 2))]
    attributes = {"epsilon": d.number(1e-5, 1e-1)} if d.flag() else {}
    return Sample(
        "LayerNormalization", [d.value(shape), *extra], attributes | {"axis": axis},
        outputs=d.choice((1, 1, 3)),
    )  # fmt: skip


def _rms_norm(d: Draw) -> Sample:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    attributes = {"epsilon": d.number(1e-5, 1e-1)} if d.flag() else {}
    operands = [d.value(shape), d.value(shape[axis:])]
    return Sample("RMSNormalization", operands, attributes | {"axis": axis}, opset=23)


def _gemm(d: Draw) -> Sample:
    n, k, m = d.integer(1, 5), d.integer(1, 40), d.choice((1, 2, 3, 16, 20, 50))
    dtype = d.choice(("float32", "float32", "float64", "int32"))
    turned = {name: d.integer(0, 1) for name in ("transA", "transB") if d.flag()}
    a = (k, n) if turned.get("transA") else (n, k)
    b = (m, k) if turned.get("transB") else (k, m)
    factors = {name: d.number(-2, 2) for name in ("alpha", "beta") if d.flag()}
    if dtype == "int32":
        factors = {name: float(d.integer(1, 3)) for name in factors}
    bias = [d.weight(d.array(d.part_of((n, m)), dtype))][: d.integer(0, 1)]
    operands = [d.value(a, dtype), d.weight(d.array(b, dtype)), *bias]
    return Sample("Gemm", operands, turned | factors)


def _matmul(d: Draw) -> Sample:
    """Matrices, vectors, and stacks of them that broadcast."""
    dtype, k = d.dtype("MatMul"), d.integer(1, 12)
    stack = d.shape(0, 2, 3)
    left, right = d.part_of(stack), d.part_of(stack)
    a = (k,) if d.integer(0, 4) == 0 else (*left, d.integer(1, 5), k)
    b = (k,) if d.integer(0, 4) == 0 else (*right, k, d.integer(1, 5))
    return Sample("MatMul", [d.value(a, dtype), d.value(b, dtype)])


MAKERS: dict[str, Maker] = {kind: _reduce(kind) for kind in REDUCE} | {
    "ArgMax": _arg("ArgMax"),
    "ArgMin": _arg("ArgMin"),
    "BatchNormalization": _batch_norm,
    "Gemm": _gemm,
    "Hardmax": _hardmax,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _soft("LogSoftmax"),
    "LpNormalization": _lp_norm,
    "MatMul": _matmul,
    "RMSNormalization": _rms_norm,
    "Softmax": _soft("Softmax"),
}
