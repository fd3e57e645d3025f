"""The static checker of asynchronous copies: each has arrived, for all threads, where it is read.

A thread's copy is under way until the thread has waited for its group, and other threads may read
it only after a barrier behind that. The checker runs a kernel's loops, as one thread sees them, and
follows each copy of each buffer through these states. ``passes/pipeline.py`` inserts the waits; the
two share no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..te.affine import interval
from ..te.errors import ScheduleError
from ..te.expr import Expr, Read, Var, substitute, walk, wrap
from .ir import (
    Allocate,
    Barrier,
    Buffer,
    CopiesArrived,
    CopiesStarted,
    For,
    If,
    Launch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    TensorCall,
    walk_stmt,
)

#: A copy of a buffer: the buffer, and its first index where that is a number.
_Slot = tuple[Buffer, int | None]


def check_arrivals(func: PrimFunc) -> None:
    """Return if no launch of a program reads what has not arrived.

    Raises
    ------
    ScheduleError
        Naming the kernel, the buffer and what is missing.
    """
    for stmt in walk_stmt(func.body):
        if isinstance(stmt, Launch) and _is_async(stmt):
            _Arrivals(stmt.name, _buffers_filled(stmt)).run(stmt.body, {}, False)


def _is_async(stmt: Stmt) -> bool:
    return any(isinstance(s, For) and ("async", True) in s.pragmas for s in walk_stmt(stmt))


def _buffers_filled(launch: Launch) -> set[Buffer]:
    """The buffers that asynchronous copies fill."""
    loops = [s for s in walk_stmt(launch) if isinstance(s, For) and ("async", True) in s.pragmas]
    return {s.buffer for loop in loops for s in walk_stmt(loop) if isinstance(s, Store)}


@dataclass
class _Arrivals:
    """``begun`` are the copies since the last group was closed, ``groups`` the groups under way,
    oldest first, ``arrived`` what arrived since the last barrier."""

    kernel: str
    buffers: set[Buffer]
    begun: set[_Slot] = field(default_factory=set)
    groups: list[set[_Slot]] = field(default_factory=list)
    arrived: set[_Slot] = field(default_factory=set)

    def run(self, stmt: Stmt, env: Mapping[Var, int], is_copy: bool) -> None:
        match stmt:
            case Seq(stmts):
                for inner in stmts:
                    self.run(inner, env, is_copy)
            case Allocate(body=body):
                self.run(body, env, is_copy)
            case If(cond, body):
                if interval_of_condition(cond, env) is not False:
                    self.run(body, env, is_copy)
            case For():
                self.loop(stmt, env, is_copy)
            case CopiesStarted():
                self.groups.append(self.begun)
                self.begun = set()
            case CopiesArrived(but):
                count = max(0, len(self.groups) - but)
                self.arrived |= {slot for group in self.groups[:count] for slot in group}
                self.groups = self.groups[count:]
            case Barrier():
                self.arrived.clear()
            case Store(buffer, indices, value):
                for expr in (*indices, value):
                    self.reads(expr, env)
                if is_copy:
                    self.begun.add(self.slot(buffer, indices, env))
                else:
                    self.touch(buffer, indices, env)
            case TensorCall(_, _, output, inputs):
                for region in (output, *inputs):
                    self.touch(region.buffer, region.start, env)

    def loop(self, loop: For, env: Mapping[Var, int], is_copy: bool) -> None:
        """All iterations where something waits inside or which copy is touched depends on the loop;
        else one stands for all."""
        is_copy |= ("async", True) in loop.pragmas
        waits = any(
            isinstance(s, Barrier | CopiesStarted | CopiesArrived) for s in walk_stmt(loop.body)
        )
        for value in range(loop.extent if waits else 1):
            self.run(loop.body, {**env, loop.var: value} if waits else env, is_copy)

    def slot(self, buffer: Buffer, indices: tuple[Expr, ...], env: Mapping[Var, int]) -> _Slot:
        first = substitute(indices[0], {var: wrap(value) for var, value in env.items()})
        found = interval(first, {})
        return buffer, found[0] if found is not None and found[0] == found[1] else None

    def reads(self, expr: Expr, env: Mapping[Var, int]) -> None:
        for node in walk(expr):
            if isinstance(node, Read):
                self.touch(node.source, node.indices, env)

    def touch(self, buffer: Buffer, indices: tuple[Expr, ...], env: Mapping[Var, int]) -> None:
        """An access that needs what was copied."""
        if buffer not in self.buffers:
            return
        slot = self.slot(buffer, indices, env)
        under_way = [*self.begun, *(s for group in self.groups for s in group)]
        for known, what in ((under_way, "has arrived"), (self.arrived, "a barrier follows")):
            if any(_overlap(slot, other) for other in known):
                raise ScheduleError(
                    f"kernel {self.kernel}: {buffer.name} is read before its copy {what}"
                )


def _overlap(a: _Slot, b: _Slot) -> bool:
    return a[0] is b[0] and (a[1] == b[1] or None in (a[1], b[1]))


def interval_of_condition(cond: Expr, env: Mapping[Var, int]) -> bool | None:
    """What a condition is in an iteration; None where threads decide it."""
    known = substitute(cond, {var: wrap(value) for var, value in env.items()})
    value = getattr(known, "value", None)
    return value if isinstance(value, bool) else None
