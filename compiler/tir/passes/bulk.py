"""Boxes of main memory that one thread asks for, and a copy engine brings to shared memory.

::

    for i in 64 @bulk: for k in 32:                           expect(arrived[slot], 4096 bytes)
      if t == 0:                                       ->     if t == 0: bulk_copy(s, x[b * 64, 0],
        s[i, k] = x[b*64 + i, k] if b*64 + i < m else 0                            arrived[slot])

Where a box ends beyond its tensor, the engine stores zeros; no other condition is possible. Threads
wait for a signal, which knows how many bytes are to arrive (``passes/pipeline.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from ...te.affine import affine
from ...te.errors import ScheduleError
from ...te.expr import Binary, Const, Expr, Read, Var, bits_of, conjuncts, or_zero, substitute, walk
from ...te.intrinsic import TensorIntrin
from ...te.tensor import Tensor, compute, placeholder
from ..ir import Buffer, For, If, Region, Seq, Stmt, Store, TensorCall
from ..printer import expr_text

#: The pragma of the outermost loop of a box.
BULK = ("bulk", True)
#: The dtype of a signal.
SIGNAL = "uint64"


@dataclass(frozen=True, eq=False)
class BulkIntrin(TensorIntrin):
    """The copy engine's instruction for boxes of one shape; its last operand is a signal."""

    signal: Tensor | None = None

    @property
    def operands(self) -> tuple[Tensor, ...]:
        assert self.signal is not None
        return (*self.behaviour.inputs, self.signal)

    @property
    def size_bytes(self) -> int:
        """Bytes that arrive, zeros included."""
        box = self.behaviour.inputs[0]
        return prod(box.shape) * bits_of(box.dtype) // 8


@cache
def bulk_intrin(dtype: str, box: tuple[int, ...]) -> BulkIntrin:
    """The instruction for a box, of which the last dimension and another one are larger than 1."""
    source = placeholder(box, dtype, "box")
    row = next(d for d in range(len(box) - 1) if box[d] > 1 or d == len(box) - 2)

    def rule(i: Expr, k: Expr) -> Expr:
        return source[(*(i if d == row else Const(0) for d in range(len(box) - 1)), k)]

    copied = compute((box[row], box[-1]), rule, "copied")
    return BulkIntrin(
        "bulk_copy", copied, zeros_outside=True, signal=placeholder((1,), SIGNAL, "signal")
    )


def is_bulk(stmt: Stmt) -> bool:
    """Whether a statement is a loop nest that brings a box."""
    return isinstance(stmt, For) and BULK in stmt.pragmas


def bulk_call(nest: Stmt, signal: Region, kernel: str) -> tuple[list[Expr], TensorCall]:
    """The guards around a box's instruction, and the instruction.

    Raises
    ------
    ScheduleError
        For loops that bring no box.
    """
    loops: list[For] = []
    guards: list[Expr] = []
    while not isinstance(nest, Store):
        match nest:
            case For():
                loops.append(nest)
                nest = nest.body
            case If(cond, body):
                guards.append(cond)
                nest = body
            case Seq((only,)):
                nest = only
            case _:
                raise ScheduleError(f"kernel {kernel}: expected loops around a copy, got {nest!r}")
    inside, value = _parts(nest.value)
    if not isinstance(value, Read) or len(loops) != 2:
        raise ScheduleError(
            f"kernel {kernel}: {nest.buffer.name} is filled by a copy engine; expected elements of "
            f"a tensor as they are, got {expr_text(nest.value)}"
        )
    _check_edges(inside, value, kernel)
    zero: dict[Var, Expr] = {loop.var: Const(0) for loop in loops}
    box = tuple(_extent(index, loops) for index in value.indices)
    for index, loop in zip(nest.indices[-2:], loops, strict=True):
        if affine(index).coefficients.get(loop.var) != 1:
            raise ScheduleError(f"kernel {kernel}: {nest.buffer.name} is not filled row by row")
    if prod(box) != loops[0].extent * loops[1].extent or box[-1] != loops[1].extent:
        raise ScheduleError(f"kernel {kernel}: {expr_text(value)} is no box of {value.source.name}")
    intrinsic = bulk_intrin(value.source.dtype, box)
    output = Region(nest.buffer, tuple(substitute(i, zero) for i in nest.indices))
    source = Region(value.source, tuple(substitute(i, zero) for i in value.indices))
    return guards, TensorCall(intrinsic, "full", output, (source, signal))


def _parts(value: Expr) -> tuple[list[Expr], Expr]:
    """The conditions on which an element exists, and the element."""
    exists, element = or_zero(value)
    return [] if exists is None else list(conjuncts(exists)), element


def _check_edges(inside: list[Expr], read: Read, kernel: str) -> None:
    """Raise an error unless all conditions say that the element is within its tensor."""
    buffer = read.source
    assert isinstance(buffer, Buffer)
    for cond in inside:
        match cond:
            case Binary("<", a, b):
                pairs = zip(read.indices, buffer.shape, strict=True)
                rests = [affine(b - a - (size - index)) for index, size in pairs]
                if any(not rest.terms and not rest.constant for rest in rests):
                    continue
        raise ScheduleError(
            f"kernel {kernel}: a copy engine stores zeros beyond the end of {buffer.name} alone, "
            f"expected no condition {expr_text(cond)}"
        )


def _extent(index: Expr, loops: list[For]) -> int:
    """How many elements of a dimension the loops go through, side by side."""
    form = affine(index)
    moving = [(loop, form.coefficients[loop.var]) for loop in loops
              if loop.var in form.coefficients]  # fmt: skip
    hidden = any(
        not isinstance(term, Var) and any(node is loop.var for node in walk(term))
        for term, _ in form.terms
        for loop in loops
    )
    if hidden or len(moving) > 1 or any(step != 1 for _, step in moving):
        return 0
    return moving[0][0].extent if moving else 1
