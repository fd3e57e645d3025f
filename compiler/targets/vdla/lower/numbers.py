"""Loop programs that differ only in numbers, such as factors and zero points, have the same
instructions except for a few fields. The instructions are made once. Each number carries the slot
of its constant, so that the fields it ends in are known, and the linker writes another one there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from .....isa.encoding import INT8_MAX, INT8_MIN
from ....te.expr import Binary, Call, Cast, Const, Expr, Select, Var
from ....tir.ir import PrimFunc, Stmt, Store, map_stmt
from ....tir.printer import print_func

#: Numbers that decide which instructions there are: neutral elements, and bounds of int8.
_DECIDING = frozenset((INT8_MIN, -1, 0, 1, INT8_MAX))


class Number(int):
    """The value of a constant of a loop program; ``slot`` numbers the constants. Arithmetic gives
    plain integers, which have no slot."""

    slot: int

    def __new__(cls, value: int, slot: int) -> Number:
        number = super().__new__(cls, value)
        number.slot = slot
        return number


def with_slots(func: PrimFunc) -> PrimFunc:
    """The loop program with a :class:`Number` for each constant that statements compute with, but
    for those of indices and conditions."""
    slots = count()

    def mark(const: Const) -> Expr:
        if const.dtype == "bool" or const.value in _DECIDING:
            return const
        return Const(Number(const.value, next(slots)), const.dtype)

    return map_constants(func, mark)


def abstract(func: PrimFunc) -> tuple[str, dict[int, int]]:
    """A text that is equal for loop programs that are equal but for their names and numbers, and
    have equal numbers at the same places; and the value of each number by its slot."""
    numbers: dict[int, int] = {}
    firsts: dict[int, int] = {}

    def hide(const: Const) -> Expr:
        if not isinstance(const.value, Number):
            return const
        slot, value = const.value.slot, int(const.value)
        numbers[slot] = value
        first = firsts.setdefault(value, slot)
        return Var(f"{const.dtype}#{slot}#{first}", const.dtype)

    return print_func(replace(map_constants(func, hide), name="")), numbers


def map_constants(func: PrimFunc, change: Callable[[Const], Expr]) -> PrimFunc:
    """Change each constant that statements compute with."""

    def on_value(value: Expr) -> Expr:
        match value:
            case Const(int()):
                return change(value)
            case Binary(op, a, b, dtype):
                return Binary(op, on_value(a), on_value(b), dtype)
            case Cast(dtype, a):
                return Cast(dtype, on_value(a))
            case Select(cond, a, b):
                return Select(cond, on_value(a), on_value(b))
            case Call(name, args, dtype):
                return Call(name, tuple(map(on_value, args)), dtype)
        return value

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store):
            return Store(stmt.buffer, stmt.indices, on_value(stmt.value))
        return None

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt))
