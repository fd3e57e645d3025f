"""A slow interpreter of loop programs: the oracle of passes and code generators."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
from vdla.compiler.te import expr as E
from vdla.compiler.tir.ir import (
    Allocate,
    Buffer,
    For,
    If,
    Prefetch,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
)
from vdla.isa.errors import VdlaError
from vdla.isa.vector_ops import requantize_even, requantize_tflite

_OPS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, ">>": operator.rshift, "<<": operator.lshift,
    "&": operator.and_, "|": operator.or_, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "min": min, "max": max,
}  # fmt: skip


#: Functions of floats.
_FUNCTIONS: dict[str, Any] = {
    name: getattr(np, name)
    for name in ("floor", "ceil", "trunc", "sqrt", "exp", "log", "log1p", "tanh", "sin", "cos",
                 "tan", "sinh", "cosh")
} | {
    f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")
} | {"round": np.rint, "pow": np.power, "remainder": np.fmod, "erf": math.erf}  # fmt: skip


def _scaled_down(x: int, factor: float, offset: float) -> float:
    """``float32(x) * factor + offset`` rounded down to float32; factor and offset are float32."""
    exact = Fraction(float(np.float32(x))) * Fraction(factor) + Fraction(offset)
    nearest = np.float32(float(exact))
    above = Fraction(float(nearest)) > exact
    return float(np.nextafter(nearest, np.float32(-math.inf)) if above else nearest)


def _divide(name: str, a: int, b: int) -> int:
    """Truncating division or its remainder; 0 where the divisor is 0."""
    if b == 0:
        return 0
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient if name == "divide" else a - quotient * b


def _to_integer(value: float) -> int:
    """Half to even, saturating to int64, 0 for not-a-number."""
    if np.isnan(value):
        return 0
    return min(int(np.clip(np.rint(value), -(2.0**63), 2.0**63)), 2**63 - 1)


def interpret(func: PrimFunc, *arrays: np.ndarray) -> None:
    """Run on NumPy arrays, one per parameter, in place. Reads of never-written scratch memory raise
    VdlaError.
    """
    if len(arrays) != len(func.params):
        raise VdlaError(f"{func.name}: expected {len(func.params)} arrays, got {len(arrays)}")
    memory = dict(zip(func.params, arrays, strict=True))
    for buffer, array in memory.items():
        if array.shape != buffer.shape or array.dtype != np.dtype(buffer.dtype):
            raise VdlaError(
                f"{func.name}: {buffer.name} expects {buffer.shape} {buffer.dtype}, "
                f"got {array.shape} {array.dtype}"
            )
    _Interpreter(memory).run(func.body, {})


class _Interpreter:
    def __init__(self, memory: dict[Buffer, np.ndarray]):
        self.memory = memory
        self.written: dict[Buffer, np.ndarray] = {}

    def run(self, stmt: Stmt, env: dict[E.Var, int]) -> None:
        match stmt:
            case Seq(stmts):
                for s in stmts:
                    self.run(s, env)
            case For():
                for i in range(stmt.extent):
                    env[stmt.var] = i
                    self.run(stmt.body, env)
            case If():
                if self.value(stmt.cond, env):
                    self.run(stmt.body, env)
            case Allocate():
                self.memory[stmt.buffer] = np.zeros(stmt.buffer.shape, stmt.buffer.dtype)
                self.written[stmt.buffer] = np.zeros(stmt.buffer.shape, bool)
                self.run(stmt.body, env)
            case Store():
                index = self.index(stmt.buffer, stmt.indices, env)
                value = self.value(stmt.value, env)
                self.memory[stmt.buffer][index] = E.wrap_value(value, stmt.buffer.dtype)
                if stmt.buffer in self.written:
                    self.written[stmt.buffer][index] = True
            case TensorCall():
                self.call(stmt, env)
            case Prefetch():
                pass  # it is about time, not values

    def index(
        self, buffer: Buffer, indices: tuple[E.Expr, ...], env: dict[E.Var, int]
    ) -> tuple[int, ...]:
        index = tuple(self.value(i, env) for i in indices)
        if any(not 0 <= i < n for i, n in zip(index, buffer.shape, strict=True)):
            raise VdlaError(f"index {index} outside {buffer.name}{list(buffer.shape)}")
        return index

    def value(self, expr: E.Expr, env: dict[Any, Any]) -> Any:
        match expr:
            case E.Var():
                return env[expr]
            case E.Const(value):
                return value
            case E.Binary(op, a, b):
                if op == "&" and expr.dtype == "bool":
                    return self.value(a, env) and self.value(b, env)
                result = _OPS[op](self.value(a, env), self.value(b, env))
                return result if expr.dtype == "bool" else E.wrap_value(result, expr.dtype)
            case E.Select(cond, a, b):
                return self.value(a if self.value(cond, env) else b, env)
            case E.Cast(dtype, a):
                value = self.value(a, env)
                if a.dtype in E.FLOAT_DTYPES and dtype in E.INT_DTYPES:
                    value = _to_integer(value)
                return E.wrap_value(value, dtype)
            case E.Read(source, indices):
                if source in env:
                    return env[source][tuple(self.value(i, env) for i in indices)].item()
                index = self.index(source, indices, env)
                if source in self.written and not self.written[source][index]:
                    raise VdlaError(f"{source.name}{list(index)} is read before it is written")
                return self.memory[source][index].item()
            case E.Call("requantize" | "rescale" | "requantize_tflite", args):
                acc, multiplier, shift = (np.array(self.value(a, env), np.int32) for a in args)
                tflite = expr.name == "requantize_tflite"
                rescale = requantize_tflite if tflite else requantize_even
                return E.wrap_value(rescale(acc, multiplier, shift).item(), expr.dtype)
            case E.Call("scaled_down" | "scaled_floor", args):
                down = _scaled_down(*(self.value(a, env) for a in args))
                return down if expr.name == "scaled_down" else math.floor(down)
            case E.Call("popcount", (a,)):
                return self.value(a, env).bit_count()
            case E.Call("reinterpret", (a,), dtype):
                return np.array(self.value(a, env), a.dtype).view(dtype).item()
            case E.Call("divide" | "remainder" as name, (a, b), dtype) if dtype in E.INT_DTYPES:
                return E.wrap_value(_divide(name, self.value(a, env), self.value(b, env)), dtype)
            case E.Call(name, args, dtype) if name in _FUNCTIONS:
                values = [np.dtype(dtype).type(self.value(a, env)) for a in args]
                with np.errstate(all="ignore"):
                    return float(_FUNCTIONS[name](*values))
        raise VdlaError(f"interpreter: unknown expression {expr!r}")

    def region(
        self, region: Region, shape: tuple[int, ...], env: dict[E.Var, int], writes: bool
    ) -> np.ndarray:
        """A view of a region; a region that is read must have been written before."""
        start = [self.value(e, env) for e in region.start]
        lead = len(start) - len(shape)
        box = tuple(start[:lead]) + tuple(
            slice(s, s + n) for s, n in zip(start[lead:], shape, strict=True)
        )
        view = self.memory[region.buffer][box]
        if view.shape != shape:
            raise VdlaError(
                f"region at {start} of {shape} outside {region.buffer!r}{region.buffer.shape}"
            )
        if region.buffer in self.written:
            if writes:
                self.written[region.buffer][box] = True
            elif not self.written[region.buffer][box].all():
                raise VdlaError(f"{region.buffer!r} at {start} is read before it is written")
        return view

    def call(self, call: TensorCall, env: dict[E.Var, int]) -> None:
        behaviour = call.intrinsic.behaviour
        if call.variant == "update":
            self.region(call.output, behaviour.shape, env, writes=False)
        out = self.region(call.output, behaviour.shape, env, writes=True)
        body = behaviour.body
        if call.variant == "init":
            out[...] = body.identity.value
            return
        local: dict[Any, Any] = {
            t: self.region(r, t.shape, env, writes=False)
            for t, r in zip(call.intrinsic.operands, call.inputs, strict=True)
        }
        for index in np.ndindex(*behaviour.shape):
            point = local | {a.var: i for a, i in zip(behaviour.axes, index, strict=True)}
            if not isinstance(body, E.Reduce):
                out[index] = self.value(body, point)
                continue
            total, term = E.Var("total", behaviour.dtype), E.Var("term", behaviour.dtype)
            combined = body.combine(total, term)
            point[total] = out[index].item()
            for step in np.ndindex(*(a.extent for a in body.axes)):
                at = point | {a.var: i for a, i in zip(body.axes, step, strict=True)}
                point[total] = self.value(combined, at | {term: self.value(body.body, at)})
            out[index] = point[total]
