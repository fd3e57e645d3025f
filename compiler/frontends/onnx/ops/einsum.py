"""Einsum: sums of products over named axes, as matrix products of two operands after another."""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from .call import Call, Outputs, Reader

#: Stands for the axes of an ellipsis, which are letters that no equation may have.
_HIDDEN = "0123456789"


def _einsum(call: Call) -> Outputs:
    operands = call.all_operands()
    equation = call.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise call.refuse(f"expected {len(operands)} terms in the equation, got {equation!r}")
    spread = [_spelled(call, term, len(t.shape)) for term, t in zip(terms, operands, strict=True)]
    hidden = max((s for s in (_hidden(s) for s in spread)), key=len)
    if arrow:
        result = right.replace("...", hidden)
    else:
        joint = "".join(spread)
        result = hidden + "".join(
            sorted(c for c in set(joint) if c.isalpha() and joint.count(c) == 1)
        )
    if len(set(result)) != len(result) or not set(result) <= set("".join(spread)):
        raise call.refuse(f"expected axes of operands in the result, got {equation!r}")
    parts = [_diagonal(call, s, t) for s, t in zip(spread, operands, strict=True)]
    while len(parts) > 1:
        first, second, *rest = parts
        later = set(result).union(*(s for s, _ in rest))
        parts = [_product(call, first, second, later), *rest]
    letters, value = _summed(call, *parts[0], set(result))
    return call.transpose(value, tuple(letters.index(c) for c in result))


def _hidden(spelled: str) -> str:
    return "".join(c for c in spelled if c in _HIDDEN)


def _spelled(call: Call, term: str, rank: int) -> str:
    """A letter for each axis; those of an ellipsis are numbered from the last."""
    before, dots, after = term.partition("...")
    count = rank - len(before) - len(after)
    letters = before + after
    fits = 0 <= count <= (len(_HIDDEN) if dots else 0)
    if not fits or not (letters.isalpha() or not letters):
        raise call.refuse(f"term {term!r} does not fit a tensor of {rank} dimensions")
    return before + _HIDDEN[:count][::-1] + after


def _diagonal(call: Call, letters: str, value: Tensor) -> tuple[str, Tensor]:
    """The elements at which all axes with the same letter have the same index."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            a = letters.index(letter)
            b = letters.index(letter, a + 1)
            size = value.shape[a]
            if value.shape[b] != size:
                raise call.refuse(f"axis {letter!r} has sizes {size} and {value.shape[b]}")
            order = (*(i for i in range(len(letters)) if i not in (a, b)), a, b)
            moved = call.transpose(value, order)
            flat = call.reshape(moved, (*moved.shape[:-2], size * size))
            value = call.gather(flat, np.arange(size) * (size + 1), len(flat.shape) - 1)
            letters = "".join(letters[i] for i in order[:-1])
    return letters, value


def _summed(call: Call, letters: str, value: Tensor, kept: set[str]) -> tuple[str, Tensor]:
    """The sums over axes that are not kept."""
    axes = tuple(i for i, letter in enumerate(letters) if letter not in kept)
    if not axes:
        return letters, value
    return "".join(c for c in letters if c in kept), call.reduce("+", value, axes, keepdims=False)


def _product(
    call: Call, first: tuple[str, Tensor], second: tuple[str, Tensor], later: set[str]
) -> tuple[str, Tensor]:
    """Both operands as matrices: axes of both that are needed later come first, then the others of
    the first, those that are summed, and the others of the second."""
    a, x = _summed(call, *first, later | set(second[0]))
    b, y = _summed(call, *second, later | set(a))
    sizes = {c: n for s, t in ((a, x), (b, y)) for c, n in zip(s, t.shape, strict=True) if n != 1}
    for letters, tensor in ((a, x), (b, y)):
        for c, n in zip(letters, tensor.shape, strict=True):
            if n not in (1, sizes.get(c, 1)):
                raise call.refuse(f"axis {c!r} has sizes {n} and {sizes[c]}")
    both = [c for c in a if c in b]
    batch, summed = [c for c in both if c in later], [c for c in both if c not in later]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    left = _matrix(call, a, x, batch, rows, summed, sizes)
    right = _matrix(call, b, y, batch, summed, columns, sizes)
    made = call.emit(MatMul(), left, right)
    letters = [*batch, *rows, *columns]
    return "".join(letters), call.reshape(made, tuple(sizes.get(c, 1) for c in letters))


def _matrix(
    call: Call,
    letters: str,
    value: Tensor,
    batch: list[str],
    rows: list[str],
    columns: list[str],
    sizes: dict[str, int],
) -> Tensor:
    moved = call.transpose(value, tuple(letters.index(c) for c in (*batch, *rows, *columns)))
    whole = tuple(sizes.get(c, 1) for c in (*batch, *rows, *columns))
    if moved.shape != whole:
        zeros = call.value(np.zeros(whole, bool))
        moved = call.map(lambda v, _: v, moved, zeros, label="Expand")
    count = [math.prod(sizes.get(c, 1) for c in group) for group in (batch, rows, columns)]
    return call.reshape(moved, tuple(count))


READERS: dict[str, Reader] = {"Einsum": _einsum}
