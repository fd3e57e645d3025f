"""Operators on elements: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx

from .....isa.errors import VdlaError
from ....graph.ir import DTYPES, Tensor
from ....graph.ops.elementwise import Add, Clip, Relu
from ....graph.ops.movement import Identity
from ....te.expr import (
    FLOAT_DTYPES,
    UNSIGNED_DTYPES,
    Const,
    Expr,
    maximum,
    minimum,
    reinterpret,
    select,
)
from ....te.expr import Call as FunctionCall
from .call import Call, Outputs, Reader


def function(name: str, *args: Expr) -> Expr:
    """A function of floats."""
    if args[0].dtype not in FLOAT_DTYPES:
        raise VdlaError(f"expected floats, got {args[0].dtype}")
    return FunctionCall(name, args, args[0].dtype)


def number(value: float, like: Expr) -> Const:
    """A literal of an expression's dtype."""
    return Const(float(value) if like.dtype in FLOAT_DTYPES else int(value), like.dtype)


def logistic(x: Expr) -> Expr:
    """``1 / (1 + exp(-x))``."""
    return number(1, x) / (function("exp", -1 * x) + 1)


def negate(x: Expr) -> Expr:
    """Logical not."""
    return select(x, Const(False, "bool"), Const(True, "bool"))


def softplus(x: Expr) -> Expr:
    """``log(1 + exp(x))`` without overflow."""
    absolute = maximum(x, number(0, x) - x)
    return maximum(x, number(0, x)) + function("log1p", function("exp", -1 * absolute))


def divide(a: Expr, b: Expr) -> Expr:
    """The quotient; of integers, without its fraction."""
    return a / b if a.dtype in FLOAT_DTYPES else FunctionCall("divide", (a, b), a.dtype)


def absolute(x: Expr) -> Expr:
    """``|x|``."""
    return x if x.dtype in UNSIGNED_DTYPES else maximum(x, number(0, x) - x)


def _sign(x: Expr) -> Expr:
    one, zero = number(1, x), number(0, x)
    below = zero if x.dtype in UNSIGNED_DTYPES else number(-1, x)
    return select(zero < x, one, select(x < zero, below, x))


def _gelu(x: Expr, approximate: str) -> Expr:
    if approximate == "tanh":
        inner = (x + 0.044715 * x * x * x) * math.sqrt(2 / math.pi)
        return 0.5 * x * (1.0 + function("tanh", inner))
    return 0.5 * x * (1.0 + function("erf", x * math.sqrt(0.5)))


def hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    """``alpha * x + beta`` within 0..1."""
    return minimum(maximum(alpha * x + beta, number(0, x)), number(1, x))


def _mod(a: Expr, b: Expr, fmod: int) -> Expr:
    rest = FunctionCall("remainder", (a, b), a.dtype)
    if fmod or a.dtype in UNSIGNED_DTYPES:
        return rest
    zero = number(0, a)
    crosses = (zero < rest) & (b < zero) | (rest < zero) & (zero < b)
    return select(crosses, rest + b, rest)


def _power(a: Expr, b: Expr) -> Expr:
    """The power in the base's dtype; of integers in float64, which holds all that fit int32."""
    if a.dtype in FLOAT_DTYPES:
        return function("pow", a, b.astype(a.dtype))
    wide = function("pow", a.astype("float64"), b.astype("float64"))
    return function("trunc", wide).astype(a.dtype)


# ---- readers ----


def _unary(rule: Callable[[Expr], Any]) -> Reader:
    return lambda call: call.map(rule, call.operand(0))


def _binary(rule: Callable[[Expr, Expr], Any]) -> Reader:
    return lambda call: call.map(rule, call.operand(0), _second(call))


def _second(call: Call) -> Tensor:
    """The second operand. Before operator set 7 ``axis`` is where it lies along the first one."""
    a, b = call.operand(0), call.operand(1)
    if "axis" not in call.attributes:
        return b
    axis = call.axis(call.integer("axis", 0), len(a.shape))
    return call.reshape(b, (*b.shape, *[1] * (len(a.shape) - axis - len(b.shape))))


def _variadic(rule: Callable[[Expr, Expr], Expr], call: Call) -> Outputs:
    return call.map(lambda *xs: reduce(rule, xs), *call.all_operands())


def _activation(rule: Callable[..., Any], **defaults: float) -> Reader:
    """An activation with numbers as attributes."""

    def read(call: Call) -> Outputs:
        values = {name: call.number(name, default) for name, default in defaults.items()}
        return call.map(lambda x: rule(x, **values), call.operand(0))

    return read


def _add(call: Call) -> Outputs:
    a, b = call.operand(0), _second(call)
    if a.dtype == b.dtype == "float32":
        return call.emit(Add(), a, b)
    return call.map(lambda x, y: x + y, a, b)


def _relu(call: Call) -> Outputs:
    x = call.operand(0)
    if x.dtype == "float32":
        return call.emit(Relu(), x)
    return call.map(lambda v: maximum(v, number(0, v)), x)


def _clip(call: Call) -> Outputs:
    x = call.operand(0)
    limits = [call.attributes.get("min"), call.attributes.get("max")]
    given = [call.optional(1), call.optional(2)]
    if x.dtype == "float32" and all(t is None or t.data is not None for t in given):
        for i, tensor in enumerate(given):
            if tensor is not None and tensor.data is not None:
                if tensor.data.size != 1:
                    raise call.refuse(f"expected one bound, got {tensor.type_text}")
                limits[i] = tensor.data.item()
        low, high = limits
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        return call.emit(Clip(float(low), float(high)), x)
    for bound, rule in zip(given, (maximum, minimum), strict=True):
        if bound is not None:
            x = call.map(rule, x, call.reshape(bound, ()))
    for limit, rule in zip(limits, (maximum, minimum), strict=True):
        if limit is not None:
            x = call.map(lambda v, n=limit, r=rule: r(v, number(n, v)), x)
    return call.emit(Identity(), x)


def dtype_of(call: Call, code: int) -> str:
    """The dtype of an ONNX type number."""
    try:
        name = str(onnx.helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        name = f"type {code}"
    if name not in DTYPES:
        raise call.refuse(f"{name} is not supported; supported are {', '.join(DTYPES)}")
    return name


def _cast(call: Call) -> Outputs:
    x = call.operand(0)
    if call.kind == "CastLike":
        target = call.operand(1).dtype
    else:
        target = dtype_of(call, call.integer("to", 0))
    return call.emit(Identity(), x) if target == x.dtype else call.map(converted(target), x)


def _bit_cast(call: Call) -> Outputs:
    """The same bits as another type. Of integers of one width it is a conversion, which wraps;
    floats go by way of the signed integer of their width."""
    x, target = call.operand(0), dtype_of(call, call.integer("to", 0))
    if x.dtype == "bool" and target in ("int8", "uint8"):
        return call.map(lambda v: select(v, Const(1, target), Const(0, target)), x)
    if np.dtype(x.dtype).itemsize != np.dtype(target).itemsize or "bool" in (x.dtype, target):
        raise call.refuse(f"expected a type as wide as {x.dtype}, got {target}")
    if x.dtype.startswith("float") == target.startswith("float"):
        return call.emit(Identity(), call.cast(x, target))
    if target.startswith("float"):
        whole = call.cast(x, f"int{target[5:]}")
        return call.map(lambda v: reinterpret(v, target), whole)
    made = call.map(lambda v: reinterpret(v, f"int{x.dtype[5:]}"), x)
    return call.emit(Identity(), call.cast(made, target))


def converted(target: str) -> Callable[[Expr], Expr]:
    """ONNX's conversion: floats lose their fraction."""

    def rule(x: Expr) -> Expr:
        truncates = x.dtype in FLOAT_DTYPES and target not in (*FLOAT_DTYPES, "bool")
        return (function("trunc", x) if truncates else x).astype(target)

    return rule


def _gelu_reader(call: Call) -> Outputs:
    approximate = call.text("approximate", "none")
    return call.map(lambda x: _gelu(x, approximate), call.operand(0))


def _prelu(call: Call) -> Outputs:
    rule = lambda x, slope: select(x < number(0, x), slope * x, x)  # noqa: E731
    return call.map(rule, call.operand(0), call.operand(1))


def _mod_reader(call: Call) -> Outputs:
    fmod = call.integer("fmod", 0)
    return call.map(lambda a, b: _mod(a, b, fmod), call.operand(0), call.operand(1))


def _shift(call: Call) -> Outputs:
    right = call.text("direction", "") == "RIGHT"
    rule = lambda a, b: a >> b if right else a << b  # noqa: E731
    return call.map(rule, call.operand(0), call.operand(1))


def _isinf(call: Call) -> Outputs:
    positive, negative = call.integer("detect_positive", 1), call.integer("detect_negative", 1)

    def rule(x: Expr) -> Expr:
        found: Expr = Const(False, "bool")
        if positive:
            found = found | x.equal(number(math.inf, x))
        return found | x.equal(number(-math.inf, x)) if negative else found

    return call.map(rule, call.operand(0))


def _mean(call: Call) -> Outputs:
    operands = call.all_operands()
    rule = lambda *xs: reduce(lambda a, b: a + b, xs) / len(xs)  # noqa: E731
    return call.map(rule, *operands)


def _dropout(call: Call) -> Outputs:
    x = call.operand(0)
    training = call.optional(2)
    if training is not None and call.scalar(2, "training_mode"):
        raise call.refuse("dropout while training is random and not supported")
    mask = call.value(np.ones(x.shape, bool)) if len(call.outputs) > 1 else None
    return call.emit(Identity(), x), mask


def _selu(x: Expr, alpha: float, gamma: float) -> Expr:
    below = alpha * function("exp", x) - alpha
    return gamma * select(number(0, x) < x, x, below)


def elu(x: Expr, alpha: float) -> Expr:
    """``x``, or ``alpha * (exp(x) - 1)`` below 0."""
    return select(x < number(0, x), alpha * (function("exp", x) - 1), x)


def softsign(x: Expr) -> Expr:
    """``x / (1 + |x|)``."""
    return x / (absolute(x) + 1)


def _celu(x: Expr, alpha: float) -> Expr:
    negative = alpha * (function("exp", x / alpha) - 1)
    return maximum(x, number(0, x)) + minimum(number(0, x), negative)


def _shrink(x: Expr, lambd: float, bias: float) -> Expr:
    """Integers are shrunk as floats, and then lose their fraction."""
    if x.dtype not in FLOAT_DTYPES:
        return converted(x.dtype)(_shrink(x.astype("float32"), lambd, bias))
    inside = select(number(lambd, x) < x, x - number(bias, x), number(0, x))
    return select(x < number(-lambd, x), x + number(bias, x), inside)


def leaky_relu(x: Expr, alpha: float) -> Expr:
    """``x``, or ``alpha * x`` below 0."""
    return select(x < number(0, x), number(alpha, x) * x, x)


def thresholded_relu(x: Expr, alpha: float) -> Expr:
    """``x`` above ``alpha``, else 0."""
    return select(number(alpha, x) < x, x, number(0, x))


SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}

READERS: dict[str, Reader] = {
    "Abs": _unary(absolute),
    "Add": _add,
    "And": _binary(lambda a, b: a & b),
    "BitShift": _shift,
    "BitwiseAnd": _binary(lambda a, b: a & b),
    "BitwiseNot": _unary(lambda x: number(-1, x) - x),
    "BitwiseOr": _binary(lambda a, b: a | b),
    "BitwiseXor": _binary(lambda a, b: (a | b) - (a & b)),
    "BitCast": _bit_cast,
    "Cast": _cast,
    "CastLike": _cast,
    "Celu": _activation(_celu, alpha=1.0),
    "Clip": _clip,
    "Div": _binary(divide),
    "Dropout": _dropout,
    "Elu": _activation(elu, alpha=1.0),
    "Equal": _binary(lambda a, b: a.equal(b)),
    "Gelu": _gelu_reader,
    "Greater": _binary(lambda a, b: b < a),
    "GreaterOrEqual": _binary(lambda a, b: b <= a),
    "HardSigmoid": _activation(hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": _unary(lambda x: x * hard_sigmoid(x, 1 / 6, 0.5)),
    "Identity": lambda call: call.emit(Identity(), call.operand(0)),
    "IsInf": _isinf,
    "IsNaN": _unary(lambda x: negate(x.equal(x))),
    "LeakyRelu": _activation(leaky_relu, alpha=0.01),
    "Less": _binary(lambda a, b: a < b),
    "LessOrEqual": _binary(lambda a, b: a <= b),
    "Max": partial(_variadic, maximum),
    "Mean": _mean,
    "Min": partial(_variadic, minimum),
    "Mish": _unary(lambda x: x * function("tanh", softplus(x))),
    "Mod": _mod_reader,
    "Mul": _binary(lambda a, b: a * b),
    "Neg": _unary(lambda x: number(-1, x) * x),
    "Not": _unary(negate),
    "Or": _binary(lambda a, b: a | b),
    "PRelu": _prelu,
    "Pow": _binary(_power),
    "Reciprocal": _unary(lambda x: number(1, x) / x),
    "Relu": _relu,
    "Selu": _activation(_selu, **SELU),
    "Shrink": _activation(_shrink, lambd=0.5, bias=0.0),
    "Sigmoid": _unary(logistic),
    "Sign": _unary(_sign),
    "Softplus": _unary(softplus),
    "Softsign": _unary(softsign),
    "Sub": _binary(lambda a, b: a - b),
    "Sum": partial(_variadic, lambda a, b: a + b),
    "Swish": _activation(lambda x, alpha: x * logistic(alpha * x), alpha=1.0),
    "ThresholdedRelu": _activation(thresholded_relu, alpha=1.0),
    "Where": lambda call: call.map(select, call.operand(0), call.operand(1), call.operand(2)),
    "Xor": _binary(lambda a, b: select(a, negate(b), b)),
} | {
    name: _unary(partial(function, name.lower()))
    for name in (
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp",
        "Floor", "Log", "Round", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
    )
}  # fmt: skip
