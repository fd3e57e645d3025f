"""Nodes of loop programs. Scalars are expressions of ``te.expr``; buffers live in memory scopes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..te.expr import Expr, Read, Var, bits_of, rewrite, substitute, walk


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of a shape (in elements), row-major, in a memory of the target (``tir/scopes.py``).

    ``alignments`` are (dimension from the end, factor, offset): the dimension's stride is padded to
    ``offset`` elements more than a multiple of ``factor``. ``swizzled``: pieces of 16 bytes are in
    another order within each row, which differs from row to row (:meth:`swizzle_mask`).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"
    alignments: tuple[tuple[int, int, int], ...] = ()
    swizzled: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of the last dimension."""
        return self.shape[-1] * bits_of(self.dtype) // 8

    @property
    def swizzle_mask(self) -> int:
        """Element i is at place ``i ^ (i >> 3 & mask)``, which is i itself where the mask is 0.

        In bytes the mask is 16, 48 or 112 for rows of 32, 64 or 128: bits of the row's number
        change the number of a piece of 16 bytes within the row.
        """
        return (self.row_bytes - 16) * 8 // bits_of(self.dtype) if self.swizzled else 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, per dimension."""
        aligned = {dim: (factor, offset) for dim, factor, offset in self.alignments}
        strides = [1]
        for extent in reversed(self.shape[1:]):
            factor, offset = aligned.get(-len(strides) - 1, (1, 0))
            stride = strides[0] * extent
            strides.insert(0, stride + (offset - stride) % factor)
        return tuple(strides)

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements, side by side."""
        return math.prod(self.shape) * bits_of(self.dtype) // 8

    def __repr__(self) -> str:
        return self.name


class Stmt:
    """Base of statements."""


@dataclass(frozen=True, eq=False)
class For(Stmt):
    """``for var in 0..extent``; its kind is one of ``te.stage.LOOP_KINDS`` or the name of a thread
    axis; ``pragmas`` are hints for code generators.
    """

    var: Var
    extent: int
    kind: str
    body: Stmt
    pragmas: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Store(Stmt):
    """``buffer[indices] = value``."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, eq=False)
class Prefetch(Stmt):
    """Load the cache line of ``buffer[indices]`` into the cache; outside the buffer do nothing."""

    buffer: Buffer
    indices: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class If(Stmt):
    """Execute the body where the condition holds."""

    cond: Expr
    body: Stmt


@dataclass(frozen=True, eq=False)
class Seq(Stmt):
    """Statements one after another."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Allocate(Stmt):
    """The buffer exists during the body; its contents start undefined. ``double``: iterations of
    the loop around it alternate between two copies. ``stages``, where it is not 1: in a kernel
    there are so many copies, and all but one of them are filled ahead (``passes/pipeline.py``).
    """

    buffer: Buffer
    body: Stmt
    double: bool = False
    stages: int = 1


@dataclass(frozen=True, eq=False)
class Region:
    """A box of a buffer that starts at ``start``; its extents are the intrinsic operand's, in the
    last dimensions.
    """

    buffer: Buffer
    start: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class TensorCall(Stmt):
    """A tensor intrinsic on regions. ``variant``: "init" sets the output to the reduction's neutral
    element, "update" accumulates into it, "full" computes an intrinsic without a reduction."""

    intrinsic: Any
    variant: str
    output: Region
    inputs: tuple[Region, ...]


@dataclass(frozen=True, eq=False)
class Thread:
    """A thread axis of a launch: ``var`` is a thread's index along it, ``0 <= var < extent``."""

    axis: str
    var: Var
    extent: int


@dataclass(frozen=True, eq=False)
class Launch(Stmt):
    """A kernel: every thread of every block executes ``body``, in any order.

    The blocks form a ``grid``. The threads of a ``block`` share some memories, and wait for each
    other at a :class:`Barrier`. The launch ends when all threads have ended.
    """

    name: str
    grid: tuple[Thread, ...]
    block: tuple[Thread, ...]
    body: Stmt

    @property
    def threads(self) -> tuple[Thread, ...]:
        """All thread axes."""
        return (*self.grid, *self.block)


class Mark(Stmt):
    """Base of statements without parts, about what is under way; ``words`` are its text."""

    words: ClassVar[str]


@dataclass(frozen=True, eq=False)
class Barrier(Mark):
    """A thread waits here until all threads of its block are here; then all see what any of them
    stored before.
    """

    words = "barrier"


@dataclass(frozen=True, eq=False)
class CopiesStarted(Mark):
    """The asynchronous copies that a thread has started since the last such statement form a group.
    They are the stores in loops with the pragma "async".
    """

    words = "copies started"


@dataclass(frozen=True, eq=False)
class CopiesArrived(Mark):
    """A thread waits here until all but its ``but`` latest groups of copies have arrived."""

    words = "copies arrived"

    but: int


@dataclass(frozen=True, eq=False)
class ProxyFence(Mark):
    """What a thread stored to memory before, asynchronous instructions see that any thread starts
    behind the next barrier. Such instructions are those whose intrinsic is ``asynchronous``.
    """

    words = "stores seen by products"


@dataclass(frozen=True, eq=False)
class ProductsBegin(Mark):
    """Asynchronous instructions that follow may change what the thread has in registers."""

    words = "products begin"


@dataclass(frozen=True, eq=False)
class ProductsStarted(Mark):
    """The asynchronous instructions since the last such statement form a group."""

    words = "products started"


@dataclass(frozen=True, eq=False)
class ProductsArrived(Mark):
    """A thread waits here until all but its ``but`` latest groups of asynchronous instructions have
    ended: they have read their operands, and their results are in registers."""

    words = "products arrived"

    but: int


@dataclass(frozen=True, eq=False)
class SignalsReady(Stmt):
    """The signals of a buffer begin their first phase; threads may use them behind the next
    barrier."""

    buffer: Buffer


@dataclass(frozen=True, eq=False)
class SignalExpects(Stmt):
    """A phase of signal ``slot`` ends when so many bytes have arrived."""

    buffer: Buffer
    slot: Expr
    size_bytes: int


@dataclass(frozen=True, eq=False)
class SignalArrived(Stmt):
    """A thread waits here for the end of the phase of signal ``slot`` whose number is even, where
    ``parity`` is 0, or odd, where it is 1."""

    buffer: Buffer
    slot: Expr
    parity: Expr


@dataclass(frozen=True, eq=False)
class PrimFunc:
    """A loop program over its parameter buffers (inputs first, outputs last)."""

    name: str
    params: tuple[Buffer, ...]
    body: Stmt


def substatements(stmt: Stmt) -> tuple[Stmt, ...]:
    """Direct children."""
    match stmt:
        case For() | If() | Allocate() | Launch():
            return (stmt.body,)
        case Seq(stmts):
            return stmts
    return ()


def map_parts(stmt: Stmt, visit: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with ``visit`` of its direct children."""
    match stmt:
        case For() | If() | Allocate() | Launch():
            return replace(stmt, body=visit(stmt.body))
        case Seq(stmts):
            return seq([visit(s) for s in stmts])
    return stmt


def map_launches(func: PrimFunc, body: Callable[[Launch], Stmt]) -> PrimFunc:
    """The program with other bodies of its launches."""

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Launch):
            return replace(stmt, body=body(stmt))
        return map_parts(stmt, visit)

    return replace(func, body=visit(func.body))


def guarded(stmt: Stmt, guards: Iterable[Expr]) -> Stmt:
    """The statement where all guards hold, the first one outermost; each stands there once."""
    for guard in reversed([*dict.fromkeys(guards)]):
        stmt = If(guard, stmt)
    return stmt


def hoist(stmt: Stmt) -> tuple[list[Allocate], list[Stmt]]:
    """What is allocated around or between the statements of a sequence, and the statements."""
    match stmt:
        case Allocate(body=body):
            inner, rest = hoist(body)
            return [stmt, *inner], rest
        case Seq(stmts):
            parts = [hoist(s) for s in stmts]
            return [a for found, _ in parts for a in found], [s for _, r in parts for s in r]
    return [], [stmt]


def allocated(allocations: Sequence[Allocate], body: Stmt) -> Stmt:
    """The statement with buffers around it, the first one outermost."""
    for outer in reversed(allocations):
        body = replace(outer, body=body)
    return body


def walk_stmt(stmt: Stmt):
    """Every statement, outermost first."""
    yield stmt
    for child in substatements(stmt):
        yield from walk_stmt(child)


def stored_buffers(stmt: Stmt) -> set[Buffer]:
    """The buffers that a statement writes."""
    written: set[Buffer] = set()
    for inner in walk_stmt(stmt):
        match inner:
            case Store(buffer):
                written.add(buffer)
            case TensorCall():
                written.add(inner.output.buffer)
    return written


def find_reads(stmt: Stmt) -> list[Read]:
    """Every element that the expressions of a statement read."""
    found: list[Read] = []

    def on_expr(expr: Expr) -> Expr:
        found.extend(node for node in walk(expr) if isinstance(node, Read))
        return expr

    map_stmt(stmt, on_expr)
    return found


def used_buffers(stmt: Stmt) -> list[Buffer]:
    """The buffers that a statement reads and writes, each once."""
    found: dict[Buffer, None] = {}
    for inner in walk_stmt(stmt):
        match inner:
            case Store(buffer, indices, value):
                found[buffer] = None
                for expr in (value, *indices):
                    found |= dict.fromkeys(n.source for n in walk(expr) if isinstance(n, Read))
            case TensorCall(output=output, inputs=inputs):
                found |= dict.fromkeys(region.buffer for region in (output, *inputs))
    return list(found)


def written_params(func: PrimFunc) -> tuple[Buffer, ...]:
    """The parameters that a loop program writes: its results."""
    written = stored_buffers(func.body)
    return tuple(buffer for buffer in func.params if buffer in written)


def seq(stmts: list[Stmt]) -> Stmt:
    """A sequence, flattened; a single statement is returned as it is."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def index_copies(stmt: Stmt, copies: Mapping[Buffer, Buffer], index: Expr) -> Stmt:
    """Let every access to a buffer of ``copies`` go to copy ``index`` in the leading dimension of
    the buffer that it maps to.
    """

    def on_expr(expr: Expr) -> Expr:
        def leaf(node: Expr) -> Expr | None:
            if isinstance(node, Read) and node.source in copies:
                return Read(copies[node.source], (index, *(on_expr(i) for i in node.indices)))
            return None

        return rewrite(expr, leaf)

    def region(r: Region) -> Region:
        return Region(copies[r.buffer], (index, *r.start)) if r.buffer in copies else r

    def on_stmt(node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer, indices, value) if buffer in copies:
                moved = (index, *(on_expr(i) for i in indices))
                return Store(copies[buffer], moved, on_expr(value))
            case Prefetch(buffer, indices) if buffer in copies:
                return Prefetch(copies[buffer], (index, *(on_expr(i) for i in indices)))
            case TensorCall():
                inputs = tuple(region(r) for r in node.inputs)
                return replace(node, output=region(node.output), inputs=inputs)
        return None

    return map_stmt(stmt, on_expr, on_stmt=on_stmt)


def renamed(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """A copy of a statement with loops of its own, and these values of outer variables."""

    def on_stmt(inner: Stmt) -> Stmt | None:
        if not isinstance(inner, For):
            return None
        fresh = Var(inner.var.name)
        return replace(inner, var=fresh, body=renamed(inner.body, {**values, inner.var: fresh}))

    return map_stmt(stmt, lambda expr: substitute(expr, values), on_stmt=on_stmt)


def map_stmt(
    stmt: Stmt,
    on_expr: Callable[[Expr], Expr],
    on_buffer: Callable[[Buffer], Buffer] = lambda buffer: buffer,
    on_stmt: Callable[[Stmt], Stmt | None] = lambda stmt: None,
) -> Stmt:
    """Rebuild a statement: ``on_stmt`` may replace a node before its children are visited,
    ``on_expr`` maps every expression, ``on_buffer`` every buffer that is stored to, allocated or
    passed (``on_expr`` maps reads)."""
    replaced = on_stmt(stmt)
    if replaced is not None:
        return replaced

    def region(r: Region) -> Region:
        return Region(on_buffer(r.buffer), tuple(on_expr(e) for e in r.start))

    def again(s: Stmt) -> Stmt:
        return map_stmt(s, on_expr, on_buffer, on_stmt)

    if isinstance(stmt, Mark):
        return stmt
    match stmt:
        case For() | Launch() | Seq():
            return map_parts(stmt, again)
        case If():
            return If(on_expr(stmt.cond), again(stmt.body))
        case Allocate():
            return replace(stmt, buffer=on_buffer(stmt.buffer), body=again(stmt.body))
        case Store():
            indices = tuple(on_expr(i) for i in stmt.indices)
            return Store(on_buffer(stmt.buffer), indices, on_expr(stmt.value))
        case SignalsReady():
            return SignalsReady(on_buffer(stmt.buffer))
        case SignalExpects():
            return replace(stmt, buffer=on_buffer(stmt.buffer), slot=on_expr(stmt.slot))
        case SignalArrived(buffer, slot, parity):
            return SignalArrived(on_buffer(buffer), on_expr(slot), on_expr(parity))
        case Prefetch():
            return Prefetch(on_buffer(stmt.buffer), tuple(on_expr(i) for i in stmt.indices))
        case TensorCall():
            inputs = tuple(region(r) for r in stmt.inputs)
            return replace(stmt, output=region(stmt.output), inputs=inputs)
    raise TypeError(f"statement expected, got {stmt!r}")
