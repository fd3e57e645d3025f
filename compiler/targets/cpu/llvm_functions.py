"""The functions of ``common/float_functions.py`` as functions of a module: of a float32, and of
vectors of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir

from ...te.expr import Binary, Call, Const, Expr, Select, Var
from ..common.float_functions import FUNCTIONS, FloatFunction
from .llvm_vector import call_named, constant_of, like, suffix_of

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

_I32 = ir.IntType(32)
_COMPARISONS = ("<", "<=", "==")
#: Beyond this, a power of two scales every float32 to infinity or 0.
_MOST_EXPONENT = 300.0


def call_function(builder: Value, name: str, x: Value) -> Value:
    """The value of a function, for every element of ``x``."""
    return builder.call(_declared(builder.module, FUNCTIONS[name], x.type), [x])


def _declared(module: ir.Module, function: FloatFunction, kind: ir.Type) -> ir.Function:
    """The function for a type, added to the module where it is not yet there."""
    name = f"{function.name}.{suffix_of(kind)}"
    if (known := module.globals.get(name)) is not None:
        return known
    made = ir.Function(module, ir.FunctionType(kind, [kind]), name)
    made.linkage = "internal"
    builder = ir.IRBuilder(made.append_basic_block("entry"))
    values: dict[Var, Value] = {function.x: made.args[0]}
    for step, value in function.steps:
        values[step] = _value(builder, value, values, kind)
    builder.ret(_value(builder, function.result, values, kind))
    return made


def _value(builder: Value, expr: Expr, values: Mapping[Var, Value], kind: ir.Type) -> Value:
    def value(part: Expr) -> Value:
        return _value(builder, part, values, kind)

    match expr:
        case Var():
            return values[expr]
        case Const(number):
            return constant_of(kind, number)
        case Select(Binary(op, a, b), chosen, other) if op in _COMPARISONS:
            return builder.select(
                builder.fcmp_ordered(op, value(a), value(b)), value(chosen), value(other)
            )
        case Binary("max", a, b):
            left, right = value(a), value(b)
            return builder.select(builder.fcmp_ordered("<", left, right), right, left)
        case Binary(op, a, b):
            emit: dict[str, Callable[[Value, Value], Value]] = {
                "+": builder.fadd, "-": builder.fsub, "*": builder.fmul, "/": builder.fdiv,
            }  # fmt: skip
            return emit[op](value(a), value(b))
        case Call("scale", (x, n)):
            return _scaled(builder, value(x), value(n))
        case Call("fma", args):
            return call_named(
                builder, f"llvm.fma.{suffix_of(kind)}", kind, *(value(arg) for arg in args)
            )
        case Call("round", (x,)):
            return call_named(builder, f"llvm.rint.{suffix_of(kind)}", kind, value(x))
        case Call(name, (x,)):
            return call_function(builder, name, value(x))
    raise TypeError(f"expected an expression of float32, got {expr!r}")


def _scaled(builder: Value, x: Value, n: Value) -> Value:
    """``x * 2**n`` in two products, of which only the second one rounds."""
    most, least = (constant_of(n.type, sign * _MOST_EXPONENT) for sign in (1, -1))
    above = builder.select(builder.fcmp_ordered("<", least, n), n, least)  # not-a-number: least
    bounded = builder.select(builder.fcmp_ordered("<", most, above), most, above)
    whole = like(x, _I32)
    exponent = builder.fptosi(bounded, whole)
    half = builder.ashr(exponent, constant_of(whole, 1))
    for part in (half, builder.sub(exponent, half)):
        biased = builder.add(part, constant_of(whole, 127))
        power = builder.bitcast(builder.shl(biased, constant_of(whole, 23)), x.type)
        x = builder.fmul(x, power)
    return x
