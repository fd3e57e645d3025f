"""Operators on elements: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Tensor
from .call import Call, Reader, Value

#: ATen operators of one operand, and the ONNX operators that compute the same.
SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "hardswish": "HardSwish", "log": "Log", "mish": "Mish",
    "neg": "Neg", "reciprocal": "Reciprocal", "relu": "Relu", "sigmoid": "Sigmoid",
    "sign": "Sign", "silu": "Swish", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan",
    "tanh": "Tanh",
}  # fmt: skip
COMPARISONS = {
    "eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less",
}  # fmt: skip


def _unary(kind: str, call: Call) -> Value:
    x = call.tensor(call["self"], call.dtype)
    if kind in ("Ceil", "Floor") and not call.dtype.startswith("float"):
        return x
    return call.onnx(kind, x)


def _binary(kind: str, call: Call) -> Value:
    return call.onnx(kind, *(call.tensor(call[n], call.dtype) for n in ("self", "other")))


def _common(call: Call) -> list[Tensor]:
    """Both operands in the dtype in which they are compared."""
    dtypes = [v.dtype if isinstance(v, Tensor) else "" for v in (call["self"], call["other"])]
    if not dtypes[1]:
        exact = dtypes[0].startswith("float") or not isinstance(call["other"], float)
        dtype = dtypes[0] if exact else "float32"
    else:
        floats = [d for d in dtypes if d.startswith("float")]
        dtype = max(floats) if floats else str(np.result_type(*dtypes))
    return [call.tensor(call[name], dtype) for name in ("self", "other")]


def _comparison(kind: str) -> Reader:
    return lambda call: call.onnx(kind, *_common(call))


def _scaled_sum(kind: str, first: str, second: str, call: Call) -> Value:
    """``first + alpha * second``, or their difference."""
    a, b = (call.tensor(call[name], call.dtype) for name in (first, second))
    if call["alpha"] not in (None, 1):
        b = call.onnx("Mul", b, call.constant(call["alpha"], call.dtype))
    if call.dtype == "bool":
        return call.onnx("Or", a, b)
    return call.onnx(kind, a, b)


def _mul(call: Call) -> Value:
    a, b = (call.tensor(call[name], call.dtype) for name in ("self", "other"))
    return call.onnx("And" if call.dtype == "bool" else "Mul", a, b)


def _div(call: Call) -> Value:
    a, b = (call.tensor(call[name], call.dtype) for name in ("self", "other"))
    mode, floating = call["rounding_mode"], call.dtype.startswith("float")
    if mode == "floor" and not floating:
        return call.onnx("Div", call.onnx("Sub", a, call.onnx("Mod", a, b)), b)
    quotient = call.onnx("Div", a, b)
    if mode is None or not floating:
        return quotient
    return call.onnx("Floor", quotient) if mode == "floor" else _truncated(call, quotient)


def _truncated(call: Call, x: Tensor) -> Tensor:
    return call.onnx("Mul", call.onnx("Sign", x), call.onnx("Floor", call.onnx("Abs", x)))


def _remainder(call: Call) -> Value:
    a, b = (call.tensor(call[name], call.dtype) for name in ("self", "other"))
    if not call.dtype.startswith("float"):
        return call.onnx("Mod", a, b)
    whole = call.onnx("Floor", call.onnx("Div", a, b))
    return call.onnx("Sub", a, call.onnx("Mul", whole, b))


def _fmod(call: Call) -> Value:
    a, b = (call.tensor(call[name], call.dtype) for name in ("self", "other"))
    return call.onnx("Mod", a, b, fmod=1)


def _pow(call: Call) -> Value:
    a, b = (call.tensor(call[name], call.dtype) for name in ("self", "exponent"))
    return call.onnx("Pow", a, b)


def _logarithm(base: float, call: Call) -> Value:
    natural = call.onnx("Log", call.tensor(call["self"], call.dtype))
    return call.onnx("Mul", natural, call.constant(1 / math.log(base), call.dtype))


def _log1p(call: Call) -> Value:
    x = call.tensor(call["self"], call.dtype)
    return call.onnx("Log", call.onnx("Add", x, call.constant(1, call.dtype)))


def _expm1(call: Call) -> Value:
    x = call.tensor(call["self"], call.dtype)
    return call.onnx("Sub", call.onnx("Exp", x), call.constant(1, call.dtype))


def _rsqrt(call: Call) -> Value:
    return call.onnx("Reciprocal", call.onnx("Sqrt", call.tensor(call["self"], call.dtype)))


def _round(call: Call) -> Value:
    if call["decimals"]:
        raise VdlaError(f"supported is decimals = 0, got {call['decimals']!r}")
    return call.onnx("Round", call["self"]) if call.dtype.startswith("float") else call["self"]


def _is(kind: str, call: Call) -> Value:
    """Predicates of floats; no integer is NaN or infinite."""
    x = call["self"]
    return call.onnx(kind, x if x.dtype.startswith("float") else call.tensor(x, "float32"))


def _logical(kind: str, call: Call) -> Value:
    names = ("self",) if kind == "Not" else ("self", "other")
    return call.onnx(kind, *(call.tensor(call[name], "bool") for name in names))


def _bitwise(of_bool: str, of_integers: str, call: Call) -> Value:
    names = ("self",) if of_bool == "Not" else ("self", "other")
    operands = [call.tensor(call[name], call.dtype) for name in names]
    return call.onnx(of_bool if call.dtype == "bool" else of_integers, *operands)


def _where(call: Call) -> Value:
    a, b = (call.tensor(call[name], call.dtype) for name in ("self", "other"))
    return call.onnx("Where", call["condition"], a, b)


# ---- activations ----


def _clamp(low: str, high: str, call: Call) -> Value:
    """Between two bounds, numbers or tensors, either of which may be absent."""
    y = call.tensor(call["self"], call.dtype)
    bounds = [call[name] for name in (low, high)]
    if not any(isinstance(b, Tensor) for b in bounds):
        limits = [None if b is None else call.constant(b, call.dtype) for b in bounds]
        return call.onnx("Clip", y, *limits)
    for kind, bound in zip(("Max", "Min"), bounds, strict=True):
        if bound is not None:
            y = call.onnx(kind, y, call.tensor(bound, call.dtype))
    return y


def _relu6(call: Call) -> Value:
    bounds = (call.constant(bound, call.dtype) for bound in (0, 6))
    return call.onnx("Clip", call["self"], *bounds)


def _leaky_relu(call: Call) -> Value:
    return call.onnx("LeakyRelu", call["self"], alpha=float(call["negative_slope"]))


def _prelu(call: Call) -> Value:
    x, weight = call["self"], call["weight"]
    if len(weight.shape) == 1 and len(x.shape) > 1:
        weight = call.reshape(weight, (weight.shape[0], *[1] * (len(x.shape) - 2)))
    return call.onnx("PRelu", x, weight)


def _elu(call: Call) -> Value:
    call.only(input_scale=1)
    y = call.onnx("Elu", call["self"], alpha=float(call["alpha"]))
    return y if call["scale"] == 1 else call.onnx("Mul", y, call.constant(call["scale"], y.dtype))


def _gelu(call: Call) -> Value:
    return call.onnx("Gelu", call["self"], approximate=call["approximate"] or "none")


def _softplus(call: Call) -> Value:
    """Beyond ``threshold`` torch returns the operand, from which float32 then hardly differs."""
    beta = call["beta"]
    if beta == 1:
        return call.onnx("Softplus", call["self"])
    factor = call.constant(beta, call.dtype)
    return call.onnx("Div", call.onnx("Softplus", call.onnx("Mul", call["self"], factor)), factor)


# ---- constants, and values that stay as they are ----


def same(call: Call) -> Value:
    """The operand, as the result's dtype."""
    source = call["self"] if call["self"] is not None else call["input"]
    return call.tensor(source, call.dtype)


def _dropout(call: Call) -> Value:
    if call["train"]:
        raise VdlaError("expected a model for inference, got dropout; call eval() before export")
    y = call["input"]
    return y if len(call.results) == 1 else (y, None)


def _filled(value: Callable[[Call], Any], call: Call) -> Value:
    """A constant: one number in every place."""
    given = value(call)
    if isinstance(given, Tensor):
        return call.onnx("Expand", call.tensor(given, call.dtype), call.integers(call.shape))
    return call.constant(np.full(call.shape, given, call.dtype), call.dtype)


def _arange(call: Call) -> Value:
    start, step = call["start"] or 0, 1 if call["step"] is None else call["step"]
    values = np.arange(start, call["end"], step)
    return call.constant(values, call.dtype)


READERS: dict[str, Reader] = (
    {f"aten.{name}": partial(_unary, kind) for name, kind in SAME.items()}
    | {f"aten.{name}": _comparison(kind) for name, kind in COMPARISONS.items()}
    | {
        "aten._to_copy": same,
        "aten.add": partial(_scaled_sum, "Add", "self", "other"),
        "aten.alias": same,
        "aten.arange": _arange,
        "aten.bitwise_and": partial(_bitwise, "And", "BitwiseAnd"),
        "aten.bitwise_not": partial(_bitwise, "Not", "BitwiseNot"),
        "aten.bitwise_or": partial(_bitwise, "Or", "BitwiseOr"),
        "aten.bitwise_xor": partial(_bitwise, "Xor", "BitwiseXor"),
        "aten.clamp": partial(_clamp, "min", "max"),
        "aten.clone": same,
        "aten.contiguous": same,
        "aten.detach": same,
        "aten.div": _div,
        "aten.dropout": _dropout,
        "aten.elu": _elu,
        "aten.empty": partial(_filled, lambda call: 0),
        "aten.expm1": _expm1,
        "aten.fill": partial(_filled, lambda call: call["value"]),
        "aten.fmod": _fmod,
        "aten.full": partial(_filled, lambda call: call["fill_value"]),
        "aten.full_like": partial(_filled, lambda call: call["fill_value"]),
        "aten.gelu": _gelu,
        "aten.hardsigmoid": lambda call: call.onnx(
            "HardSigmoid", call["self"], alpha=1 / 6, beta=0.5
        ),
        "aten.hardtanh": partial(_clamp, "min_val", "max_val"),
        "aten.isinf": partial(_is, "IsInf"),
        "aten.isnan": partial(_is, "IsNaN"),
        "aten.leaky_relu": _leaky_relu,
        "aten.lift_fresh_copy": same,
        "aten.log10": partial(_logarithm, 10),
        "aten.log1p": _log1p,
        "aten.log2": partial(_logarithm, 2),
        "aten.logical_and": partial(_logical, "And"),
        "aten.logical_not": partial(_logical, "Not"),
        "aten.logical_or": partial(_logical, "Or"),
        "aten.logical_xor": partial(_logical, "Xor"),
        "aten.maximum": partial(_binary, "Max"),
        "aten.minimum": partial(_binary, "Min"),
        "aten.mul": _mul,
        "aten.native_dropout": _dropout,
        "aten.ne": lambda call: call.onnx("Not", call.onnx("Equal", *_common(call))),
        "aten.pow": _pow,
        "aten.prelu": _prelu,
        "aten.relu6": _relu6,
        "aten.remainder": _remainder,
        "aten.round": _round,
        "aten.rsqrt": _rsqrt,
        "aten.rsub": partial(_scaled_sum, "Sub", "other", "self"),
        "aten.scalar_tensor": partial(_filled, lambda call: call["s"]),
        "aten.softplus": _softplus,
        "aten.sub": partial(_scaled_sum, "Sub", "self", "other"),
        "aten.trunc": lambda call: _truncated(call, call["self"]),
        "aten.where": _where,
    }
)
