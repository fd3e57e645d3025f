"""Random nodes between floats and integers and on quantised integers, also ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .draw import MICROSOFT, Draw, Maker, Operand, Sample, constant
from .windows import groups_of, pooled, size_of, window_of

BYTES = ("int8", "uint8")
#: By how many a quantised result may differ: what is between two steps may go to either.
ONE = 1


def _scale(d: Draw, count: int | None = None) -> Operand:
    """One scale, or one for each of ``count``."""
    values = d.rng.uniform(0.005, 0.2, () if count is None else (count,))
    return d.weight(values, "float32")


def _zero(d: Draw, dtype: str, count: int | None = None) -> Operand:
    low, high = (-9, 10) if dtype.startswith("int") else (100, 140)
    values = d.rng.integers(low, high, () if count is None else (count,))
    return d.weight(values, dtype)


def _fixed(operand: Operand) -> Operand:
    return Operand(operand.array, is_constant=True)


def _grid(d: Draw, dtype: str, count: int | None = None) -> list[Operand]:
    """Scale and zero point."""
    return [_scale(d, count), _zero(d, dtype, count)]


def _axis(d: Draw, shape: Sequence[int]) -> tuple[dict[str, Any], int | None]:
    """Per tensor, or along an axis of so many elements."""
    if not shape or d.flag():
        return {}, None
    axis = d.axis(len(shape))
    return {"axis": axis}, shape[axis]


def _quantize(d: Draw) -> Sample:
    shape = d.shape()
    attributes, count = _axis(d, shape)
    dtype = d.choice((*BYTES, *BYTES, "int16", "uint16"))
    operands = [d.value(shape), *_grid(d, dtype, count)]
    if dtype == "uint8" and d.integer(0, 3) == 0:
        operands = operands[:2]
    return Sample("QuantizeLinear", operands, attributes, steps=ONE)


def _dequantize(d: Draw) -> Sample:
    shape = d.shape()
    attributes, count = _axis(d, shape)
    dtype = d.choice((*BYTES, *BYTES, "int16", "uint16", "int32"))
    operands = [d.value(shape, dtype), *_grid(d, dtype, count)]
    if dtype == "int32":
        zero = np.zeros_like(operands[2].array)  # there is no other for int32
        operands[2] = Operand(zero, operands[2].is_constant)
    if d.integer(0, 3) == 0:
        operands = operands[:2]
    return Sample("DequantizeLinear", operands, attributes)


def _dynamic(d: Draw) -> Sample:
    return Sample("DynamicQuantizeLinear", [d.value(d.shape(0, 3))], outputs=3, steps=ONE)


def _zeros(d: Draw, *dtypes: str) -> list[Operand]:
    """Zero points of two operands, of the first, or of none."""
    return [_zero(d, dtype) for dtype in dtypes][: d.integer(0, 2)]


def _matrices(d: Draw) -> tuple[Operand, Operand, str, str]:
    a, b = d.choice(BYTES), d.choice(BYTES)
    rows, k, columns = d.integer(1, 5), d.integer(1, 20), d.choice((1, 3, 16, 20))
    stack = d.shape(0, 2, 3)
    return d.value((*stack, rows, k), a), d.weight(d.array((k, columns), b)), a, b


def _matmul_integer(d: Draw) -> Sample:
    a, b, *dtypes = _matrices(d)
    return Sample("MatMulInteger", [a, b, *_zeros(d, *dtypes)])


def _qlinear_matmul(d: Draw) -> Sample:
    a, b, kind_a, kind_b = _matrices(d)
    many = b.array.shape[1] if d.flag() else None
    grid_b = _grid(d, kind_b, many)
    result = _result(d, kind_a, a.array.shape[-1])
    if many is None and d.flag():  # the second is an activation, too
        stack = a.array.shape[:-2] if d.flag() else ()
        b = Operand(d.array((*stack, *b.array.shape), kind_b), is_constant=False)
    return Sample("QLinearMatMul", [a, *_grid(d, kind_a), b, *grid_b, *result], steps=ONE)


def _result(d: Draw, dtype: str, terms: int) -> list[Operand]:
    """Scale and zero point of a sum of products, in whose range most of these sums lie."""
    scale = d.rng.uniform(0.5, 2) * np.sqrt(terms) * 0.1 * 0.1 * 40
    return [constant(scale, "float32"), _fixed(_zero(d, dtype))]


def _conv(d: Draw) -> tuple[Operand, Operand, dict[str, Any]]:
    """Image, weight and attributes."""
    size, (channels, results, groups) = size_of(d), groups_of(d)
    where = window_of(d, size)
    x = d.value((d.integer(1, 2), channels, *size), d.choice(BYTES))
    shape = (results, channels // groups, *where["kernel_shape"])
    weight = d.array(shape, d.choice(("int8", "int8", "uint8")))
    return x, d.weight(weight), where | {"group": groups}


def _conv_integer(d: Draw) -> Sample:
    x, weight, where = _conv(d)
    return Sample("ConvInteger", [x, weight, *_zeros(d, *_kinds(x, weight))], where)


def _kinds(*operands: Operand) -> list[str]:
    return [str(o.array.dtype) for o in operands]


def _qlinear_conv(d: Draw) -> Sample:
    x, weight, where = _conv(d)
    kind, kind_w = _kinds(x, weight)
    results = weight.array.shape[0]
    many = results if d.flag() else None
    if (kind, kind_w) == ("int8", "uint8") and len(weight.array.shape) != 4:
        many = None  # only ONNX's evaluator takes these, which misplaces scales of channels then
    scale = _scale(d, many)
    zero = np.zeros(() if many is None else (many,)) if kind_w == "int8" else 128
    grid_w = [scale, d.weight(np.broadcast_to(zero, scale.array.shape), kind_w)]
    bias = [d.weight(d.rng.integers(-5000, 5000, results), "int32")][: d.integer(0, 1)]
    terms = int(np.prod(weight.array.shape[1:]))
    operands = [x, *_grid(d, kind), weight, *grid_w, *_result(d, kind, terms), *bias]
    return Sample("QLinearConv", operands, where, steps=ONE)


# ---- ONNX Runtime's own ----


def _own(
    kind: str, operands: Sequence[Operand | None], steps: int = ONE, **attributes: Any
) -> Sample:
    return Sample(kind, operands, attributes, domain=MICROSOFT, steps=steps)


def _value(d: Draw, shape: Sequence[int], dtype: str) -> list[Operand]:
    """Integers with scale and zero point."""
    return [d.value(shape, dtype), *_grid(d, dtype)]


def _two(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        dtype, shape = d.choice(BYTES), d.shape(1)
        whole = d.flag()
        a, b = (_value(d, shape if whole else d.part_of(shape), dtype) for _ in range(2))
        return _own(kind, [*a, *b, *_grid(d, dtype)])

    return make


def _one(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        dtype = d.choice(BYTES)
        alpha = {"alpha": d.number(0, 1)} if kind == "QLinearLeakyRelu" else {}
        x = [d.value(d.shape(1), dtype), *map(_fixed, _grid(d, dtype))]
        return _own(kind, [*x, *map(_fixed, _grid(d, dtype))], **alpha)

    return make


def _average(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        dtype, size = d.choice(BYTES), [d.integer(1, 8), d.integer(1, 8)]
        x = [d.value((d.integer(1, 2), d.integer(1, 17), *size), dtype), *_grid(d, dtype)]
        where: dict[str, Any] = {"channels_last": 0}
        if kind == "QLinearAveragePool":
            where = pooled(d, size) | {"count_include_pad": d.integer(0, 1)}
            where.pop("dilations", None)
        return _own(kind, [*x, *_grid(d, dtype)], **where)

    return make


def _concat(d: Draw) -> Sample:
    dtype, shape = d.choice(BYTES), [*d.shape(1)]
    axis, parts = d.axis(len(shape)), []
    for _ in range(d.integer(1, 3)):
        shape[axis] = d.integer(1, 5)
        parts += [d.value(shape, dtype), *map(_fixed, _grid(d, dtype))]
    return _own("QLinearConcat", [*map(_fixed, _grid(d, dtype)), *parts], axis=axis)


def integer_mean(d: Draw) -> Sample:
    """QLinearReduceMean, which recent versions of ONNX Runtime do not know."""
    dtype, shape = d.choice(BYTES), d.shape(1)
    axes = d.random.sample(range(len(shape)), d.integer(1, len(shape)))
    operands = [*_value(d, shape, dtype), *_grid(d, dtype)]
    return _own("QLinearReduceMean", operands, axes=axes, keepdims=d.integer(0, 1))


def _softmax(d: Draw) -> Sample:
    """Along more than one element: for a single one, ONNX Runtime computes 256, which is 0 in
    uint8."""
    dtype, shape = d.choice(BYTES), tuple(n + 1 for n in d.shape(1, 4, 5))
    x = [d.value(shape, dtype), *map(_fixed, _grid(d, dtype))]
    low = -128 if dtype == "int8" else 0
    result = [constant(1 / 256, "float32"), constant(low, dtype)]
    return _own("QLinearSoftmax", [*x, *result], axis=d.axis(len(shape)), opset=d.choice((12, 13)))


def _where(d: Draw) -> Sample:
    dtype, shape = d.choice(BYTES), d.shape(1)
    chosen = d.value(d.part_of(shape), "bool")
    a, b = ([d.value(d.part_of(shape), dtype), *map(_fixed, _grid(d, dtype))] for _ in range(2))
    return _own("QLinearWhere", [chosen, *a, *b, *map(_fixed, _grid(d, dtype))])


def _gemm(d: Draw) -> Sample:
    kind_a, kind_b = d.choice((("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")))
    n, k, m = d.integer(1, 4), d.integer(1, 20), d.choice((1, 3, 16))
    turned = {"transA": d.integer(0, 1), "transB": d.integer(0, 1)}
    a = d.value((k, n) if turned["transA"] else (n, k), kind_a)
    b = d.weight(d.array((m, k) if turned["transB"] else (k, m), kind_b))
    many = m if d.flag() else None
    grid_b = [_fixed(_scale(d, many)), _fixed(_zero(d, kind_b, many))]
    bias = d.operand(d.rng.integers(-3000, 3000, (m,)), "int32") if d.flag() else None
    result = _result(d, kind_a, k) if d.flag() else []
    operands = [
        a,
        *map(_fixed, _grid(d, kind_a)),
        b,
        *grid_b,
        *([bias] if bias or result else []),
        *result,
    ]
    return _own("QGemm", operands, alpha=d.choice((1.0, 0.5, 1.75)), **turned)


def _in_domain(make: Maker) -> Maker:
    """The operator of the same name in ONNX Runtime's own domain."""

    def made(d: Draw) -> Sample:
        sample = make(d)
        return _own(sample.kind, sample.operands, sample.steps, **sample.attributes)

    return made


MAKERS: dict[str, Maker] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
OWN_MAKERS: dict[str, Maker] = {
    "DequantizeLinear": _in_domain(_dequantize),
    "QGemm": _gemm,
    "QLinearAdd": _two("QLinearAdd"),
    "QLinearAveragePool": _average("QLinearAveragePool"),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _average("QLinearGlobalAveragePool"),
    "QLinearLeakyRelu": _one("QLinearLeakyRelu"),
    "QLinearMul": _two("QLinearMul"),
    "QLinearSigmoid": _one("QLinearSigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": _in_domain(_quantize),
}
