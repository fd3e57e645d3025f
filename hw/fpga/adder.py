"""Summands and their additions, as synthesis builds them on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from amaranth.hdl import Module, Value


@dataclass(frozen=True, eq=False)
class Term:
    """A summand, ``value * 2**shift``.

    Attributes
    ----------
    value : signed
    gate : one bit: where it is 0, so is the term
    negative : it is subtracted
    """

    value: Value
    shift: int = 0
    gate: Value | None = None
    negative: bool = False

    @property
    def gated(self) -> Value:
        """The value, or 0."""
        if self.gate is None:
            return self.value
        return (self.value & self.gate.replicate(len(self.value)))[: len(self.value)].as_signed()


#: Two summands to one, as ``add`` does.
Adder = Callable[[Module, Term, Term], Term]


def add(_m: Module, a: Term, b: Term) -> Term:
    """The sum of two terms, with the operators of the language."""
    a, b = sorted((a, b), key=lambda term: term.shift)
    upper = b.gated.shift_left(b.shift - a.shift)
    total = a.gated - upper if a.negative != b.negative else a.gated + upper
    return Term(total, a.shift, negative=a.negative)


def add_pairs(m: Module, adder: Adder, terms: list[Term]) -> list[Term]:
    """Half as many summands: neighbours are added."""
    return [
        adder(m, *pair) if len(pair) == 2 else pair[0]
        for pair in (terms[k : k + 2] for k in range(0, len(terms), 2))
    ]


def add_all(m: Module, adder: Adder, terms: Iterable[Term]) -> Term:
    """One term, from a balanced tree."""
    terms = list(terms)
    while len(terms) > 1:
        terms = add_pairs(m, adder, terms)
    return terms[0]
