"""Operators on elements, of any rank; operands are broadcast by NumPy's rules.

A tensor expression has at least one dimension, so a scalar is a tensor of shape (1,) whose graph
shape is (). Functions that must tell the two apart take the graph's shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...isa.errors import VdlaError
from ..te.expr import Const, Expr, maximum, minimum
from ..te.tensor import Tensor, compute

Shape = tuple[int, ...]
Index = tuple[Expr, ...]


def over(shape: Shape, rule: Callable[[Index], Expr], name: str = "out") -> Tensor:
    """The tensor of a graph shape whose element at ``index`` is ``rule(index)``; a scalar's index
    is empty.
    """
    if not shape:
        return compute((1,), lambda _: rule(()), name)
    return compute(shape, lambda *index: rule(index), name)


def element(x: Tensor, shape: Shape, index: Index) -> Expr:
    """The element of ``x``, of graph shape ``shape``, that broadcasting reads at ``index``."""
    if not shape:
        return x[0]
    own = index[len(index) - len(shape) :]
    return x[tuple(Const(0) if n == 1 else i for i, n in zip(own, shape, strict=True))]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape by NumPy's rules; sizes may be 0.

    Raises
    ------
    VdlaError
        When two sizes differ and neither is 1.
    """
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wanted = {size for size in sizes if size != 1}
        if len(wanted) > 1:
            raise VdlaError(f"broadcast: expected shapes that broadcast, got {list(shapes)}")
        result.append(wanted.pop() if wanted else 1)
    return tuple(result)


def merged_axes(*shapes: Shape) -> list[Shape]:
    """The shapes of tensors that are broadcast together, merged into as few axes as possible:
    neighbouring axes become one where each tensor either has both or is broadcast along both.

    ``(8, 4, 5, 6), (4, 1, 1)`` become ``(8, 4, 30), (1, 4, 1)``.
    """
    result = broadcast_shapes(*shapes)
    padded = [(1,) * (len(result) - len(shape)) + shape for shape in shapes]
    groups: list[list[int]] = []
    before: list[bool] = []
    for axis, size in enumerate(result):
        present = [shape[axis] == size for shape in padded]
        if size == 1:
            continue
        if groups and present == before:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        before = present
    return [tuple(math.prod(shape[a] for a in group) for group in groups) for shape in padded]


def elementwise(
    rule: Callable[..., Expr], inputs: Sequence[Tensor], shapes: Sequence[Shape] | None = None
) -> Tensor:
    """``rule`` of the elements of all inputs, which are broadcast. ``shapes`` are the inputs' graph
    shapes; they are needed where some inputs are scalars.
    """
    shapes = [x.shape for x in inputs] if shapes is None else shapes

    def at(index: Index) -> Expr:
        return rule(*(element(x, s, index) for x, s in zip(inputs, shapes, strict=True)))

    return over(broadcast_shapes(*shapes), at)


def cast(x: Tensor, dtype: str, name: str = "cast") -> Tensor:
    """``x`` converted to ``dtype``; integers wrap."""
    return compute(x.shape, lambda *index: x[index].astype(dtype), name)


def clip_between(x: Expr, lo: float, hi: float) -> Expr:
    """``min(max(x, lo), hi)``, without the bounds that are infinite."""
    if lo != -math.inf:
        x = maximum(x, Const(lo, x.dtype))
    return minimum(x, Const(hi, x.dtype)) if hi != math.inf else x
