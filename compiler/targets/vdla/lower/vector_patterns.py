"""What the vector unit computes in one pass, recognised in expressions of loop programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from .....isa.encoding import INT8_BITS, INT8_MAX, INT8_MIN, INT32_BITS
from ....te.affine import affine, simplify_index
from ....te.expr import Binary, Call, Cast, Const, Expr, Read, Var, walk
from ....tir.ir import Buffer, Stmt, Store, walk_stmt
from ....tir.printer import expr_text
from ..expressions import lookup_difference, lookup_int8, lookup_int32

#: Post-operations of the vector unit, by the intrinsic that each one computes.
POST_OPS = {"requantize": "even", "requantize_tflite": "tflite"}
#: What the unit computes in one pass, for people who write schedules.
ONE_PASS = (
    "in one pass it computes a op b, where op is +, -, *, min, max, >> or <<, a is an element of "
    "acc, inp or tmp, and b one of tmp or par or a constant; a sum, minimum or maximum over axes; "
    "or requantize(a + bias, multiplier, shift) with par; then te.clip(value, lo, hi)"
    ".astype('int8'), with one of the bounds -128 and 127 or, after requantize, any"
)
#: Names of the vector unit's operators, by the names that expressions have for them.
VECTOR_OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "min": "min",
    "max": "max",
    ">>": "shr",
    "<<": "shl",
}
#: Operators whose results of int8 are int8.
CLOSED = ("min", "max", "shr")


@dataclass(frozen=True)
class Requantize:
    """``clamp(requantize(value + par[base], par[base+1], par[base+2]) + zero_point, lo, hi)``;
    ``post`` names the rounding.
    """

    post: str
    value: Expr
    parameters: Read
    zero_point: int
    lo: int
    hi: int


def match_requantize(value: Expr) -> Requantize | None:
    """Recognise requantisation with parameters in three consecutive entries of ``par``. In ``tmp``,
    its result is int32."""
    if isinstance(value, Cast) and value.dtype == "int32":
        value = value.a
    match value:
        case Cast("int8", Binary("min", Binary("max", inner, Const(lo)), Const(hi))):
            pass
        case _:
            return None
    zero_point = 0
    match inner:
        case Binary("+", call, Const(zero_point)):
            inner = call
    match inner:
        case Call(name, (Binary("+", acc, Read() as bias), Read() as mult, Read() as shift)) if (
            name in POST_OPS
        ):
            first, second, third = (affine(_par_row(r)) for r in (bias, mult, shift))
            same = first.terms == second.terms == third.terms
            if same and (second.constant, third.constant) == (
                first.constant + 1,
                first.constant + 2,
            ):
                return Requantize(POST_OPS[name], acc, bias, zero_point, lo, hi)
    return None


def _par_row(read: Read) -> Expr:
    """Entry index of a parameter access: everything but the channel."""
    total: Expr = Const(0)
    width = read.source.strides[-2] if len(read.source.shape) > 1 else 1
    for index, stride in zip(read.indices[:-1], read.source.strides[:-1], strict=True):
        total = total + index * (stride // width)
    return total


@dataclass(frozen=True)
class Arithmetic:
    """``op(a, b)``: the first operand is read from acc, inp or tmp, the second from par or tmp, or
    it is a constant; None where an accumulation has no second operand. Operators that look up need
    the words of a ``table`` in par. A window slides along the loop of which ``slides`` is the
    variable: ``b`` has a weight for each of its iterations, a byte each.
    """

    op: str
    a: Read
    b: Read | Const | None
    table: Buffer | None = None
    slides: Var | None = None


def match_arithmetic(value: Expr) -> Arithmetic | None:
    """One operator on two operands; a plain copy adds zero."""
    match _operand(value):
        case Read() as read:
            return Arithmetic("add", read, Const(0))
        case Binary(op, a, b) if op in VECTOR_OPERATORS:
            a, b = _operand(a), _operand(b)
            if isinstance(a, Read) and isinstance(b, Const | Read):
                return Arithmetic(VECTOR_OPERATORS[op], a, b)
    return None


def match_look_up(value: Expr) -> Arithmetic | None:
    """Recognise what :func:`~..expressions.lookup_int8` writes."""
    match value:
        case Cast("int8", Binary("min", Binary("max", shifted, Const()), Const())):
            value_bytes = 2
        case Cast("int8", shifted):
            value_bytes = 1
        case _:
            return None
    match shifted:
        case Binary(">>", Binary("<<", Read(table, (row, _)), _), Const()):
            for x in (node for node in walk(row) if isinstance(node, Read)):
                whole = lookup_int8(x, partial(_element, table), table.shape[-1], value_bytes)
                if expr_text(whole) == expr_text(value):
                    return Arithmetic("table", x, Const(0), table)
    return None


def match_difference(value: Expr) -> Arithmetic | None:
    """Recognise what :func:`~..expressions.lookup_difference` writes."""
    match value:
        case Binary(">>", Binary("<<", Read(table, (_, _)), amount), Const()):
            for node in walk(amount):
                if not (isinstance(node, Binary) and node.op == "-"):
                    continue
                a, b = _operand(node.b), _operand(node.a)
                whole = lookup_difference(node.b, node.a, partial(_element, table), table.shape[-1])
                same = expr_text(whole) == expr_text(value)
                if same and isinstance(a, Read) and isinstance(b, Read):
                    return Arithmetic("table_diff", a, b, table)
    return None


def match_value(value: Expr) -> Arithmetic | None:
    """Recognise what :func:`~..expressions.lookup_int32` writes, or that less a number."""
    match value:
        case Binary("-", looked, Const(value=number)) if found := match_value(looked):
            return replace(found, b=Const(-number))
        case Binary(">>", Binary("<<", Read(table, (row, _)), _), Const()):
            for x in (node for node in walk(row) if isinstance(node, Read)):
                for value_bytes in (1, 2):
                    whole = lookup_int32(x, partial(_element, table), table.shape[-1], value_bytes)
                    if expr_text(whole) == expr_text(value):
                        return Arithmetic("table", x, Const(0), table)
    return None


def _element(table: Buffer, *index: Expr) -> Read:
    """An element, at indices as loop programs have them."""
    return Read(table, tuple(map(simplify_index, index)))


def saturated(value: Expr) -> Expr | None:
    """What a write to ``out`` makes of a value: it saturates to int8 by itself, so that a clip to
    int8 before the cast is free, and one with a tighter bound is a minimum or a maximum. None for
    an int8 value that must wrap, which the unit cannot do. Other values are returned as they are.
    """
    match value:
        case Cast("int8", Binary("min", Binary("max", inner, Const(lo)), Const(hi))):
            if hi == INT8_MAX:
                return inner if lo == INT8_MIN else Binary("max", inner, Const(lo), "int32")
            return Binary("min", inner, Const(hi), "int32") if lo == INT8_MIN else value
    return value if value.dtype != "int8" or _fits_int8(value) else None


def _fits_int8(value: Expr) -> bool:
    """Whether an int8 value is within int8 before it is int8."""
    match value:
        case Cast("int8", inner):
            return inner.dtype == "int8"
        case Binary(op, a, b):
            return VECTOR_OPERATORS.get(op) in CLOSED and a.dtype == b.dtype == "int8"
    return True


def match_accumulation(value: Expr, buffer: Buffer) -> Arithmetic | None:
    """``buffer[..] op a``, or ``buffer[..] + a * b``: a step of a reduction into the buffer. A
    shift is none: it computes in place."""
    match value:
        case Binary("+", Read(source=source), Binary("*", a, b)) if source is buffer:
            a, b = _operand(a), _operand(b)
            if isinstance(a, Read) and isinstance(b, Read):
                return Arithmetic("mul", a, b)
            if (found := _byte(b)) and (low := _low_byte(a)) is not None:
                return Arithmetic("window", low, found[0], slides=found[1])
        case Binary("+", Read(source=source), term) if source is buffer and (
            found := match_difference(term)
        ):
            return found
        case Binary("+", Read(source=source), term) if source is buffer and (
            found := match_value(term)
        ):
            return replace(found, b=None)
        case Binary(op, Read(source=source), a) if source is buffer and op in VECTOR_OPERATORS:
            a = _operand(a)
            if isinstance(a, Read) and op != ">>":
                return Arithmetic(VECTOR_OPERATORS[op], a, None)
    return None


def _byte(value: Expr) -> tuple[Read, Var] | None:
    """Recognise what :func:`~..expressions.select_byte` writes, if a loop counts the bytes: the
    word and the loop."""
    unused = INT32_BITS - INT8_BITS
    match value:
        case Binary(">>", Binary("<<", Read() as word, amount), Const(value=shift)) if (
            shift == unused
        ):
            form = affine(amount)
            match form.terms:
                case ((Var() as var, factor),) if (form.constant, factor) == (unused, -INT8_BITS):
                    return word, var
    return None


def _low_byte(value: Expr) -> Read | None:
    """The element of which a window multiplies the lowest byte."""
    match value:
        case (Read(dtype="int8") as read) | Cast("int32", Cast("int8", Read() as read)):
            return read
    return None


def _operand(expr: Expr) -> Expr:
    """An operand without a cast to int32: the vector unit widens its operands by itself."""
    match expr:
        case Cast("int32", Read() as read) | Cast("int8", Read(dtype="int8") as read):
            return read
    return expr


def fusable_buffers(body: Stmt) -> frozenset[Buffer]:
    """Buffers in tmp that are accumulated and then read by requantisations only: one pass of the
    vector unit does both, and nothing is kept in between.
    """
    accumulated: set[Buffer] = set()
    read_otherwise: set[Buffer] = set()
    for stmt in walk_stmt(body):
        if not isinstance(stmt, Store):
            continue
        if stmt.buffer.scope == "tmp" and match_accumulation(stmt.value, stmt.buffer):
            accumulated.add(stmt.buffer)
            reads = {node.source for node in walk(stmt.value) if isinstance(node, Read)}
            read_otherwise |= reads - {stmt.buffer}
            continue
        requant = match_requantize(stmt.value)
        passed = _operand(requant.value) if requant else None
        for node in walk(stmt.value):
            if isinstance(node, Read) and node is not passed:
                read_otherwise.add(node.source)
    return frozenset(accumulated - read_otherwise)
