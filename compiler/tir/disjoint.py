"""A proof that different threads touch different elements, by the indices alone: it takes as long
for a thousand blocks as for two.

Two threads that touch the same element have the same value in each of its indices. An index tells
the values of its parts where these cannot be mixed up:

- ``64 * block + 4 * thread + i`` with 16 threads and ``i`` below 4 tells all three, because the
  parts with a factor of 64 are multiples of it, and the others together take less than 64 values;
- ``x // 3136``, ``x // 56 % 56`` and ``x % 56``, in any dimensions, are all the digits of ``x`` and
  tell ``x``, which is a sum again.

Threads whose variables are all told differ in an index wherever they differ. Guards are needed only
where they bound a single variable: others leave fewer elements. Indices lie within their
dimensions, which ``verify.py`` proves, so that elements are the same only where all indices are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..te.expr import Binary, Const, Expr, Var, conjuncts

#: Smallest and largest value.
Range = tuple[int, int]


@dataclass(frozen=True)
class Digits:
    """Digits of a sum: ``of // low``, or where there is a ``high``, ``of % high // low``."""

    of: Sum
    low: int
    high: int | None


Term = Var | Digits


@dataclass(frozen=True)
class Sum:
    """``constant`` and terms, each with its factor."""

    constant: int
    terms: frozenset[tuple[Term, int]] = frozenset()

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        """This sum and ``factor`` times another one."""
        merged = dict(self.terms)
        for term, its in other.terms:
            merged[term] = merged.get(term, 0) + its * factor
        kept = frozenset((term, its) for term, its in merged.items() if its)
        return Sum(self.constant + other.constant * factor, kept)


@dataclass(frozen=True)
class Touched:
    """The elements that a statement touches: from ``indices`` on as many as ``box`` says, for all
    values of the variables in ``extents``, where ``facts`` hold."""

    indices: tuple[Expr, ...]
    box: tuple[int, ...]
    extents: Mapping[Var, int]
    facts: tuple[Expr, ...]


def are_disjoint(touched: Sequence[Touched], threads: Iterable[Var], same: Iterable[Var]) -> bool:
    """Whether threads that differ in a variable of ``threads`` certainly touch no element in
    common, while those of ``same`` have one value for both. False says nothing.
    """
    ranges = _ranges(touched)
    sums = _Sums(ranges)
    for dimension in zip(*(zip(t.indices, t.box, strict=True) for t in touched), strict=True):
        found = [(sums.of(index), count) for index, count in dimension]
        known = [(form, count) for form, count in found if form is not None]
        if len(known) < len(found):
            return False
        sums.add(known)
    told = sums.told_with({*same, *(v for v, (low, high) in ranges.items() if low >= high)})
    return told.issuperset(threads)


def _ranges(touched: Sequence[Touched]) -> dict[Var, Range]:
    """Values that each variable takes in any of the statements that have it."""
    ranges: dict[Var, Range] = {}
    for statement in touched:
        bounds = {var: (0, extent - 1) for var, extent in statement.extents.items()}
        for fact in (part for whole in statement.facts for part in conjuncts(whole)):
            match fact:
                case Binary("<", Var() as var, Const(int(end))):
                    bounds[var] = bounds[var][0], min(bounds[var][1], end - 1)
                case Binary("==", Var() as var, Const(int(value))):
                    bounds[var] = max(bounds[var][0], value), min(bounds[var][1], value)
        for var, (low, high) in bounds.items():
            other = ranges.get(var, (low, high))
            ranges[var] = min(low, other[0]), max(high, other[1])
    return ranges


class _Sums:
    """Sums whose values are the same for two threads, with what is known of them. Each has, beside
    its terms, a part that differs between statements: its ``slack`` is how far at most."""

    def __init__(self, ranges: Mapping[Var, Range]):
        self.ranges = ranges
        self.found: list[tuple[dict[Term, int], int]] = []

    # ---- indices as sums ----

    def of(self, index: Expr) -> Sum | None:
        """An index as a sum; None where it is none."""
        match index:
            case Var() if index in self.ranges:
                return Sum(0, frozenset({(index, 1)}))
            case Const(int(value)):
                return Sum(value)
            case Binary("+" | "-", a, b):
                left, right = self.of(a), self.of(b)
                if left is not None and right is not None:
                    return left.plus(right, 1 if index.op == "+" else -1)
            case Binary("*", a, Const(int(factor))) | Binary("*", Const(int(factor)), a):
                inner = self.of(a)
                return None if inner is None else Sum(0).plus(inner, factor)
            case Binary("//" | "%", a, Const(int(divisor))) if divisor > 0:
                inner = self.of(a)
                divided = self.quotient if index.op == "//" else self.remainder
                return None if inner is None else divided(inner, divisor)
        return None

    def quotient(self, dividend: Sum, divisor: int) -> Sum:
        """``dividend // divisor``."""
        whole, rest = _divided(dividend, divisor)
        low, high = self.find_range(rest)
        if low // divisor == high // divisor:
            return whole.plus(Sum(low // divisor))
        match _only_term(rest):
            case Digits(of, first, None):
                digits = Digits(of, first * divisor, None)
            case Digits(of, first, int(end)) if end // first % divisor == 0:
                digits = Digits(of, first * divisor, end)
            case _:
                digits = Digits(rest, divisor, None)
        return whole.plus(Sum(0, frozenset({(digits, 1)})))

    def remainder(self, dividend: Sum, divisor: int) -> Sum:
        """``dividend % divisor``."""
        _, rest = _divided(dividend, divisor)
        low, high = self.find_range(rest)
        if low // divisor == high // divisor:
            return rest.plus(Sum(-(low // divisor * divisor)))
        match _only_term(rest):
            case Digits(of, first, end) if end is None or end // first % divisor == 0:
                digits = Digits(of, first, first * divisor)
            case _:
                digits = Digits(rest, 1, divisor)
        return Sum(0, frozenset({(digits, 1)}))

    def find_range(self, form: Sum) -> Range:
        """The smallest and the largest value that a sum may have."""
        low = high = form.constant
        for term, factor in form.terms:
            ends = sorted(end * factor for end in self.range_of_term(term))
            low, high = low + ends[0], high + ends[1]
        return low, high

    def range_of_term(self, term: Term) -> Range:
        if isinstance(term, Var):
            return self.ranges[term]
        if term.high is not None:
            return 0, term.high // term.low - 1
        low, high = self.find_range(term.of)
        return low // term.low, high // term.low

    # ---- what their values tell ----

    def add(self, forms: Sequence[tuple[Sum, int]]) -> None:
        """Add what one index is in each statement, with how many elements it takes from there."""
        common = frozenset.intersection(*(form.terms for form, _ in forms))
        others = [self.find_range(Sum(f.constant, f.terms - common)) for f, _ in forms]
        highest = max(high + n - 1 for (_, high), (_, n) in zip(others, forms, strict=True))
        self.found.append((dict(common), highest - min(low for low, _ in others)))

    def told_with(self, known: set[Var]) -> set[Term]:
        """All terms that are the same for two threads, where the ``known`` variables are."""
        told: set[Term] = set(known)
        while True:
            before = len(told)
            for terms, slack in self.found:
                unknown = {t: f for t, f in terms.items() if not _is_told(t, told)}
                told |= self.parts(unknown, slack)
            if len(told) == before:
                return told
            for form in {t.of for t in told if isinstance(t, Digits)}:
                if _all_digits(form, told):
                    self.found.append((dict(form.terms), 0))

    def parts(self, terms: Mapping[Term, int], slack: int) -> set[Term]:
        """The terms that the value of a sum tells: the multiples of a number can be told from the
        rest of it where this takes fewer values than the number."""
        for factor in sorted({abs(f) for f in terms.values()}):
            upper = {t: f for t, f in terms.items() if f % factor == 0}
            lower = {t: f for t, f in terms.items() if t not in upper}
            if self.width(lower) + slack < factor:
                if len(upper) == 1:
                    return {*upper, *self.parts(lower, slack)}
                if lower or slack:
                    return self.parts(upper, 0) | self.parts(lower, slack)
        return set()

    def width(self, terms: Mapping[Term, int]) -> int:
        """The difference between the largest and the smallest value."""
        low, high = self.find_range(Sum(0, frozenset(terms.items())))
        return high - low


def _divided(dividend: Sum, divisor: int) -> tuple[Sum, Sum]:
    """What the divisor divides, divided, and what is left."""
    whole = frozenset((t, f // divisor) for t, f in dividend.terms if f % divisor == 0)
    rest = frozenset((t, f) for t, f in dividend.terms if f % divisor)
    return Sum(dividend.constant // divisor, whole), Sum(dividend.constant % divisor, rest)


def _only_term(form: Sum) -> Term | None:
    """The term that a sum is."""
    match [form.constant, *form.terms]:
        case [0, (term, 1)]:
            return term
    return None


def _is_told(term: Term, told: set[Term]) -> bool:
    if isinstance(term, Digits):
        return term in told or all(_is_told(inner, told) for inner, _ in term.of.terms)
    return term in told


def _all_digits(form: Sum, told: set[Term], at: int = 1) -> bool:
    """Whether digits that are told are all of a sum, from ``at`` on."""
    return any(
        term.high is None or _all_digits(form, told, term.high)
        for term in told
        if isinstance(term, Digits) and term.of == form and term.low == at
    )
