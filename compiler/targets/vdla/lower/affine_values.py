"""Index expressions where the values of the outer loops are known.

A nest is emitted once for every iteration of the loops around it. Its expressions become affine
forms once; for each iteration only the known values are put in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....te.affine import affine
from ....te.expr import Binary, Const, Expr, Var, substitute

#: The values of the outer loops.
Known = Mapping[Var, int]


@dataclass(frozen=True)
class Form:
    """``constant + sum of coefficient * term``; the terms are variables, and others such as
    quotients.
    """

    constant: int
    variables: tuple[tuple[Expr, int], ...]
    others: tuple[tuple[Expr, int], ...]

    @classmethod
    def of(cls, expr: Expr) -> Form:
        """The form of an integer expression."""
        form = affine(expr)
        variables = tuple(pair for pair in form.terms if isinstance(pair[0], Var))
        others = tuple(pair for pair in form.terms if not isinstance(pair[0], Var))
        return cls(form.constant, variables, others)

    def at(self, known: Known) -> tuple[int, dict[Expr, int]]:
        """Constant and coefficients of what remains where some values are known."""
        constant, remaining = self.constant, {}
        for var, factor in self.variables:
            value = known.get(var)  # type: ignore[call-overload]
            if value is None:
                remaining[var] = factor
            else:
                constant += factor * value
        for term, factor in self.others:
            value = value_of(term, known)
            if value is not None:
                constant += factor * value
                continue
            inner = affine(with_values(term, known))
            constant += factor * inner.constant
            for var, coefficient in inner.terms:
                remaining[var] = remaining.get(var, 0) + factor * coefficient
        return constant, remaining


def slack_of(cond: Expr) -> Form | None:
    """A form that is not negative exactly where a comparison holds; None for other conditions."""
    if not (isinstance(cond, Binary) and cond.op in ("<", "<=")):
        return None
    return Form.of(Binary("-", cond.b, cond.a, "int32") - (1 if cond.op == "<" else 0))


def with_values(expr: Expr, known: Known) -> Expr:
    """An expression with the known values put in."""
    return substitute(expr, {var: Const(value) for var, value in known.items()})


def value_of(expr: Expr, known: Known) -> int | None:
    """The value of an index expression; None where it depends on what is not known, or has more
    than integer arithmetic.
    """
    match expr:
        case Const(value):
            return int(value)
        case Var():
            return known.get(expr)
        case Binary(op, left, right):
            a, b = value_of(left, known), value_of(right, known)
            if a is None or b is None:
                return None
            match op:
                case "+":
                    return a + b
                case "-":
                    return a - b
                case "*":
                    return a * b
                case "//":
                    return a // b
                case "%":
                    return a % b
    return None
