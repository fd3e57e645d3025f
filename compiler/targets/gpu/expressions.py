"""Expressions of kernels as text, down to the bit: integers wrap, shifts of the width or more shift
everything out, ``//`` and ``%`` floor, floats are IEEE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....isa.errors import VdlaError
from ...te import expr as E
from ...te.affine import affine, interval, is_of_loops, simplify_index
from ...tir.ir import Buffer, Launch
from ...tir.printer import expr_text
from .dialects import Dialect
from .functions import TYPES

PRECEDENCE = {"||": 1, "&&": 2, "|": 3, "&": 5, "==": 6, "<": 7, "<=": 7, "<<": 8, ">>": 8, "+": 9,
               "-": 9, "*": 10, "/": 10, "%": 10}  # fmt: skip
_TERNARY, _CAST, _ATOM = 0, 11, 12
_FUNCTIONS_OF_ARGS = ("requantize_tflite", "scaled_down", "scaled_floor")

#: A text and how strongly its outermost operator binds.
_Text = tuple[str, int]


@dataclass
class Expressions:
    """Prints the expressions of a kernel. ``ranges`` are those of the variables in scope, ``names``
    what they are called. ``contract`` and ``asynchronous`` say whether a loop around has such a
    pragma."""

    launch: Launch
    dialect: Dialect
    names: dict[object, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    ranges: dict[E.Expr, tuple[int, int]] = field(default_factory=dict)
    contract: bool = False
    asynchronous: bool = False
    #: Variables of unrolled loops.
    unrolled: set[E.Expr] = field(default_factory=set)
    #: What has been loaded at once: its text, of an element by a loop's variable.
    loaded: dict[E.Expr, tuple[str, E.Var]] = field(default_factory=dict)

    def element(self, buffer: Buffer, indices: Sequence[E.Expr]) -> str:
        place = self.index(place_in(buffer, indices))
        if buffer.swizzled:
            place = f"swizzled({place}, {buffer.swizzle_mask})"
        return f"{self.names[buffer]}[{place}]"

    def index(self, expr: E.Expr) -> str:
        """An index, which is small enough for int: terms and their coefficients."""
        form = affine(expr)
        text = ""
        for term, coefficient in form.terms:
            factor = self.inside(term, PRECEDENCE["*"])
            part = factor if abs(coefficient) == 1 else f"{factor} * {abs(coefficient)}"
            sign = "-" if coefficient < 0 else "+"
            text = f"{text} {sign} {part}" if text else (f"-{part}" if sign == "-" else part)
        if not text:
            return str(form.constant)
        if form.constant:
            text += f" {'-' if form.constant < 0 else '+'} {abs(form.constant)}"
        return text

    def inside(self, expr: E.Expr, level: int) -> str:
        """An expression, in parentheses where it binds weaker."""
        text, binds = self.value(expr)
        return text if binds >= level else f"({text})"

    def infix(self, op: str, a: E.Expr, b: E.Expr) -> _Text:
        level = PRECEDENCE[op]
        return f"{self.inside(a, level)} {op} {self.inside(b, level + 1)}", level

    def called(self, name: str, *args: E.Expr) -> _Text:
        return f"{name}({', '.join(self.value(a)[0] for a in args)})", _ATOM

    def value(self, expr: E.Expr) -> _Text:
        match expr:
            case E.Var():
                return self.names[expr], _ATOM
            case E.Const(value, dtype):
                return _constant(value, dtype)
            case E.Read() if expr in self.loaded:
                form, var = self.loaded[expr]
                return form.format(self.names[var]), _ATOM
            case E.Read(source, indices):
                return self.element(source, indices), _ATOM
            case E.Select(cond, a, b):
                chosen = self.inside(a, 1), self.inside(b, 1)
                return f"{self.inside(cond, 1)} ? {chosen[0]} : {chosen[1]}", _TERNARY
            case E.Cast(dtype, a):
                return self.cast(dtype, a)
            case E.Call(name, args):
                return self.call(expr, name, args)
            case E.Binary("+", a, E.Binary("*", b, c)) if (
                self.contract and a.dtype in E.FLOAT_DTYPES
            ):
                return self.called(f"fma_f{a.dtype[5:]}", b, c, a)
            case E.Binary(op, a, b) if a.dtype in E.FLOAT_DTYPES:
                if op in ("min", "max"):
                    return self.called(f"{op}_f{a.dtype[5:]}", a, b)
                return self.infix(op, a, b)
            case E.Binary():
                return self.integer(expr)
        raise VdlaError(f"kernel {self.launch.name}: no text for {expr_text(expr)}")

    def integer(self, expr: E.Binary) -> _Text:
        """An operation on integers or conditions, which wraps."""
        op, a, b, dtype = expr.op, expr.a, expr.b, expr.a.dtype
        if dtype == "bool":
            return self.infix({"&": "&&", "|": "||"}.get(op, op), a, b) if op in (
                "&", "|", "==", "<", "<=") else self.called(f"{op}_u8", a, b)  # fmt: skip
        kind = TYPES[dtype]
        match op:
            case "<" | "<=" | "==" | "&" | "|":
                return self.infix(op, a, b)
            case "min" | "max":
                return self.called(f"{op}_{kind}", a, b)
            case "//" | "%":
                return self.divided(expr)
            case ">>" if isinstance(b, E.Const) and 0 <= b.value < E.bits_of(dtype):
                return self.infix(op, a, b)
            case "<<" | ">>":
                return self.called(f"sh{'l' if op == '<<' else 'r'}_{kind}", a, b)
        if is_of_loops(expr) or not self.may_wrap(expr):
            return self.infix(op, a, b)
        if dtype == "uint32" or dtype == "uint64":
            return self.infix(op, a, b)
        if E.bits_of(dtype) < 32:
            text, _ = self.infix(op, a, b)
            return f"({kind})({text})", _CAST
        level = PRECEDENCE[op]
        wide = f"u{E.bits_of(dtype)}"
        left, right = (f"({wide}){self.inside(e, _CAST)}" for e in (a, b))
        return f"({kind})({left} {op} {right})", max(level, _CAST)

    def may_wrap(self, expr: E.Binary) -> bool:
        """Whether a sum or product may not fit its type."""
        if expr.dtype not in ("int32", "int64"):
            return True
        found = _values(expr, self.ranges)
        low, high = E.integer_range(expr.dtype)
        return found is None or found[0] < low or found[1] > high

    def divided(self, expr: E.Binary) -> _Text:
        kind = TYPES[expr.a.dtype]
        if is_of_loops(expr) and (plain := simplify_index(expr)) != expr:
            return self.value(plain)
        if not isinstance(expr.b, E.Const) or expr.b.value <= 0:
            raise VdlaError(
                f"kernel {self.launch.name}: operator {expr.op} expects a positive constant "
                f"divisor, got {expr_text(expr)}"
            )
        bounds = interval(expr.a, self.ranges) if is_of_loops(expr.a) else None
        if kind[0] == "u" or (bounds is not None and bounds[0] >= 0):
            return self.infix("/" if expr.op == "//" else "%", expr.a, expr.b)
        return self.called(f"floor_{'div' if expr.op == '//' else 'mod'}_{kind}", expr.a, expr.b)

    def cast(self, dtype: str, a: E.Expr) -> _Text:
        kind = TYPES[dtype]
        if dtype in E.HALF_DTYPES:
            return self.called(f"{dtype}_of", a)
        if a.dtype in E.HALF_DTYPES:
            return self.called(f"of_{a.dtype}", a)
        if a.dtype in E.FLOAT_DTYPES and dtype in E.INT_DTYPES:
            helper = "to_small" if E.clamps_to_int32(a) else "to_i64"
            text, _ = self.called(f"{helper}_f{a.dtype[5:]}", a)
            return f"({kind}){text}", _CAST
        if dtype == "bool":
            zero = E.Const(0.0 if a.dtype in E.FLOAT_DTYPES else 0, a.dtype)
            level = PRECEDENCE["=="]
            return f"{self.inside(a, level)} != {self.inside(zero, level + 1)}", level
        return f"({kind}){self.inside(a, _CAST)}", _CAST

    def call(self, expr: E.Call, name: str, args: tuple[E.Expr, ...]) -> _Text:
        dtype = expr.dtype
        match name:
            case "requantize" | "rescale":
                text, binds = self.called("requantize", *args)
                return (f"(i32){text}", _CAST) if dtype == "int32" else (text, binds)
            case _ if name in _FUNCTIONS_OF_ARGS:
                return self.called(name, *args)
            case "popcount":
                text, _ = self.called(f"popcount_{max(32, E.bits_of(dtype))}", *args)
                return f"({TYPES[dtype]}){text}", _CAST
            case "reinterpret":
                return self.called(f"reinterpret_{TYPES[dtype]}", *args)
            case "divide" | "remainder" if dtype in E.INT_DTYPES:
                return self.called(f"{name}_{TYPES[dtype]}", *args)
        named = {"round": "rint", "remainder": "fmod"}.get(name, name)
        return self.called(f"{named}_f{dtype[5:]}", *args)


def place_in(buffer: Buffer, indices: Sequence[E.Expr]) -> E.Expr:
    """Where an element is in a buffer that is not swizzled."""
    total: E.Expr = E.Const(0)
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = total + narrow(index) * stride
    return total


def narrow(index: E.Expr) -> E.Expr:
    """An index in int32: indices lie within their buffers."""
    return index if index.dtype == "int32" else E.Cast("int32", index)


def _constant(value: Any, dtype: str) -> _Text:
    if dtype == "bool":
        return ("1" if value else "0"), _ATOM
    if dtype in E.HALF_DTYPES:
        return f"0x{np.dtype(dtype).type(value).view(np.uint16):04x}", _ATOM
    if dtype not in E.FLOAT_DTYPES:
        return _integer_constant(int(value), dtype)
    number = np.dtype(dtype).type(value)
    if not np.isfinite(number):
        if dtype == "float64":
            text = "0.0 / 0.0" if np.isnan(number) else f"{'-' if number < 0 else ''}1.0 / 0.0"
            return f"({text})", _ATOM
        return f"float_of(0x{number.view(np.uint32):08x}u)", _ATOM
    text = repr(float(number)) if dtype == "float64" else f"{np.format_float_positional(number)}f"
    if dtype == "float32" and not 1e-4 <= abs(number) < 1e7 and number:
        text = f"{np.format_float_scientific(number)}f"
    return text, (_ATOM if not text.startswith("-") else PRECEDENCE["*"])


def _integer_constant(value: int, dtype: str) -> _Text:
    bits = E.bits_of(dtype)
    if value == -(1 << (bits - 1)) and bits >= 32:
        return f"(({TYPES[dtype]})((u{bits})1 << {bits - 1}))", _ATOM
    if bits == 64:
        text = f"({TYPES[dtype]}){abs(value)}" + ("u" if dtype[0] == "u" else "")
        if not -(2**31) < value < 2**31:
            text = f"(({TYPES[dtype]})0x{abs(value):x}ul)"
        return (text, _CAST) if value >= 0 else (f"-{text}", PRECEDENCE["*"])
    text = f"{value}u" if dtype == "uint32" else str(value)
    return text, (_ATOM if value >= 0 else PRECEDENCE["*"])


def _values(expr: E.Expr, ranges: Mapping[E.Expr, tuple[int, int]]) -> tuple[int, int] | None:
    """Bounds of an integer expression: of loops, and of products and sums of narrow elements."""
    if is_of_loops(expr):
        return interval(expr, ranges)
    match expr:
        case E.Const(value):
            return int(value), int(value)
        case E.Cast(_, a) if a.dtype in E.INT_DTYPES and expr.dtype in E.INT_DTYPES:
            found = _values(a, ranges) or E.integer_range(a.dtype)
            low, high = E.integer_range(expr.dtype)
            return found if low <= found[0] and found[1] <= high else None
        case E.Read(source) if source.dtype in E.INT_DTYPES:
            return E.integer_range(source.dtype)
        case E.Binary("+" | "-" | "*" as op, a, b):
            left, right = _values(a, ranges), _values(b, ranges)
            if left is None or right is None:
                return None
            if op == "+":
                return left[0] + right[0], left[1] + right[1]
            if op == "-":
                return left[0] - right[1], left[1] - right[0]
            ends = [x * y for x in left for y in right]
            return min(ends), max(ends)
        case E.Select(_, a, b):
            left, right = _values(a, ranges), _values(b, ranges)
            if left is None or right is None:
                return None
            return min(left[0], right[0]), max(left[1], right[1])
    return None
