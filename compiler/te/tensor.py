"""Tensors: placeholders and computations. A tensor says what each element is, never how or when it
is computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from ...isa.errors import VdlaError
from .expr import (
    DTYPES,
    Const,
    Expr,
    Operand,
    Operators,
    Read,
    Reduce,
    Var,
    maximum,
    minimum,
    walk,
    wrap,
)


@dataclass(frozen=True, eq=False)
class IterVar(Operators):
    """A loop axis: ``var`` runs over 0 <= var < extent. ``kind`` is "data" or "reduce"."""

    var: Var
    extent: int
    kind: str = "data"

    @property
    def name(self) -> str:
        """The variable's name."""
        return self.var.name

    def __repr__(self) -> str:
        return f"{self.name}[{self.extent}]"


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array of known shape and dtype. ``body`` is None for placeholders.

    ``t[i, j]`` is an element, an expression. ``axes`` are the data axes of the computation.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[IterVar, ...] = ()
    body: Expr | None = None

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Read:
        indices = indices if isinstance(indices, tuple) else (indices,)
        if len(indices) != len(self.shape):
            raise VdlaError(
                f"tensor {self.name}: expected {len(self.shape)} indices, got {len(indices)}"
            )
        return Read(self, tuple(wrap(i) for i in indices))

    @property
    def reduce_axes(self) -> tuple[IterVar, ...]:
        """Reduction axes, empty without a reduction."""
        return self.body.axes if isinstance(self.body, Reduce) else ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors read, each once, in order of appearance."""
        if self.body is None:
            return ()
        reads = [node.source for node in walk(self.body) if isinstance(node, Read)]
        return tuple(dict.fromkeys(reads))

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)}:{self.dtype}"


def placeholder(shape: tuple[int, ...], dtype: str = "float32", name: str = "x") -> Tensor:
    """An input tensor."""
    _check(name, shape, dtype)
    return Tensor(name, tuple(shape), dtype)


def compute(shape: tuple[int, ...], rule: Callable[..., Expr], name: str = "y") -> Tensor:
    """A tensor whose element at (i, j, ...) is ``rule(i, j, ...)``; axes are named after the rule's
    parameters, or i0, i1, ... if it takes ``*indices``.
    """
    names = list(rule.__code__.co_varnames[: rule.__code__.co_argcount])
    if not names and rule.__code__.co_flags & inspect.CO_VARARGS:
        names = [f"i{dim}" for dim in range(len(shape))]
    if len(names) != len(shape):
        raise VdlaError(
            f"compute {name}: rule takes {len(names)} indices, shape {shape} has {len(shape)}"
        )
    axes = tuple(IterVar(Var(n), extent) for n, extent in zip(names, shape, strict=True))
    body = wrap(rule(*(axis.var for axis in axes)))
    _check(name, shape, body.dtype)
    if any(isinstance(node, Reduce) and node is not body for node in walk(body)):
        raise VdlaError(
            f"compute {name}: a reduction must be the whole rule; compute it as a tensor of its own"
        )
    return Tensor(name, tuple(shape), body.dtype, axes, body)


def _check(name: str, shape: tuple[int, ...], dtype: str) -> None:
    if dtype not in DTYPES:
        raise VdlaError(f"tensor {name}: expected a dtype of {', '.join(DTYPES)}, got {dtype!r}")
    if not shape or any(type(n) is not int or n < 1 for n in shape):
        raise VdlaError(f"tensor {name}: expected positive extents, got {shape!r}")


def reduce_axis(extent: int, name: str = "k") -> IterVar:
    """An axis to reduce over."""
    return IterVar(Var(name), extent, "reduce")


def _reduce(kind: str, body: Expr, axis: IterVar | tuple[IterVar, ...]) -> Reduce:
    axes = axis if isinstance(axis, tuple) else (axis,)
    return Reduce(kind, body, axes)


def sum_of(body: Expr, axis: IterVar | tuple[IterVar, ...]) -> Reduce:
    """Sum over axes."""
    return _reduce("+", body, axis)


def max_of(body: Expr, axis: IterVar | tuple[IterVar, ...]) -> Reduce:
    """Maximum over axes."""
    return _reduce("max", body, axis)


def min_of(body: Expr, axis: IterVar | tuple[IterVar, ...]) -> Reduce:
    """Minimum over axes."""
    return _reduce("min", body, axis)


def clip(x: Expr, lo: float, hi: float) -> Expr:
    """``min(max(x, lo), hi)``."""
    return minimum(maximum(x, Const(lo, x.dtype)), Const(hi, x.dtype))
