"""Rows of operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .draft import QUANTISED, RANGES, Case, Draft, Maker


def unary(kind: str, low: float | None = None, high: float | None = None, table: str = "") -> Maker:
    """An operator of one operand; ``low`` and ``high`` bound floats."""

    def make(d: Draft) -> Case:
        shape = d.elements()
        bounds = {"low": low, "high": high} if d.dtype == "float32" else {}
        return d.case(kind, [d.x(shape, **bounds)], [d.y(shape)], table)

    return make


def function(kind: str, results: dict[str, tuple[float, int]]) -> Maker:
    """An operator whose result has a fixed scale and zero point."""

    def make(d: Draft) -> Case:
        shape, quant = d.elements(), d.quant()
        if d.dtype == "int16":
            quant = (2.0 ** -d.size(9, 13) if d.chance() else d.quant()[0], 0)
        return d.case(kind, [d.x(shape, quant=quant)], [d.y(shape, quant=results.get(d.dtype))])

    return make


def rsqrt(d: Draft) -> Case:
    """Of positive numbers alone."""
    shape, quant = d.elements(), d.quant()
    low = {"float32": 0.1}.get(d.dtype, 1 if quant is None else quant[1])
    high = {"int8": 127, "int16": 32767, "uint8": 255}.get(d.dtype, 9)
    return d.case("RSQRT", [d.x(shape, quant=quant, low=low, high=high)], [d.y(shape)])


def absolute(d: Draft) -> Case:
    shape, quant = d.elements(), d.quant()
    if d.dtype == "int16" or d.chance():
        return d.case("ABS", [d.x(shape, quant=quant)], [d.y(shape, quant=quant)])
    return d.case("ABS", [d.x(shape, quant=quant)], [d.y(shape)])


def relu6(d: Draft) -> Case:
    """TensorFlow Lite Micro only clips, so both sides have one scale, as converters write it."""
    shape, quant = d.elements(), d.quant()
    return d.case(
        "RELU6",
        [d.x(shape, quant=quant, **({"low": -2, "high": 9} if quant is None else {}))],
        [d.y(shape, quant=quant)],
    )


def leaky_relu(d: Draft) -> Case:
    shape = d.elements()
    alpha = float(d.rng.uniform(0, 1))
    return d.case("LEAKY_RELU", [d.x(shape)], [d.y(shape)], "LeakyReluOptions", Alpha=alpha)


def prelu(d: Draft) -> Case:
    shape = d.shape(4)
    alpha = tuple(n if d.chance() else 1 for n in shape)
    quant = d.quant()
    values = d.draw(alpha, d.dtype, *((-1, 1) if d.dtype == "float32" else (-100, 100)))
    slope = d.constant(values, d.dtype, quant)
    return d.case("PRELU", [d.x(shape), slope], [d.y(shape)])


def broadcast(d: Draft, rank: int | None = None) -> tuple[tuple[int, ...], ...]:
    """Two shapes that broadcast, and the common one."""
    whole = d.elements(rank)
    sides = []
    for _ in range(2):
        sides.append(tuple(n if d.rng.integers(4) else 1 for n in whole))
    first, second = sides
    match d.size(0, 4):
        case 0:
            second = first = whole
        case 1:
            first, second = whole, second[d.size(0, len(whole)) :]
    joint = np.broadcast_shapes(first, second)
    return first, second, tuple(int(n) for n in joint)


def binary(
    kind: str,
    table: str = "",
    fused: bool = False,
    same: bool = False,
    result: str | None = None,
    low: float | None = None,
    high: float | None = None,
    positive: bool = False,
) -> Maker:
    """An operator of two operands; ``same`` where all must have one scale and zero point,
    ``positive`` where the second must be above zero."""

    def make(d: Draft) -> Case:
        a, b, y = broadcast(d)
        quant = d.quant()
        given = [quant if same else d.quant() for _ in range(3)]
        bounds = {"low": low, "high": high} if d.dtype not in QUANTISED else {}
        left = d.x(a, quant=given[0], **bounds)
        if positive and d.dtype != "bool":
            top = RANGES[d.dtype][1] if d.dtype in QUANTISED else 9
            given[1] = given[1] and (given[1][0], min(given[1][1], top - 1))
            bounds = {"low": 1 if given[1] is None else given[1][1] + 1, "high": top}
        if d.chance() and d.chance():
            span = (bounds.get("low"), bounds.get("high"))
            if span[0] is None:
                span = (-100, 100)
            right = d.constant(d.draw(b, d.dtype, *span), d.dtype, given[1])
        else:
            right = d.x(b, quant=given[1], **bounds)
        options = (
            {"FusedActivationFunction": d.size(0, 3) if d.dtype != "int32" else 0} if fused else {}
        )
        made = d.y(y, result, quant=given[2] if result is None else None)
        return d.case(kind, [left, right], [made], table, **options)

    return make


def add_n(d: Draft) -> Case:
    shape = d.shape()
    return d.case("ADD_N", [d.x(shape) for _ in range(d.size(2, 4))], [d.y(shape)])


def cast(to: str) -> Callable[[Draft], Case]:
    def make(d: Draft) -> Case:
        shape = d.shape()
        index = d.builder.tensor(shape, d.dtype)
        d.inputs.append(index)
        d.values.append(d.draw(shape, d.dtype, *((0, 200) if d.dtype == "uint8" else (-100, 100))))
        return d.case("CAST", [index], [d.builder.tensor(shape, to)])

    return make


def any_cast(d: Draft) -> Case:
    return cast(str(d.rng.choice(["float32", "int8", "int16", "int32", "uint8", "bool", "int64"])))(
        d
    )


def select(d: Draft) -> Case:
    a, b, y = broadcast(d, 4 if d.chance() else None)
    condition = d.x(tuple(n if d.chance() else 1 for n in y), "bool")
    quant = d.quant()
    shape = np.broadcast_shapes(d.values[0].shape, y)
    operands = [condition, d.x(a, quant=quant), d.x(b, quant=quant)]
    return d.case("SELECT_V2", operands, [d.y(shape, quant=quant)])


def quantize(d: Draft) -> Case:
    shape = d.shape()
    to = str(
        d.rng.choice(
            ["int8", "int16", "int32"] + (["uint8"] if d.dtype in ("float32", "int8") else [])
        )
    )
    quant = (0.004, 0) if to == "int32" else d.quant(to)
    given = (0.003, 0) if d.dtype == "int32" else d.quant()
    return d.case("QUANTIZE", [d.x(shape, quant=given)], [d.y(shape, to, quant)])


def dequantize(d: Draft) -> Case:
    shape = d.shape()
    quant = (0.003, 0) if d.dtype == "int32" else d.quant()
    return d.case("DEQUANTIZE", [d.x(shape, quant=quant)], [d.y(shape, "float32")])


ADD = "AddOptions"
ROWS: dict[str, Maker] = {
    "ABS": absolute,
    "ADD": binary("ADD", ADD, fused=True),
    "ADD_N": add_n,
    "CAST": any_cast,
    "CEIL": unary("CEIL"),
    "COS": unary("COS"),
    "DEQUANTIZE": dequantize,
    "DIV": binary("DIV", "DivOptions", fused=True, positive=True),
    "ELU": unary("ELU"),
    "EQUAL": binary("EQUAL", result="bool", low=-2, high=2),
    "EXP": unary("EXP"),
    "FLOOR": unary("FLOOR"),
    "FLOOR_DIV": binary("FLOOR_DIV", positive=True),
    "FLOOR_MOD": binary("FLOOR_MOD", positive=True),
    "GREATER": binary("GREATER", result="bool"),
    "GREATER_EQUAL": binary("GREATER_EQUAL", result="bool"),
    "HARD_SWISH": unary("HARD_SWISH"),
    "LEAKY_RELU": leaky_relu,
    "LESS": binary("LESS", result="bool"),
    "LESS_EQUAL": binary("LESS_EQUAL", result="bool"),
    "LOG": unary("LOG", 0.01, 20),
    "LOGICAL_AND": binary("LOGICAL_AND"),
    "LOGICAL_NOT": unary("LOGICAL_NOT"),
    "LOGICAL_OR": binary("LOGICAL_OR"),
    "LOGISTIC": function(
        "LOGISTIC", {"int8": (1 / 256, -128), "int16": (1 / 32768, 0), "uint8": (1 / 256, 0)}
    ),
    "MAXIMUM": binary("MAXIMUM", same=True),
    "MINIMUM": binary("MINIMUM", same=True),
    "MUL": binary("MUL", "MulOptions", fused=True),
    "NEG": unary("NEG"),
    "NOT_EQUAL": binary("NOT_EQUAL", result="bool", low=-2, high=2),
    "PRELU": prelu,
    "QUANTIZE": quantize,
    "RELU": unary("RELU"),
    "RELU6": relu6,
    "ROUND": unary("ROUND"),
    "RSQRT": rsqrt,
    "SELECT_V2": select,
    "SIN": unary("SIN"),
    "SQRT": unary("SQRT", 0, 9),
    "SQUARE": unary("SQUARE"),
    "SQUARED_DIFFERENCE": binary("SQUARED_DIFFERENCE"),
    "SUB": binary("SUB", "SubOptions", fused=True),
    "TANH": function(
        "TANH", {"int8": (1 / 128, 0), "int16": (1 / 32768, 0), "uint8": (1 / 128, 128)}
    ),
    "ZEROS_LIKE": unary("ZEROS_LIKE"),
}
