"""The end of an operator: a bias and bounds, or requantisation."""

from __future__ import annotations

from collections.abc import Sequence

from ... import topi
from ...te.expr import Expr
from ...te.tensor import Tensor, compute, placeholder
from ..arithmetic.requant import Requant
from .base import Expression


def bounded(acc: Tensor, lo: float, hi: float, bias: Sequence[Tensor] = ()) -> Tensor:
    """``clip(acc + bias, lo, hi)``; the bias, if there is one, lies along axis 1."""

    def rule(*index: Expr) -> Expr:
        total = acc[index] + bias[0][index[1]] if bias else acc[index]
        return topi.clip_between(total, lo, hi)

    return compute(acc.shape, rule, "out")


def requantized(
    acc: Tensor, requant: Requant, inputs: Sequence[Tensor], bias: Tensor | None = None
) -> Expression:
    """The expression of an operator on ``inputs`` that requantises ``acc + bias`` to int8."""
    multiplier = placeholder(requant.multiplier.shape, "int32", "multiplier")
    shift = placeholder(requant.shift.shape, "int32", "shift")
    epilogue = (requant.zero_point, requant.lo, requant.hi, requant.rounding)
    out = topi.requantize(acc, multiplier, shift, *epilogue, bias=bias)
    values = (requant.multiplier, requant.shift)
    return Expression(out, (*inputs, multiplier, shift), values)
