"""Random nodes that compute element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import OPSET, Draw, Maker, Operand, Sample, constant, type_number

#: Operators of one operand.
UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos",
    "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh",
    "ThresholdedRelu",
)  # fmt: skip
BINARY = (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Mul", "Or", "Sub", "Xor",
)  # fmt: skip
VARIADIC = ("Max", "Mean", "Min", "Sum")
#: Numbers that are attributes, which a node may leave out, and the values they are drawn from.
NUMBERS = {
    "Celu": {"alpha": (0.5, 2)}, "Elu": {"alpha": (0.5, 2)},
    "HardSigmoid": {"alpha": (0.1, 1), "beta": (0, 1)}, "LeakyRelu": {"alpha": (0, 2)},
    "Selu": {"alpha": (1, 2), "gamma": (1, 2)}, "Shrink": {"lambd": (0, 2), "bias": (0, 1)},
    "Swish": {"alpha": (0.5, 2)}, "ThresholdedRelu": {"alpha": (0, 2)},
}  # fmt: skip
#: Operators that are younger than ``OPSET``.
OPSETS = {"Swish": 24}


def _unary(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        opset = OPSETS.get(kind, OPSET)
        dtype = d.dtype(kind, opset=opset)
        attributes: dict[str, Any] = {
            name: d.number(*bounds) for name, bounds in NUMBERS.get(kind, {}).items() if d.flag()
        }
        if kind == "Gelu":
            attributes["approximate"] = d.choice(("none", "tanh"))
        return Sample(kind, [d.value(d.shape(), dtype)], attributes, opset=opset)

    return make


def _operands(d: Draw, dtype: str, count: int) -> list[Operand]:
    shape = d.shape()
    return [d.value(d.part_of(shape), dtype) for _ in range(count)]


def _binary(kind: str) -> Maker:
    return lambda d: Sample(kind, _operands(d, d.dtype(kind), 2))


def _variadic(kind: str) -> Maker:
    return lambda d: Sample(kind, _operands(d, d.dtype(kind), d.integer(1, 4)))


def _nonzero(d: Draw, operand: Operand) -> Operand:
    array = operand.array
    return Operand(np.where(array == 0, 3, array).astype(array.dtype), operand.is_constant)


def _div(d: Draw) -> Sample:
    a, b = _operands(d, d.dtype("Div"), 2)
    return Sample("Div", [a, _nonzero(d, b)])


def _mod(d: Draw) -> Sample:
    dtype = d.dtype("Mod")
    a, b = _operands(d, dtype, 2)
    return Sample("Mod", [a, _nonzero(d, b)], {"fmod": int(dtype[0] == "f" or d.flag())})


def _pow(d: Draw) -> Sample:
    """Pow of bases that have real powers, and of exponents whose results fit in every dtype."""
    base, exponent = d.dtype("Pow"), d.choice(("float32", "int32", "int64"))
    shape = d.shape()
    x, y = d.part_of(shape), d.part_of(shape)
    if base[0] == "f":
        bases, exponents = np.abs(d.array(x, base)) + 0.25, d.array(y, exponent, 2)
        exponents = np.clip(exponents, -3, 3)
    else:
        bases, exponents = d.rng.integers(-5, 6, x), d.rng.integers(0, 5, y)
    return Sample("Pow", [d.operand(bases, base), d.operand(exponents, exponent)])


def _shift(d: Draw) -> Sample:
    dtype = d.dtype("BitShift")
    a, _ = operands = _operands(d, dtype, 2)
    by = d.rng.integers(0, 8, operands[1].array.shape)
    return Sample("BitShift", [a, d.operand(by, dtype)], {"direction": d.choice(("LEFT", "RIGHT"))})


def _prelu(d: Draw) -> Sample:
    dtype, shape = d.dtype("PRelu"), d.shape(1)
    return Sample("PRelu", [d.value(shape, dtype), d.value(d.part_of(shape), dtype)])


def _where(d: Draw) -> Sample:
    shape, dtype = d.shape(), d.dtype("Where", 1)
    parts = [d.part_of(shape) for _ in range(3)]
    return Sample(
        "Where", [d.value(p, t) for p, t in zip(parts, ("bool", dtype, dtype), strict=True)]
    )


def _clip(d: Draw) -> Sample:
    dtype = d.dtype("Clip")
    low, high = np.sort(d.array((2,), dtype))
    bounds = [d.weight(b, dtype) if d.integer(0, 3) else None for b in (low, high)]
    return Sample("Clip", [d.value(d.shape(), dtype), *bounds])


def _cast(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        """A cast of values that the target dtype can hold."""
        source, target = d.dtype("Cast"), d.dtype("Cast")
        array = d.array(d.shape(), source)
        if target != "bool":
            array = np.clip(array, 0 if target[0] == "u" else -9, 9).astype(array.dtype)
        if kind == "CastLike":
            return Sample(kind, [d.operand(array), d.value(d.shape(), target)])
        return Sample(kind, [d.operand(array)], {"to": type_number(target)})

    return make


def _dropout(d: Draw) -> Sample:
    x = d.value(d.shape(1), d.choice(("float32", "float64")))
    ratio = [constant(d.number(0, 0.9), "float32"), constant(False, "bool")][: d.integer(0, 2)]
    return Sample("Dropout", [x, *ratio], outputs=d.integer(1, 2))


def _special(d: Draw, dtype: str) -> Operand:
    array = d.array(d.shape(1), dtype)
    places = d.rng.integers(0, 4, array.shape)
    values = np.choose(places, [array, np.inf, -np.inf, np.nan]).astype(dtype)
    return d.operand(values)


def _isinf(d: Draw) -> Sample:
    signs = {f"detect_{s}": d.integer(0, 1) for s in ("positive", "negative") if d.flag()}
    return Sample("IsInf", [_special(d, d.dtype("IsInf"))], signs)


def _isnan(d: Draw) -> Sample:
    return Sample("IsNaN", [_special(d, d.dtype("IsNaN"))])


MAKERS: dict[str, Maker] = (
    {kind: _unary(kind) for kind in UNARY}
    | {kind: _binary(kind) for kind in BINARY}
    | {kind: _variadic(kind) for kind in VARIADIC}
    | {
        "BitShift": _shift,
        "Cast": _cast("Cast"),
        "CastLike": _cast("CastLike"),
        "Clip": _clip,
        "Div": _div,
        "Dropout": _dropout,
        "IsInf": _isinf,
        "IsNaN": _isnan,
        "Mod": _mod,
        "PRelu": _prelu,
        "Pow": _pow,
        "Where": _where,
    }
)
