"""Arithmetic on index expressions: canonical affine forms, ranges and proofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .expr import INT_DTYPES, Binary, Cast, Const, Expr, Var, binary, bits_of, cast, once, walk

#: For each integer dtype, the dtypes that hold all of its values.
_WIDER = {
    narrow: tuple(
        wide
        for wide in INT_DTYPES
        if wide == narrow
        or (bits_of(wide) > bits_of(narrow) and (wide[0] == "i" or narrow[0] == "u"))
    )
    for narrow in INT_DTYPES
}


@dataclass(frozen=True)
class Affine:
    """``constant + sum of coefficient * term``; terms are variables or opaque (// and %)
    subexpressions.
    """

    constant: int
    terms: tuple[tuple[Expr, int], ...]

    @property
    def coefficients(self) -> dict[Expr, int]:
        """Coefficient of each term."""
        return dict(self.terms)


@once
def affine(expr: Expr) -> Affine:
    """Canonical affine form of an integer expression; anything not affine becomes a term of its
    own.
    """
    constant, terms = _affine(expr)
    ordered = sorted(((t, c) for t, c in terms.items() if c), key=lambda item: _order(item[0]))
    return Affine(constant, tuple(ordered))


def _order(term: Expr) -> tuple:
    return (0, term.uid) if isinstance(term, Var) else (1, repr(term))


def _affine(expr: Expr) -> tuple[int, dict[Expr, int]]:
    match expr:
        case Const(value):
            return int(value), {}
        case Cast(dtype, a) if a.dtype in INT_DTYPES and dtype in _WIDER[a.dtype]:
            return _affine(a)
        case Binary("+" | "-" | "*") if bits_of(expr.dtype) < 32:
            return 0, {expr: 1}  # it wraps: an int8 sum is not the sum of its operands
        case Binary("+" | "-", a, b):
            sign = 1 if expr.op == "+" else -1
            (ca, ta), (cb, tb) = _affine(a), _affine(b)
            merged = dict(ta)
            for term, coefficient in tb.items():
                merged[term] = merged.get(term, 0) + sign * coefficient
            return _recombine(ca + sign * cb, merged)
        case Binary("*", a, b):
            (ca, ta), (cb, tb) = _affine(a), _affine(b)
            if not tb:
                return ca * cb, {t: c * cb for t, c in ta.items()}
            if not ta:
                return ca * cb, {t: c * ca for t, c in tb.items()}
        case Binary("//" | "%", a, Const(d)) if d > 0 and is_of_loops(expr):
            return _divided(expr.op, affine(a), d)
        case Binary("//" | "%" | "min" | "max", a, b) if expr.dtype == "int32":
            # Equal subexpressions must be equal terms, in whatever order they were written.
            same = binary(expr.op, simplify_index(a), simplify_index(b))
            return (int(same.value), {}) if isinstance(same, Const) else (0, {same: 1})
    return 0, {expr: 1}


def _divided(op: str, form: Affine, divisor: int) -> tuple[int, dict[Expr, int]]:
    """Take out the terms that the divisor divides: ``(4 * i + j) // 4`` is ``i + j // 4``."""
    whole = {term: c // divisor for term, c in form.terms if c % divisor == 0}
    rest = tuple((term, c) for term, c in form.terms if term not in whole)
    inside = binary(op, from_affine(Affine(form.constant % divisor, rest)), divisor)
    constant, terms = (form.constant // divisor, whole) if op == "//" else (0, {})
    if isinstance(inside, Const):
        return constant + int(inside.value), terms
    return constant, terms | {inside: 1 + terms.get(inside, 0)}


@once
def is_of_loops(expr: Expr) -> bool:
    """Whether an int32 expression has only loop variables and constants, so that nothing wraps."""
    return expr.dtype == "int32" and all(isinstance(e, Var | Const | Binary) for e in walk(expr))


def _recombine(constant: int, terms: dict[Expr, int]) -> tuple[int, dict[Expr, int]]:
    """Turn ``e // d * d + e % d``, which a split and a fuse of the same loops leave, into ``e``."""
    for term, coefficient in list(terms.items()):
        match term:
            case Binary("%", e, Const(d)):
                quotient = Binary("//", e, term.b, e.dtype)
                if coefficient and terms.get(quotient) == coefficient * d:
                    del terms[term], terms[quotient]
                    c, whole = _affine(e)
                    constant += coefficient * c
                    for inner, k in whole.items():
                        terms[inner] = terms.get(inner, 0) + coefficient * k
    return constant, terms


def from_affine(form: Affine) -> Expr:
    """Expression of an affine form, in int32 if that holds all terms, else in int64."""
    narrow = all("int32" in _WIDER[term.dtype] for term, _ in form.terms)
    dtype = "int32" if narrow else "int64"
    result: Expr = Const(0, dtype)
    for term, coefficient in form.terms:
        result = binary("+", result, binary("*", cast(dtype, term), coefficient))
    return binary("+", result, form.constant)


def simplify_index(expr: Expr) -> Expr:
    """Canonical form of an index expression."""
    return from_affine(affine(expr))


def interval(expr: Expr, ranges: Mapping[Expr, tuple[int, int]]) -> tuple[int, int] | None:
    """Smallest and largest value when each variable lies in its inclusive range; None if a variable
    has none.
    """
    form = affine(expr)
    low = high = form.constant
    for term, coefficient in form.terms:
        bounds = _term_interval(term, ranges)
        if bounds is None:
            return None
        ends = (coefficient * bounds[0], coefficient * bounds[1])
        low, high = low + min(ends), high + max(ends)
    return low, high


def _term_interval(term: Expr, ranges: Mapping[Expr, tuple[int, int]]) -> tuple[int, int] | None:
    if term in ranges:
        return ranges[term]
    match term:
        case Binary("//", a, Const(d)) if d > 0:
            inner = interval(a, ranges)
            return inner and (inner[0] // d, inner[1] // d)
        case Binary("%", a, Const(d)) if d > 0:
            inner = interval(a, ranges)
            if inner and inner[0] // d == inner[1] // d:
                return inner[0] % d, inner[1] % d
            return (0, d - 1)
        case Binary("min" | "max", a, b):
            ia, ib = interval(a, ranges), interval(b, ranges)
            pick = min if term.op == "min" else max
            return ia and ib and (pick(ia[0], ib[0]), pick(ia[1], ib[1]))
    return None


def prove(cond: Expr, ranges: Mapping[Expr, tuple[int, int]]) -> bool | None:
    """Whether a condition holds for all values in range (True) or for none (False); None if it
    depends on the value, or is unknown.
    """
    match cond:
        case Const(value):
            return bool(value)
        case Binary("&", a, b):
            pa, pb = prove(a, ranges), prove(b, ranges)
            return False if pa is False or pb is False else (True if pa and pb else None)
        case Binary("<" | "<=", a, b):
            bounds = interval(binary("-", b, a), ranges)
            if bounds is None:
                return None
            least = 1 if cond.op == "<" else 0
            return True if bounds[0] >= least else (False if bounds[1] < least else None)
    return None
