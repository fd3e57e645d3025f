"""The expression language: frozen nodes and overloaded operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import count
from typing import Any, TypeVar, dataclass_transform

import ml_dtypes  # noqa: F401 - NumPy's bfloat16
import numpy as np

from ...isa.errors import VdlaError

SIGNED_DTYPES = ("int8", "int16", "int32", "int64")
UNSIGNED_DTYPES = ("uint8", "uint16", "uint32", "uint64")
INT_DTYPES = (*SIGNED_DTYPES, *UNSIGNED_DTYPES)
FLOAT_DTYPES = ("float32", "float64")
#: Floats of two bytes, which are only stored, and converted from and to float32.
HALF_DTYPES = ("float16", "bfloat16")
DTYPES = ("bool", *INT_DTYPES, *FLOAT_DTYPES, *HALF_DTYPES)


def bits_of(dtype: str) -> int:
    """Width of an integer or float dtype."""
    return int(dtype.lstrip("buintfloa"))


#: Functions of scalars that :class:`Call` may name: dtypes of arguments and result. ``requantize``
#: is acc * multiplier / 2**shift rounded half to even, exact in 64 bits; ``rescale`` is the same
#: where the result fits int32, which its user must know; ``requantize_tflite`` is
#: ``isa.vector_ops.requantize_tflite``; ``scaled_down`` is float32(x) * factor + offset rounded
#: down to float32, once, and ``scaled_floor`` the floor of that, which must fit int32; ``round``
#: rounds half to even; ``divide`` truncates towards zero, and gives 0 where the divisor is 0;
#: ``remainder`` has the dividend's sign (of integers it is 0 where the divisor is 0); ``popcount``
#: is the number of bits that are 1; ``reinterpret`` has the same bits as a float or an integer; the
#: others are C's.
INTRINSICS: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "requantize": ((("int32",) * 3, "int32"), (("int32",) * 3, "int64")),
    "rescale": ((("int32",) * 3, "int32"),),
    "requantize_tflite": ((("int32",) * 3, "int64"),),
    "scaled_down": ((("int32", "float32", "float32"), "float32"),),
    "scaled_floor": ((("int32", "float32", "float32"), "int32"),),
    "divide": tuple(((dtype,) * 2, dtype) for dtype in INT_DTYPES),
    "remainder": tuple(((dtype,) * 2, dtype) for dtype in (*INT_DTYPES, *FLOAT_DTYPES)),
    "popcount": tuple(((dtype,), dtype) for dtype in UNSIGNED_DTYPES),
    "reinterpret": tuple(
        ((a,), b)
        for pair in (("float32", "int32"), ("float64", "int64"))
        for a, b in (pair, pair[::-1])
    ),
    "pow": tuple(((dtype,) * 2, dtype) for dtype in FLOAT_DTYPES),
}
#: Functions of one float, whose results have the same dtype.
FLOAT_FUNCTIONS = (
    "round", "floor", "ceil", "trunc", "sqrt", "exp", "log", "log1p", "tanh", "erf", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
)  # fmt: skip
INTRINSICS |= {n: tuple(((d,), d) for d in FLOAT_DTYPES) for n in FLOAT_FUNCTIONS}

_ids = count()
#: Whether a rule is called now, whose author means values by ``==``, and not nodes.
_in_rule: ContextVar[bool] = ContextVar("_in_rule", default=False)


_Node = TypeVar("_Node")


@contextmanager
def rule_called() -> Iterator[None]:
    """While a rule is called, ``==`` of expressions is refused: it compares nodes."""
    token = _in_rule.set(True)
    try:
        yield
    finally:
        _in_rule.reset(token)


def is_in_rule() -> bool:
    """Whether a rule is called now."""
    return _in_rule.get()


def _refuse_in_rule() -> None:
    if _in_rule.get():
        raise VdlaError(
            "expected no == of expressions in a rule: it would compare the expressions, not their "
            "values; use .equal(...)"
        )


class Operators:
    """Python's operators, which build expressions; the base of nodes, and of loop axes, which stand
    for their variables.

    Python cannot know the truth of an expression while the program is written. So ``if``, ``and``,
    ``or``, ``not``, ``in``, and Python's ``min`` and ``max`` are refused.
    """

    def __bool__(self) -> bool:
        raise VdlaError(
            "expected no Python condition on an expression, whose value is not known yet: use "
            "te.select for if, te.minimum and te.maximum for min and max, & and | for and and or"
        )

    def __eq__(self, other: object) -> bool:
        _refuse_in_rule()
        return self is other

    __hash__ = object.__hash__

    def __add__(self, other: Operand) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("*", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return binary("//", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return binary("%", self, other)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("/", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("/", other, self)

    def __rshift__(self, other: Operand) -> Expr:
        return binary(">>", self, other)

    def __lshift__(self, other: Operand) -> Expr:
        return binary("<<", self, other)

    def __and__(self, other: Operand) -> Expr:
        return binary("&", self, other)

    def __or__(self, other: Operand) -> Expr:
        return binary("|", self, other)

    def __rand__(self, other: Operand) -> Expr:
        return binary("&", other, self)

    def __ror__(self, other: Operand) -> Expr:
        return binary("|", other, self)

    def __lt__(self, other: Operand) -> Expr:
        return binary("<", self, other)

    def __le__(self, other: Operand) -> Expr:
        return binary("<=", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return binary("<", other, self)

    def __ge__(self, other: Operand) -> Expr:
        return binary("<=", other, self)


class Expr(Operators):
    """Base of all expression nodes; every node has a ``dtype``."""

    dtype: str

    def equal(self, other: Operand) -> Expr:
        """Elementwise equality (``==`` compares nodes)."""
        return binary("==", self, other)

    def astype(self, dtype: str) -> Expr:
        """Convert; integers wrap."""
        return cast(dtype, self)


@dataclass_transform(frozen_default=True)
def _node(cls: type[_Node]) -> type[_Node]:
    """A frozen dataclass; nodes with equal fields are equal."""
    cls = dataclass(frozen=True)(cls)
    compare = cls.__eq__

    def __eq__(self: Any, other: object) -> bool:
        _refuse_in_rule()
        return compare(self, other)

    cls.__eq__ = __eq__  # type: ignore[method-assign]
    return cls


Operand = Operators | int | float
_Result = TypeVar("_Result")


def once(function: Callable[[Expr], _Result]) -> Callable[[Expr], _Result]:
    """Compute a function, which is never None, once for each expression: its node keeps the
    result."""
    name = f"_{function.__name__}"

    @wraps(function)
    def computed(expr: Expr) -> _Result:
        found = expr.__dict__.get(name)
        if found is None:
            found = expr.__dict__[name] = function(expr)
        return found

    return computed


@dataclass(frozen=True, eq=False)
class Var(Expr):
    """A variable. The object itself is its identity; the name is for people."""

    name: str
    dtype: str = "int32"
    uid: int = field(default_factory=lambda: next(_ids))

    def __repr__(self) -> str:
        return self.name


@_node
class Const(Expr):
    """A literal."""

    value: Any
    dtype: str = "int32"


@_node
class Binary(Expr):
    """``a op b``; op is one of + - * / // % >> << & | < <= == min max. Comparisons and & | of bools
    are bool.
    """

    op: str
    a: Expr
    b: Expr
    dtype: str


@_node
class Select(Expr):
    """``a`` where ``cond`` holds, else ``b``; the operand not chosen is not evaluated."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.a.dtype


@_node
class Cast(Expr):
    """Conversion. Integers wrap; floats become integers by rounding half to even, saturating to
    int64 (0 for not-a-number) and wrapping.
    """

    dtype: str
    a: Expr


@_node
class Call(Expr):
    """A named intrinsic function of scalars (see ``INTRINSICS``)."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


@_node
class Read(Expr):
    """An element of a tensor or buffer: anything with ``name``, ``shape`` and ``dtype``."""

    source: Any
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.source.dtype


@dataclass(frozen=True, eq=False)
class Reducer:
    """A function that combines two values of a dtype. It is commutative and associative, so that a
    reduction may be cut and reordered; combining a value with ``identity(dtype)`` does not change
    it.
    """

    name: str
    combine: Callable[[Expr, Expr], Expr]
    identity: Callable[[str], Const]


@_node
class Reduce(Expr):
    """``body`` combined over reduction axes, by + * min max or a :class:`Reducer`, starting from
    ``init`` or else the neutral element. It must be the whole rule of a ``compute``.
    """

    kind: str | Reducer
    body: Expr
    axes: tuple[Any, ...]
    init: Expr | None = None

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.body.dtype

    def combine(self, total: Expr, value: Expr) -> Expr:
        """The total with one more value."""
        if isinstance(self.kind, Reducer):
            return self.kind.combine(total, value)
        return binary(self.kind, total, value)

    @property
    def start(self) -> Expr:
        """The value that the reduction starts from."""
        return self.identity if self.init is None else self.init

    @property
    def identity(self) -> Const:
        """Neutral element."""
        if isinstance(self.kind, Reducer):
            return self.kind.identity(self.dtype)
        if self.kind in "+*":
            return Const(int(self.kind == "*"), self.dtype)
        if self.dtype in FLOAT_DTYPES:
            return Const(float("inf") if self.kind == "min" else float("-inf"), self.dtype)
        low, high = integer_range(self.dtype)
        return Const(high if self.kind == "min" else low, self.dtype)


@dataclass(frozen=True, eq=False)
class Extern(Expr):
    """A whole tensor, computed by a loop program of its own; only :func:`~.tensor.extern` makes it.
    ``reads`` has an element of each input; ``rule`` makes the statement from the inputs' buffers
    and the tensor's.
    """

    reads: tuple[Expr, ...]
    rule: Callable[[list[Any], Any], Any]
    dtype: str


def integer_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value."""
    bits = bits_of(dtype)
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


# ---- construction ------------------------------------------------------------------------------


def wrap(value: Operand, dtype: str = "int32") -> Expr:
    """A Python number as a node, a loop axis as its variable; a node is returned as it is.

    Raises VdlaError for True and False, which are what ``==`` gives.
    """
    value = getattr(value, "var", value)
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool):
        raise VdlaError(
            f"expected an expression or a number, got {value}: == compares expressions, not"
            " values; use .equal(...), or te.Const(True, 'bool')"
        )
    is_float = isinstance(value, float) and dtype not in FLOAT_DTYPES
    return Const(value, "float32" if is_float else dtype)


def wrap_value(value: Any, dtype: str) -> Any:
    """A Python number as a value of ``dtype``: integers wrap, floats round."""
    if dtype == "bool":
        return bool(value)
    if dtype in FLOAT_DTYPES or dtype in HALF_DTYPES:
        return float(np.dtype(dtype).type(value))
    low, high = integer_range(dtype)
    return (int(value) - low) % (high - low + 1) + low


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod, "<": operator.lt, "<=": operator.le, "==": operator.eq, "&": operator.and_,
    "|": operator.or_, "min": min, "max": max, ">>": operator.rshift, "<<": operator.lshift,
}  # fmt: skip

#: Dtypes whose constants are folded.
_FOLDED = frozenset((*INT_DTYPES, "bool"))


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """``a op b``, constants folded and neutral elements dropped; operands must agree in dtype."""
    if not (isinstance(a, Expr) and isinstance(b, Expr)):
        a, b = getattr(a, "var", a), getattr(b, "var", b)
        dtype = a.dtype if isinstance(a, Expr) else b.dtype  # type: ignore[union-attr]
        a, b = wrap(a, dtype), wrap(b, dtype)
    if a.dtype != b.dtype:
        raise VdlaError(
            f"operator {op}: operands of one dtype expected, got {a.dtype} and {b.dtype}; cast one"
        )
    if op in ("//", "%") and isinstance(b, Const) and b.value == 0:
        raise VdlaError(f"operator {op}: the divisor of {a!r} is 0")
    if op == "/" and a.dtype not in FLOAT_DTYPES:
        raise VdlaError(f"operator /: float operands expected, got {a.dtype}; use // for integers")
    dtype = "bool" if op in ("<", "<=", "==") else a.dtype
    if not (isinstance(a, Const) or isinstance(b, Const)):
        return Binary(op, a, b, dtype)
    if isinstance(a, Const) and isinstance(b, Const) and op in _FOLD and a.dtype in _FOLDED:
        return Const(wrap_value(_FOLD[op](a.value, b.value), dtype), dtype)
    match op, a, b:
        case ("+", Const(0), _) | ("*", Const(1), _):
            return b
        case ("+" | "-" | ">>" | "<<", _, Const(0)) | ("*" | "//", _, Const(1)):
            return a
        case ("*", Const(0), _) | ("*", _, Const(0)) | ("%", _, Const(1)) if (
            dtype not in FLOAT_DTYPES
        ):
            return Const(0, dtype)
        case ("&", Const(True), _) | ("|", Const(False), _):
            return b
        case ("&", _, Const(True)) | ("|", _, Const(False)):
            return a
    return Binary(op, a, b, dtype)


def cast(dtype: str, a: Operand) -> Expr:
    """Convert to ``dtype``."""
    a = wrap(a)
    if a.dtype == dtype:
        return a
    if isinstance(a, Const) and dtype in INT_DTYPES and a.dtype in INT_DTYPES:
        return Const(wrap_value(a.value, dtype), dtype)
    return Cast(dtype, a)


def popcount(a: Expr) -> Expr:
    """Number of bits of an unsigned integer that are 1, in its dtype."""
    return Call("popcount", (a,), a.dtype)


def reinterpret(a: Expr, dtype: str) -> Expr:
    """The bits of a float as an integer as wide, or those of an integer as a float."""
    return Call("reinterpret", (a,), dtype)


def minimum(a: Operand, b: Operand) -> Expr:
    """Smaller of two."""
    return binary("min", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """Larger of two."""
    return binary("max", a, b)


def all_of(*conditions: Expr) -> Expr:
    """Conjunction."""
    result: Expr = Const(True, "bool")
    for condition in conditions:
        result = binary("&", result, condition)
    return result


def select(cond: Expr, a: Operand, b: Operand) -> Expr:
    """``a`` if ``cond`` else ``b``."""
    cond = wrap(cond)
    if isinstance(cond, Const):
        return wrap(a) if cond.value else wrap(b)
    a = wrap(a, b.dtype) if isinstance(b, Expr) else wrap(a)
    return Select(cond, a, wrap(b, a.dtype))


# ---- traversal ---------------------------------------------------------------------------------


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct subexpressions."""
    match expr:
        case Binary(_, a, b):
            return (a, b)
        case Select(cond, a, b):
            return (cond, a, b)
        case Cast(_, a):
            return (a,)
        case Call(_, args):
            return args
        case Read(_, indices):
            return indices
        case Reduce(_, body, _, init):
            return (body,) if init is None else (init, body)
        case Extern(reads):
            return reads
    return ()


def walk(expr: Expr):
    """Every node, outermost first."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(children(node))


def clamps_to_int32(expr: Expr) -> bool:
    """Whether an expression clamps a float to values within int32."""
    match expr:
        case Binary("min", Binary("max", _, Const(low)), Const(high)):
            return -(2**30) <= low and high <= 2**30
    return False


def or_zero(value: Expr) -> tuple[Expr | None, Expr]:
    """The condition on which a value is another one and not 0, and the other one; None and the
    value where there is no such condition."""
    match value:
        case Select(cond, a, Const(b)) if not b:
            return cond, a
    return None, value


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """The conditions that a condition is the conjunction of."""
    match cond:
        case Binary("&", a, b, "bool"):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case _:
            yield cond


def rewrite(expr: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up, simplifying; ``leaf`` may replace any node (its children are rewritten
    first).
    """
    match expr:
        case Binary(op, a, b):
            new = binary(op, rewrite(a, leaf), rewrite(b, leaf))
        case Select(cond, a, b):
            new = select(rewrite(cond, leaf), rewrite(a, leaf), rewrite(b, leaf))
        case Cast(dtype, a):
            new = cast(dtype, rewrite(a, leaf))
        case Call(name, args, dtype):
            new = Call(name, tuple(rewrite(a, leaf) for a in args), dtype)
        case Read(source, indices):
            new = Read(source, tuple(rewrite(i, leaf) for i in indices))
        case Reduce():
            init = None if expr.init is None else rewrite(expr.init, leaf)
            new = replace(expr, body=rewrite(expr.body, leaf), init=init)
        case Extern():
            new = replace(expr, reads=tuple(rewrite(r, leaf) for r in expr.reads))
        case _:
            new = expr
    found = leaf(new)
    return new if found is None else found


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Replace variables."""
    if not values:
        return expr
    return rewrite(expr, lambda e: values.get(e) if isinstance(e, Var) else None)
