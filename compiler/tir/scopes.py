"""Memories and thread axes of a target: how they are declared, and whether a loop program complies.

A schedule may name any memory (``set_scope``) and any thread axis (``bind``). Where its loop
program meets a target, :func:`check_scopes` compares both with what the target has, and
:func:`place_buffers` gives buffers their places in memories of limited size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from ...isa.errors import VdlaError
from ..te.errors import ScheduleError
from ..te.expr import Cast, Const, Expr, Read, Select, walk
from ..te.stage import is_thread_axis
from .ir import Allocate, Buffer, For, If, PrimFunc, Seq, Stmt, Store, TensorCall, walk_stmt
from .printer import expr_text

#: What a statement does with a memory. A "copy" stores elements of another buffer as they are,
#: converted, or with a constant around them; "arithmetic" is any store; an "intrinsic" is a tensor
#: instruction.
Access = Literal["copy", "arithmetic", "intrinsic"]
ANY: tuple[Access, ...] = ("copy", "arithmetic", "intrinsic")


@dataclass(frozen=True)
class MemoryScope:
    """One memory of a target.

    Attributes
    ----------
    name : what ``set_scope`` calls it
    doc : what it is for, in a few words
    entries : how many entries it has; None if buffers in it are not placed by the compiler
    entry_elements : elements of one entry; a buffer takes whole entries
    dtypes : which elements it holds; None means all
    writers, readers : which statements may write and read it; "arithmetic" includes copies
    shared_by : thread axes whose threads see one copy of a buffer; along all other axes, each
        thread has a copy of its own
    collective : whether only instructions touch it that all threads of ``shared_by`` execute
        together, so that none has to wait for another
    """

    name: str
    doc: str
    entries: int | None = None
    entry_elements: int = 1
    dtypes: tuple[str, ...] | None = None
    writers: tuple[Access, ...] = ANY
    readers: tuple[Access, ...] = ANY
    shared_by: tuple[str, ...] = ()
    collective: bool = False

    def entries_of(self, buffer: Buffer) -> int:
        """How many entries a buffer takes. Raises ScheduleError unless they are whole ones."""
        for fault in self.partial_entry(buffer):
            raise ScheduleError(fault)
        return prod(buffer.shape) // self.entry_elements

    def partial_entry(self, buffer: Buffer) -> Iterator[str]:
        """The fault of a buffer that does not take whole entries."""
        if prod(buffer.shape) % self.entry_elements:
            yield (
                f"buffer {buffer.name}{list(buffer.shape)} in {self.name}: expected whole entries "
                f"of {self.entry_elements} elements"
            )


# ---- what a target has ----


def check_scopes(
    func: PrimFunc, scopes: Mapping[str, MemoryScope], thread_axes: Collection[str] = ()
) -> None:
    """Return if a program uses only the memories and thread axes of a target, and only as allowed.

    Parameters
    ----------
    func : a sound program (``tir/verify.py``)
    scopes : the target's memories by name
    thread_axes : the names that loops may be bound to

    Raises
    ------
    ScheduleError
        Naming the function, the buffer or loop, what was expected, and what came.
    """
    for fault in _faults(func, scopes, thread_axes):
        raise ScheduleError(f"{func.name}: {fault}")


def _faults(
    func: PrimFunc, scopes: Mapping[str, MemoryScope], thread_axes: Collection[str]
) -> Iterator[str]:
    stmts = [*walk_stmt(func.body)]
    for buffer in (*func.params, *(s.buffer for s in stmts if isinstance(s, Allocate))):
        yield from _buffer_faults(buffer, scopes)
    for stmt in stmts:
        match stmt:
            case For(var, _, kind) if is_thread_axis(kind) and kind not in thread_axes:
                expected = f"one of {', '.join(thread_axes)}" if thread_axes else "no thread axis"
                yield f"loop {var.name}: expected {expected}, got {kind!r}"
            case If(cond):
                yield from _read_faults(cond, "arithmetic", scopes)
            case Store(buffer, indices, value):
                access: Access = "copy" if _is_copy(value) else "arithmetic"
                what = f"{expr_text(Read(buffer, indices))} = {expr_text(value)}"
                yield from _access_fault(buffer, "written", access, what, scopes)
                yield from _read_faults(value, access, scopes)
                for index in indices:
                    yield from _read_faults(index, "arithmetic", scopes)
            case TensorCall(intrinsic, _, output, inputs):
                yield from _access_fault(
                    output.buffer, "written", "intrinsic", intrinsic.name, scopes
                )
                for region in inputs:
                    yield from _access_fault(
                        region.buffer, "read", "intrinsic", intrinsic.name, scopes
                    )


def _buffer_faults(buffer: Buffer, scopes: Mapping[str, MemoryScope]) -> Iterator[str]:
    scope = scopes.get(buffer.scope)
    if scope is None:
        yield (
            f"buffer {buffer.name}: expected a memory of {', '.join(scopes)}, got {buffer.scope!r}"
        )
        return
    where = f"buffer {buffer.name} in {scope.name}"
    if scope.dtypes is not None and buffer.dtype not in scope.dtypes:
        yield f"{where}: expected elements of {', '.join(scope.dtypes)}, got {buffer.dtype}"
    if buffer.alignments and scope.entry_elements > 1:
        yield (
            f"{where}: expected no storage_align in a memory of whole entries; keep the buffer in "
            "another one, or leave it"
        )
    yield from scope.partial_entry(buffer)


def _access_fault(
    buffer: Buffer, what: str, access: Access, text: str, scopes: Mapping[str, MemoryScope]
) -> Iterator[str]:
    scope = scopes[buffer.scope]
    allowed = scope.writers if what == "written" else scope.readers
    if access not in allowed and not (access == "copy" and "arithmetic" in allowed):
        yield (
            f"buffer {buffer.name} in {scope.name}: expected to be {what} by "
            f"{' or '.join(allowed)}, got {access}: {text}"
        )


def _read_faults(expr: Expr, access: Access, scopes: Mapping[str, MemoryScope]) -> Iterator[str]:
    for node in walk(expr):
        if isinstance(node, Read):
            yield from _access_fault(node.source, "read", access, expr_text(expr), scopes)
            for index in node.indices:
                yield from _read_faults(index, "arithmetic", scopes)


def _is_copy(value: Expr) -> bool:
    match value:
        case Select(_, inside, Const()) | Cast(_, inside):
            return _is_copy(inside)
    return isinstance(value, Read)


# ---- places ----


def place_buffers(
    func: PrimFunc, scopes: Mapping[str, MemoryScope], unplaced: Collection[Buffer] = ()
) -> dict[Buffer, int]:
    """The first entry of every allocated buffer whose memory has a limited number of entries.

    Buffers of one memory that live at the same time follow one another. Those in ``unplaced`` take
    no entries; their first one is 0.

    Raises
    ------
    VdlaError
        For a memory that there is not, and when a memory is too small, naming the buffers.
    """
    first: dict[Buffer, int] = {}

    def visit(stmt: Stmt, live: tuple[Buffer, ...]) -> None:
        match stmt:
            case Allocate(buffer=buffer, body=body):
                if buffer.scope not in scopes:
                    raise VdlaError(
                        f"{func.name}: buffer {buffer.name}: expected a memory of the target "
                        f"({', '.join(scopes)}), got {buffer.scope!r}; name it with set_scope"
                    )
                scope = scopes[buffer.scope]
                if buffer in unplaced:
                    first[buffer] = 0
                elif scope.entries is not None:
                    beside = [b for b in live if b.scope == buffer.scope]
                    first[buffer] = sum(scope.entries_of(b) for b in beside)
                    end = first[buffer] + scope.entries_of(buffer)
                    if end > scope.entries:
                        held = ", ".join(f"{b.name}{list(b.shape)}" for b in (*beside, buffer))
                        raise VdlaError(
                            f"{func.name}: memory {scope.name} holds {scope.entries} entries, "
                            f"{held} need {end}"
                        )
                    live = (*live, buffer)
                visit(body, live)
            case For() | If():
                visit(stmt.body, live)
            case Seq(stmts):
                for inner in stmts:
                    visit(inner, live)

    visit(func.body, ())
    return first
