"""Functions of float32 that targets compute by themselves: :data:`FUNCTIONS`, polynomials written
once for all of them.

A processor's library computes one element at a time, and each GPU has functions of its own. These
are products and sums that are rounded once (fused multiply-adds), so they can be computed for whole
vectors, and every target gets the same bits.

==========  ================================  ======================================
function    largest error                     how
==========  ================================  ======================================
``exp``     1.5 units in the last place       a polynomial, times a power of two
``tanh``    3                                 a polynomial below 0.625, else ``exp``
``erf``     1.5                               a polynomial below 1, else ``exp``
==========  ================================  ======================================

Besides operators and comparisons they call ``round``; ``fma(a, b, c)``, which is ``a * b + c``,
rounded once; and ``scale(x, n)``, which is ``x * 2**n`` of a whole number ``n``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

from ...te.expr import Call, Const, Expr, Var, maximum, select


@dataclass(frozen=True)
class FloatFunction:
    """A function of ``x``: the values of ``steps`` one after another, then the result."""

    name: str
    x: Var
    steps: tuple[tuple[Var, Expr], ...]
    result: Expr


def _call(name: str, *args: Expr) -> Expr:
    return Call(name, args, "float32")


def _number(value: float) -> Expr:
    return Const(value, "float32")


def _polynomial(x: Expr, *factors: float) -> Expr:
    """Factors of the highest power first."""
    first, *others = map(_number, factors)
    return reduce(lambda sum_, factor: _call("fma", sum_, x, factor), others, first)


def _exp() -> FloatFunction:
    x, n, s, r, p, y = (Var(name, "float32") for name in "xnsrpy")
    steps = (
        (n, _call("round", x * math.log2(math.e))),
        (s, _call("fma", n, _number(-0.693145752), x)),  # log(2) in two parts
        (r, _call("fma", n, _number(-1.42860677e-06), s)),
        (p, _polynomial(r, 1.98756912e-04, 1.39819994e-03, 8.33345205e-03, 4.16657962e-02,
                        1.66666657e-01, 0.5)),
        (y, _call("scale", _call("fma", p, r * r, r) + 1.0, n)),
    )  # fmt: skip
    beyond = select(_number(89.0) < x, _number(math.inf), y)
    return FloatFunction("exp", x, steps, select(x < _number(-104.0), _number(0.0), beyond))


def _tanh() -> FloatFunction:
    x, a, s, p, outer = (Var(name, "float32") for name in ("x", "a", "s", "p", "outer"))
    steps = (
        (a, maximum(x, _number(0.0) - x)),
        (s, x * x),
        (p, _polynomial(s, -5.70498872745e-03, 2.06390887954e-02, -5.37397155531e-02,
                        1.33314422036e-01, -3.33332819422e-01)),
        (outer, _number(1.0) - _number(2.0) / (_call("exp", 2.0 * a) + 1.0)),
    )  # fmt: skip
    # A sum of x and a product would lose the sign of -0.
    inner = x * _call("fma", p, s, _number(1.0))
    return FloatFunction("tanh", x, steps, _odd(x, a, 0.625, inner, outer))


def _erf() -> FloatFunction:
    names = ("x", "a", "s", "p", "q", "r", "outer")
    x, a, s, p, q, r, outer = (Var(name, "float32") for name in names)
    steps = (
        (a, maximum(x, _number(0.0) - x)),
        (s, x * x),
        (p, _polynomial(s, 7.88912002e-05, -8.02084163e-04, 5.18953567e-03, -2.68544443e-02,
                        1.12836003e-01, -3.76126260e-01, 1.28379166e-01)),
        (q, _polynomial(a, 1.85575438e-04, -2.93962122e-03, 2.18053740e-02, -1.03037484e-01,
                        -6.38225555e-01, -1.12704015e+00, -3.53699288e-04)),
        (r, _number(1.0) - _call("exp", q)),  # q is the logarithm of 1 - erf(a)
        (outer, select(_number(4.0) < a, _number(1.0), r)),
    )  # fmt: skip
    return FloatFunction("erf", x, steps, _odd(x, a, 1.0, _call("fma", p, x, x), outer))


def _odd(x: Expr, a: Expr, middle: float, inner: Expr, outer: Expr) -> Expr:
    """``inner`` where ``a``, which is ``|x|``, is below ``middle``, else ``outer`` with the sign of
    ``x``, which may be not-a-number."""
    signed = select(x < _number(0.0), _number(0.0) - outer, outer)
    return select(a < _number(middle), inner, select(x.equal(x), signed, x))


#: The functions by name, each after those that it calls.
FUNCTIONS = {function.name: function for function in (_exp(), _tanh(), _erf())}
