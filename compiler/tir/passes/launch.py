"""Loops that are bound to thread axes become launches of kernels.

::

    blockIdx.x for i.o in 3:                    launch y with blockIdx.x in 3, threadIdx.x in 4:
      threadIdx.x for i.i in 4:                   allocate s in shared
        allocate s in shared            ->        if threadIdx.x < 2:
        threadIdx.x for j in 2: s[j] = ..           s[threadIdx.x] = ..
        y[i.o*4 + i.i] = f(s)                     y[blockIdx.x*4 + threadIdx.x] = f(s)

Every nest at the top of a program is a kernel. As loops, each iteration of ``i.i`` fills an ``s``
of its own, all of them alike; as a kernel, the threads fill one ``s`` together. What a thread would
store to memory that it shares with others, although no loop of the store is bound to their axis, is
stored by the first thread alone. Guards go to the statements that they guard, so that barriers can
stand between these (``passes/barriers.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...te.errors import ScheduleError
from ...te.expr import Const, Expr, Read, Var, substitute, walk
from ...te.stage import is_thread_axis
from .. import ir as T
from ..scopes import MemoryScope


@dataclass(frozen=True)
class ThreadModel:
    """What a target's kernels have: its memories, and its thread axes, those of the grid of blocks
    and those inside a block."""

    scopes: Mapping[str, MemoryScope]
    grid: tuple[str, ...]
    block: tuple[str, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """All thread axes."""
        return (*self.grid, *self.block)

    @property
    def sharing(self) -> dict[str, tuple[str, ...]]:
        """For each memory, the thread axes whose threads share a buffer in it."""
        return {name: scope.shared_by for name, scope in self.scopes.items()}

    def is_block_shared(self, buffer: T.Buffer) -> bool:
        """Whether threads of one block see each other's stores to a buffer, and must wait for
        them."""
        scope = self.scopes[buffer.scope]
        return not scope.collective and bool(set(scope.shared_by) & set(self.block))


def launch_kernels(func: T.PrimFunc, model: ThreadModel) -> T.PrimFunc:
    """A program whose top level is launches, in order, and the buffers between them.

    Raises
    ------
    ScheduleError
        Where threads would need values of others that they cannot have, naming the buffer.
    """
    taken: dict[str, int] = {}

    def visit(stmt: T.Stmt) -> T.Stmt:
        match stmt:
            case T.Allocate(buffer=buffer) if not _is_private(buffer, model.axes, model):
                return replace(stmt, body=visit(stmt.body))
            case T.Seq(stmts):
                return T.seq([visit(s) for s in stmts])
        return _Kernel(func.name, stmt, model).launch(_kernel_name(func.name, stmt, taken))

    return replace(func, body=visit(func.body))


def _kernel_name(name: str, stmt: T.Stmt, taken: dict[str, int]) -> str:
    """The program's name, and that of the last tensor that the kernel computes."""
    stages = [s.buffer.name for s in T.walk_stmt(stmt) if isinstance(s, T.Store)]
    stages += [s.output.buffer.name for s in T.walk_stmt(stmt) if isinstance(s, T.TensorCall)]
    found = f"{name}.{stages[-1]}" if stages else name
    taken[found] = taken.get(found, 0) + 1
    return found if taken[found] == 1 else f"{found}.{taken[found]}"


def _is_private(buffer: T.Buffer, axes: Sequence[str], model: ThreadModel) -> bool:
    """Whether threads along some of these axes have copies of their own."""
    return any(axis not in model.scopes[buffer.scope].shared_by for axis in axes)


@dataclass(frozen=True)
class _Place:
    """Where a statement is: the bound loops around it, outermost first, with their axes; how many
    of them are outside each buffer's allocation; guards; what the loops' variables have become."""

    bound: tuple[tuple[str, Var], ...] = ()
    outside: dict[T.Buffer, int] = field(default_factory=dict)
    guards: tuple[Expr, ...] = ()
    values: dict[Var, Expr] = field(default_factory=dict)


class _Kernel:
    """Turns one nest into a launch."""

    def __init__(self, name: str, nest: T.Stmt, model: ThreadModel):
        self.name, self.nest, self.model = name, nest, model
        extents: dict[str, int] = {}
        for stmt in T.walk_stmt(nest):
            if isinstance(stmt, T.For) and is_thread_axis(stmt.kind):
                extents[stmt.kind] = max(extents.get(stmt.kind, 1), stmt.extent)
            elif isinstance(stmt, T.TensorCall):
                for axis in stmt.intrinsic.collective:
                    extents[axis] = max(extents.get(axis, 1), stmt.intrinsic.threads)
        self.threads = {
            axis: T.Thread(axis, Var(axis), extents[axis]) for axis in model.axes if axis in extents
        }
        unknown = [axis for axis in extents if axis not in self.threads]
        if unknown:
            raise self.error(f"expected thread axes {', '.join(model.axes)}, got {unknown[0]}")

    def error(self, what: str) -> ScheduleError:
        return ScheduleError(f"{self.name}: {what}")

    def launch(self, name: str) -> T.Launch:
        """The kernel."""
        body = self.visit(self.nest, _Place())
        grid, block = (
            tuple(self.threads[a] for a in axes if a in self.threads)
            for axes in (self.model.grid, self.model.block)
        )
        return T.Launch(name, grid, block, body)

    def visit(self, stmt: T.Stmt, place: _Place) -> T.Stmt:
        match stmt:
            case T.For() if is_thread_axis(stmt.kind):
                return self.visit(stmt.body, self._bind(stmt, place))
            case T.For() | T.Seq():
                return T.map_parts(stmt, lambda part: self.visit(part, place))
            case T.If(cond, body):
                return self.visit(body, replace(place, guards=(*place.guards, cond)))
            case T.Allocate(buffer=buffer):
                self._check_memory(buffer)
                outside = place.outside | {buffer: len(place.bound)}
                return replace(stmt, body=self.visit(stmt.body, replace(place, outside=outside)))
            case T.Prefetch():
                return T.Seq(())  # a hint, for which kernels have no instruction
            case T.Store(buffer, indices, value):
                self._check_access(buffer, place)
                for expr in (*indices, value):
                    self._check_reads(expr, place)
                guards = self._guards(buffer, (*indices, value), place)
                moved = tuple(substitute(i, place.values) for i in indices)
                return T.guarded(T.Store(buffer, moved, substitute(value, place.values)), guards)
            case T.TensorCall(_, _, output, inputs):
                for region in (output, *inputs):
                    self._check_access(region.buffer, place)
                starts = tuple(e for r in (output, *inputs) for e in r.start)
                guards = self._guards(output.buffer, starts, place, stmt.intrinsic.collective)
                call = replace(
                    stmt,
                    output=_moved(output, place.values),
                    inputs=tuple(_moved(r, place.values) for r in inputs),
                )
                return T.guarded(call, guards)
        raise self.error(f"kernels have no statement {stmt!r}")

    def _bind(self, loop: T.For, place: _Place) -> _Place:
        thread = self.threads[loop.kind]
        guards = place.guards
        if loop.extent < thread.extent:
            guards = (*guards, loop.var < loop.extent)
        bound = (*place.bound, (loop.kind, loop.var))
        return replace(
            place, bound=bound, guards=guards, values=place.values | {loop.var: thread.var}
        )

    # ---- who has which buffer ----

    def _shared_by(self, buffer: T.Buffer) -> tuple[str, ...]:
        return self.model.scopes[buffer.scope].shared_by

    def _check_memory(self, buffer: T.Buffer) -> None:
        if not _is_private(buffer, self.model.axes, self.model):
            inside = [n for n, s in self.model.scopes.items() if set(s.shared_by) < set(
                self.model.axes)]  # fmt: skip
            raise self.error(
                f"buffer {buffer.name} in {buffer.scope} is computed inside a kernel, whose blocks "
                f"cannot wait for each other; expected {' or '.join(inside)}, or compute_root"
            )

    def _check_access(self, buffer: T.Buffer, place: _Place) -> None:
        """Copies of a buffer belong to threads: a loop over these threads is outside of it."""
        inside = place.bound[place.outside.get(buffer, 0) :]
        mixed = [axis for axis, _ in inside if axis not in self._shared_by(buffer)]
        if mixed:
            raise self.error(
                f"buffer {buffer.name} in {buffer.scope} has values of several threads of "
                f"{mixed[0]}, which each have a copy of their own; expected a memory that they "
                "share, or computation inside their loop"
            )

    def _check_reads(self, expr: Expr, place: _Place) -> None:
        for node in walk(expr):
            if isinstance(node, Read):
                self._check_access(node.source, place)

    def _guards(
        self, buffer: T.Buffer, exprs: Sequence[Expr], place: _Place, together: Sequence[str] = ()
    ) -> tuple[Expr, ...]:
        """The guards around a store: those of the program, and, along each axis whose threads share
        the buffer but do not share the work, that the first thread does it, unless they do it
        ``together``. A guard of the loops outside of the buffer is not that of the threads that
        fill it together, nor is one of a loop in which another loop deals out the same threads.
        """
        count = place.outside.get(buffer, 0)
        shared = self._shared_by(buffer)
        last = dict(place.bound)
        others = {
            var
            for number, (axis, var) in enumerate(place.bound)
            if (number < count and axis in shared) or var is not last[axis]
        }
        for expr in exprs:
            found = [node for node in walk(expr) if node in others and isinstance(node, Var)]
            if found:
                raise self.error(
                    f"buffer {buffer.name} in {buffer.scope} depends on {found[0].name}, the index "
                    "of a thread for which others work, too; expected a memory of the thread's own"
                )
        working = {*together, *(axis for axis, _ in place.bound[count:])}
        idle = [t for axis, t in self.threads.items() if axis in shared and axis not in working]
        first = tuple(t.var.equal(Const(0)) for t in idle)
        mine = (g for g in place.guards if not any(node in others for node in walk(g)))
        return (*first, *(substitute(g, place.values) for g in mine))


def _moved(region: T.Region, values: Mapping[Var, Expr]) -> T.Region:
    return T.Region(region.buffer, tuple(substitute(e, values) for e in region.start))


def raise_guards(func: T.PrimFunc) -> T.PrimFunc:
    """Move guards outwards, around loops and rows of statements that have them in common, where no
    barrier is among these.

    ::

        for i: if t < 4: f(i)      ->      if t < 4: for i: f(i)
        if t < 4: f()                      if t < 4: f(); g()
        if t < 4: g()
    """
    return replace(func, body=_raised(func.body))


def _raised(stmt: T.Stmt) -> T.Stmt:
    match stmt:
        case T.Seq(stmts):
            return T.seq(_joined([_raised(s) for s in stmts]))
        case T.For() | T.Allocate():
            body = _raised(stmt.body)
            mine = stmt.var if isinstance(stmt, T.For) else None
            if isinstance(body, T.If) and not any(node is mine for node in walk(body.cond)):
                return T.If(body.cond, _raised(replace(stmt, body=body.body)))
            return replace(stmt, body=body)
    return T.map_parts(stmt, _raised)


def _joined(stmts: Sequence[T.Stmt]) -> list[T.Stmt]:
    """Neighbours with the same outermost guard under one guard."""
    found: list[T.Stmt] = []
    for stmt in stmts:
        last = found[-1] if found else None
        if isinstance(stmt, T.If) and isinstance(last, T.If) and last.cond == stmt.cond:
            found[-1] = T.If(stmt.cond, _raised(T.seq([last.body, stmt.body])))
        else:
            found.append(stmt)
    return found
