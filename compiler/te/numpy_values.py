"""Expressions of the language evaluated by NumPy, for whole arrays at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...isa.errors import VdlaError
from ...isa.vector_ops import requantize_even, requantize_tflite
from . import expr as E

#: NumPy's functions of floats, by the names of intrinsics.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in ("floor", "ceil", "trunc", "sqrt", "exp", "log", "log1p", "tanh", "sin", "cos",
                 "tan", "sinh", "cosh")
} | {
    f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")
} | {"round": np.rint, "pow": np.power, "remainder": np.fmod,
     "erf": np.vectorize(math.erf, otypes=[np.float64])}  # fmt: skip

_COMPARISONS: dict[str, Callable[..., Any]] = {"<": np.less, "<=": np.less_equal, "==": np.equal}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide,
    "%": np.mod, "&": np.bitwise_and, "|": np.bitwise_or,
    # As code generators have it: the second operand only where it is smaller, or larger.
    "min": lambda a, b: np.where(b < a, b, a), "max": lambda a, b: np.where(a < b, b, a),
}  # fmt: skip


def values_of(expr: E.Expr, known: Mapping[E.Var, np.ndarray]) -> np.ndarray:
    """The values of an expression, given arrays with the values of its variables, which broadcast.

    Raises
    ------
    VdlaError
        For an expression that reads tensors or reduces.
    """
    with np.errstate(all="ignore"):
        return _value(expr, known)


def _value(expr: E.Expr, known: Mapping[E.Var, np.ndarray]) -> np.ndarray:
    match expr:
        case E.Var():
            return known[expr]
        case E.Const(value, dtype):
            return np.asarray(value).astype(dtype)
        case E.Binary(op, a, b, dtype):
            return _binary(op, _value(a, known), _value(b, known), dtype)
        case E.Select(cond, a, b):
            return np.where(_value(cond, known), _value(a, known), _value(b, known))
        case E.Cast(dtype, a):
            return converted(_value(a, known), dtype)
        case E.Call("popcount", (a,), dtype):
            return np.bitwise_count(_value(a, known)).astype(dtype)
        case E.Call("reinterpret", (a,), dtype):
            return _value(a, known).view(dtype)
        case E.Call("divide" | "remainder" as name, (a, b), dtype) if dtype in E.INT_DTYPES:
            return _truncating(name, _value(a, known), _value(b, known)).astype(dtype)
        case E.Call("requantize" | "rescale", args, dtype):
            return requantize_even(*(_value(a, known) for a in args)).astype(dtype)
        case E.Call("requantize_tflite", args):
            return requantize_tflite(*(_value(a, known) for a in args))
        case E.Call(name, args, dtype) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(a, known) for a in args)).astype(dtype)
    raise VdlaError(f"expected an expression of elements, got {expr!r}")


def _binary(op: str, a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    if op in _COMPARISONS:
        return _COMPARISONS[op](a, b)
    if op in (">>", "<<"):
        return _shifted(op, a, b, E.bits_of(dtype)).astype(dtype)
    return _ARITHMETIC[op](a, b).astype(dtype)


def _shifted(op: str, a: np.ndarray, b: np.ndarray, bits: int) -> np.ndarray:
    """Shifts by any number of bits; beyond the width, every bit is shifted out."""
    unsigned = b.astype(np.uint64)
    inside = unsigned < bits
    count = np.where(inside, unsigned, 0).astype(a.dtype)
    if op == "<<":
        return np.where(inside, np.left_shift(a, count), 0)
    beyond = np.where(a < 0, -1, 0) if a.dtype.kind == "i" else 0
    return np.where(inside, np.right_shift(a, count), beyond)


def _truncating(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The quotient towards zero, or its remainder; 0 where the divisor is 0."""
    safe = np.where(b == 0, np.ones_like(b), b)
    rest = np.fmod(a, safe)
    found = (a - rest) // safe if name == "divide" else rest
    return np.where(b == 0, np.zeros_like(a), found)


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """As :class:`~.expr.Cast`: integers wrap; floats become integers by rounding half to even,
    saturating to int64 (0 for not-a-number) and wrapping.
    """
    if str(x.dtype) in E.FLOAT_DTYPES and dtype in E.INT_DTYPES:
        whole = np.rint(np.where(np.isnan(x), 0, x).astype(np.float64))
        limit = 2.0**63
        fits = (whole >= -limit) & (whole < limit)
        beyond = np.where(whole < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
        x = np.where(fits, np.where(fits, whole, 0).astype(np.int64), beyond)
    return x.astype(dtype)
