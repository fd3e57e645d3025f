"""Tensors: placeholders and computations. A tensor says what each element is, never how or when it
is computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...isa.errors import VdlaError
from .expr import (
    DTYPES,
    Const,
    Expr,
    Extern,
    Operand,
    Operators,
    Read,
    Reduce,
    Reducer,
    Var,
    is_in_rule,
    maximum,
    minimum,
    rule_called,
    select,
    walk,
    wrap,
)


@dataclass(frozen=True, eq=False)
class IterVar(Operators):
    """A loop axis: ``var`` runs over 0 <= var < extent. ``kind`` is "data" or "reduce"."""

    var: Var
    extent: int
    kind: str = "data"

    def __bool__(self) -> bool:
        """True for schedules, where an axis may be None; in a rule it stands for its variable."""
        return not is_in_rule() or super().__bool__()

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
    ``state`` is set for a :func:`scan`: the placeholder by which it reads its own rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[IterVar, ...] = ()
    body: Expr | None = None
    state: Tensor | None = None

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
    with rule_called():
        body = wrap(rule(*(axis.var for axis in axes)))
    _check(name, shape, body.dtype)
    if any(isinstance(node, Reduce) and node is not body for node in walk(body)):
        raise VdlaError(
            f"compute {name}: a reduction must be the whole rule; compute it as a tensor of its own"
        )
    return Tensor(name, tuple(shape), body.dtype, axes, body)


def extern(
    shape: tuple[int, ...],
    inputs: Sequence[Tensor],
    rule: Callable[[list[Any], Any], Any],
    dtype: str = "float32",
    name: str = "extern",
) -> Tensor:
    """A tensor that the caller's own loop program computes as a whole, at the root.

    Parameters
    ----------
    inputs : the tensors that it reads
    rule : makes the statement (``tir.ir``) from a list of the inputs' buffers and the buffer that
        it writes to, with loop variables of its own; the verifier checks it as all others

    Examples
    --------
    >>> def reverse(inputs, output):
    ...     i = Var("i")
    ...     return For(i, 4, "serial", Store(output, (i,), Read(inputs[0], (3 - i,))))
    >>> y = extern((4,), [x], reverse, "int8")
    """
    _check(name, shape, dtype)
    axes = tuple(IterVar(Var(f"i{dim}"), n) for dim, n in enumerate(shape))
    reads = tuple(Read(t, (Const(0),) * len(t.shape)) for t in inputs)
    return Tensor(name, tuple(shape), dtype, axes, Extern(reads, rule, dtype))


def scan(init: Tensor, update: Tensor, state: Tensor, name: str = "scan") -> Tensor:
    """A tensor whose rows are computed one after the other, each from earlier rows.

    ::

        for t in T:      (``update``, and all that reads ``state``, is computed inside this loop)
          scan[t, ...] = update[t, ...] if t >= steps else init[t, ...]

    Parameters
    ----------
    init : [steps, ...], the first rows
    update : [T, ...], each row computed from earlier rows, which it reads as ``state[t - 1, ...]``
    state : [T, ...], a placeholder that stands for the result
    """
    steps, count = init.shape[0], state.shape[0]
    kinds = {(t.dtype, t.shape[1:]) for t in (init, update, state)}
    if len(kinds) > 1 or update.shape[0] != count or not steps < count or state.body is not None:
        raise VdlaError(
            f"scan {name}: expected first rows {init!r} of a placeholder {state!r} and rows "
            f"{update!r} for all of it, alike but for the number of first rows"
        )
    time = IterVar(Var("t"), count)
    axes = (time, *(IterVar(Var(f"i{dim}"), n) for dim, n in enumerate(state.shape[1:])))
    element = tuple(axis.var for axis in axes)
    first = (minimum(time.var, steps - 1) if steps > 1 else Const(0), *element[1:])
    body = select(time.var >= steps, Read(update, element), Read(init, first))
    return Tensor(name, state.shape, state.dtype, axes, body, state)


def _check(name: str, shape: tuple[int, ...], dtype: str) -> None:
    if dtype not in DTYPES:
        raise VdlaError(f"tensor {name}: expected a dtype of {', '.join(DTYPES)}, got {dtype!r}")
    if not shape or any(type(n) is not int or n < 1 for n in shape):
        raise VdlaError(f"tensor {name}: expected positive extents, got {shape!r}")


def reduce_axis(extent: int, name: str = "k") -> IterVar:
    """An axis to reduce over."""
    return IterVar(Var(name), extent, "reduce")


def _reduce(
    kind: str | Reducer, body: Expr, axis: IterVar | tuple[IterVar, ...], init: Expr | None = None
) -> Reduce:
    axes = axis if isinstance(axis, tuple) else (axis,)
    return Reduce(kind, body, axes, init)


def comm_reducer(
    combine: Callable[[Expr, Expr], Expr], identity: Callable[[str], Const], name: str = "reduce"
) -> Callable[[Expr, IterVar | tuple[IterVar, ...]], Reduce]:
    """A reduction by the caller's function, as :func:`sum_of` is a reduction by +.

    Parameters
    ----------
    combine : combines two values of one dtype; it must be commutative and associative, for
        reductions are cut and reordered
    identity : gives, for a dtype, the value that changes nothing when it is combined

    Examples
    --------
    >>> either = comm_reducer(lambda a, b: a | b, lambda dtype: Const(0, dtype), "either")
    >>> y = compute((4,), lambda i: either(x[i, k], k))
    """
    reducer = Reducer(name, combine, identity)

    def reduce(body: Expr, axis: IterVar | tuple[IterVar, ...]) -> Reduce:
        found = _reduce(reducer, body, axis)
        for what, dtype in (
            ("combine", combine(body, body).dtype),
            ("identity", found.identity.dtype),
        ):
            if dtype != body.dtype:
                raise VdlaError(f"{name}: expected that {what} gives {body.dtype}, got {dtype}")
        return found

    return reduce


def sum_of(body: Expr, axis: IterVar | tuple[IterVar, ...], init: Expr | None = None) -> Reduce:
    """Sum over axes, starting from ``init``, which has the same dtype and none of the axes."""
    found = _reduce("+", body, axis, init)
    if init is not None:
        moving = [a for a in found.axes if any(node is a.var for node in walk(init))]
        if moving or init.dtype != body.dtype:
            raise VdlaError(
                f"sum: expected a first value of {body.dtype} that is the same along its axes, got "
                f"{init!r} of {init.dtype}"
            )
    return found


def max_of(body: Expr, axis: IterVar | tuple[IterVar, ...]) -> Reduce:
    """Maximum over axes."""
    return _reduce("max", body, axis)


def min_of(body: Expr, axis: IterVar | tuple[IterVar, ...]) -> Reduce:
    """Minimum over axes."""
    return _reduce("min", body, axis)


def clip(x: Expr, lo: float, hi: float) -> Expr:
    """``min(max(x, lo), hi)``."""
    return minimum(maximum(x, Const(lo, x.dtype)), Const(hi, x.dtype))
