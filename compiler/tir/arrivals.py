"""The static checker of what is under way: asynchronous copies, and asynchronous products.

A thread's copy is under way until the thread has waited for its group, and other threads may read
it only after a barrier behind that. An asynchronous product reads its operands, and changes its
sums, until its threads have waited for its group; it sees what threads stored only behind a fence
of theirs and a barrier. The checker runs a kernel's loops, as one thread sees them, and follows
each copy of each buffer through these states. ``passes/pipeline.py`` and
``passes/asynchronous.py`` insert the waits and fences; they share no code with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..te.affine import interval
from ..te.errors import ScheduleError
from ..te.expr import Expr, Read, Var, substitute, walk, wrap
from . import ir as T
from .passes.bulk import BulkIntrin

#: A copy of a buffer: the buffer, and its first index where that is a number.
_Slot = tuple[T.Buffer, int | None]


def check_arrivals(func: T.PrimFunc) -> None:
    """Return if no launch of a program reads what has not arrived.

    Raises
    ------
    ScheduleError
        Naming the kernel, the buffer and what is missing.
    """
    for stmt in T.walk_stmt(func.body):
        if isinstance(stmt, T.Launch):
            filled, read = _buffers_filled(stmt), _buffers_of_products(stmt)
            if filled or read:
                _Arrivals(stmt.name, filled, read).run(stmt.body, {}, False)


def _buffers_filled(launch: T.Launch) -> set[T.Buffer]:
    """The buffers that asynchronous copies fill."""
    loops = [
        s for s in T.walk_stmt(launch) if isinstance(s, T.For) and ("async", True) in s.pragmas
    ]
    found = {s.buffer for loop in loops for s in T.walk_stmt(loop) if isinstance(s, T.Store)}
    return found | {
        s.output.buffer
        for s in T.walk_stmt(launch)
        if isinstance(s, T.TensorCall) and isinstance(s.intrinsic, BulkIntrin)
    }


def _buffers_of_products(launch: T.Launch) -> set[T.Buffer]:
    """The buffers that asynchronous products read and change."""
    calls = [s for s in T.walk_stmt(launch)
             if isinstance(s, T.TensorCall) and s.intrinsic.asynchronous]  # fmt: skip
    return {region.buffer for call in calls for region in (call.output, *call.inputs)}


@dataclass
class _Arrivals:
    """``begun`` are the copies since the last group was closed, ``groups`` the groups under way,
    oldest first, ``arrived`` what arrived since the last barrier. ``unseen`` is what threads stored
    and no fence followed, ``fenced`` what no barrier followed behind that. ``products`` are what
    groups of products use, oldest first, ``used`` what products used that ended since the last
    barrier, ``changed`` the sums that the thread itself changed since products could begin."""

    kernel: str
    buffers: set[T.Buffer]
    of_products: set[T.Buffer]
    begun: set[_Slot] = field(default_factory=set)
    groups: list[set[_Slot]] = field(default_factory=list)
    arrived: set[_Slot] = field(default_factory=set)
    unseen: set[_Slot] = field(default_factory=set)
    fenced: set[_Slot] = field(default_factory=set)
    products: list[set[_Slot]] = field(default_factory=lambda: [set()])
    used: set[_Slot] = field(default_factory=set)
    #: For each signal: how many phases have begun, the bytes that the last one still lacks, and
    #: what it brings.
    phases: dict[_Slot, int] = field(default_factory=dict)
    lacking: dict[_Slot, int] = field(default_factory=dict)
    brought: dict[_Slot, set[_Slot]] = field(default_factory=dict)
    changed: set[T.Buffer] = field(default_factory=set)
    begun_signals: set[T.Buffer] = field(default_factory=set)
    ready: set[T.Buffer] = field(default_factory=set)

    def run(self, stmt: T.Stmt, env: Mapping[Var, int], is_copy: bool) -> None:
        match stmt:
            case T.Seq(stmts):
                for inner in stmts:
                    self.run(inner, env, is_copy)
            case T.Allocate(body=body):
                self.run(body, env, is_copy)
            case T.If(cond, body):
                if interval_of_condition(cond, env) is not False:
                    self.run(body, env, is_copy)
            case T.For():
                self.loop(stmt, env, is_copy)
            case T.CopiesStarted():
                self.groups.append(self.begun)
                self.begun = set()
            case T.CopiesArrived(but):
                count = max(0, len(self.groups) - but)
                arrived = {slot for group in self.groups[:count] for slot in group}
                self.arrived |= arrived
                self.unseen |= {slot for slot in arrived if slot[0] in self.of_products}
                self.groups = self.groups[count:]
            case T.ProxyFence():
                self.fenced |= self.unseen
                self.unseen = set()
            case T.Barrier():
                for state in (self.arrived, self.fenced, self.used):
                    state.clear()
                self.ready |= self.begun_signals
            case T.ProductsBegin():
                self.changed.clear()
            case T.ProductsStarted():
                self.products.append(set())
            case T.ProductsArrived(but):
                ended = max(0, len(self.products) - 1 - but)
                self.used |= {slot for group in self.products[:ended] for slot in group}
                self.products = self.products[ended:]
            case T.Store(buffer, indices, value):
                for expr in (*indices, value):
                    self.reads(expr, env)
                self.stores(buffer, self.slot(buffer, indices, env), is_copy)
                if is_copy:
                    self.begun.add(self.slot(buffer, indices, env))
                else:
                    self.touch(buffer, indices, env)
            case T.SignalsReady(buffer):
                self.begun_signals.add(buffer)
            case T.SignalExpects(buffer, slot, size_bytes):
                self.check_ready(buffer)
                signal = self.slot(buffer, (slot,), env)
                if self.brought.get(signal):
                    raise self.error(
                        f"a signal of {buffer.name} begins a phase before the last one ended"
                    )
                self.phases[signal] = self.phases.get(signal, 0) + 1
                self.lacking[signal] = size_bytes
            case T.SignalArrived(buffer, slot, parity):
                self.check_ready(buffer)
                self.waits_for_signal(self.slot(buffer, (slot,), env), parity, env)
            case T.TensorCall(BulkIntrin() as intrinsic, _, output, (_, at)):
                signal = self.slot(at.buffer, at.start, env)
                slot = self.slot(output.buffer, output.start, env)
                self.stores(output.buffer, slot, True)
                self.lacking[signal] = self.lacking.get(signal, 0) - intrinsic.size_bytes
                self.brought.setdefault(signal, set()).add(slot)
            case T.TensorCall(intrinsic, "update", output, inputs) if intrinsic.asynchronous:
                self.multiplies(output, inputs, env)
            case T.TensorCall(_, _, output, inputs):
                self.waits_for_sums((output, *inputs), env)
                self.changed.add(output.buffer)
                for region in (output, *inputs):
                    self.touch(region.buffer, region.start, env)

    def loop(self, loop: T.For, env: Mapping[Var, int], is_copy: bool) -> None:
        """All iterations where something waits inside or which copy is touched depends on the loop;
        else one stands for all."""
        is_copy |= ("async", True) in loop.pragmas
        waits = any(
            isinstance(s, (T.Mark, T.SignalArrived, T.SignalExpects))
            for s in T.walk_stmt(loop.body)
        )
        for value in range(loop.extent if waits else 1):
            self.run(loop.body, {**env, loop.var: value} if waits else env, is_copy)

    def slot(self, buffer: T.Buffer, indices: tuple[Expr, ...], env: Mapping[Var, int]) -> _Slot:
        first = substitute(indices[0], {var: wrap(value) for var, value in env.items()})
        found = interval(first, {})
        return buffer, found[0] if found is not None and found[0] == found[1] else None

    def reads(self, expr: Expr, env: Mapping[Var, int]) -> None:
        for node in walk(expr):
            if isinstance(node, Read):
                self.touch(node.source, node.indices, env)

    def touch(self, buffer: T.Buffer, indices: tuple[Expr, ...], env: Mapping[Var, int]) -> None:
        """An access that needs what was copied."""
        if buffer not in self.buffers:
            return
        slot = self.slot(buffer, indices, env)
        under_way = [*self.begun, *(s for group in self.groups for s in group)]
        under_way += [s for found in self.brought.values() for s in found]
        for known, what in ((under_way, "has arrived"), (self.arrived, "a barrier follows")):
            if any(_overlap(slot, other) for other in known):
                raise self.error(f"{buffer.name} is read before its copy {what}")

    def check_ready(self, signals: T.Buffer) -> None:
        if signals not in self.ready:
            raise self.error(f"{signals.name} is used before a barrier follows its beginning")

    def waits_for_signal(self, signal: _Slot, parity: Expr, env: Mapping[Var, int]) -> None:
        """A wait for the end of a phase."""
        known = interval(substitute(parity, {var: wrap(value) for var, value in env.items()}), {})
        phase = self.phases.get(signal, 0) - 1
        if known is None or phase < 0 or known != (phase % 2, phase % 2):
            raise self.error(f"a wait for another phase of {signal[0].name} than its last one")
        if self.lacking[signal]:
            raise self.error(
                f"a signal of {signal[0].name} lacks {self.lacking[signal]} of its bytes"
            )
        self.brought[signal] = set()

    # ---- products ----

    def stores(self, buffer: T.Buffer, slot: _Slot, is_copy: bool) -> None:
        """A store to what products read."""
        if buffer not in self.of_products:
            return
        under_way = [s for group in self.products for s in group]
        for known, what in ((under_way, "has ended"), (self.used, "and a barrier follow")):
            if any(_overlap(slot, other) for other in known):
                raise self.error(
                    f"{buffer.name} is stored to before a product that reads it {what}"
                )
        if not is_copy:
            self.unseen.add(slot)

    def multiplies(
        self, output: T.Region, inputs: tuple[T.Region, ...], env: Mapping[Var, int]
    ) -> None:
        """A product that begins."""
        if output.buffer in self.changed:
            raise self.error(f"{output.buffer.name} is changed, and no 'products begin' follows")
        for region in inputs:
            self.touch(region.buffer, region.start, env)
            slot = self.slot(region.buffer, region.start, env)
            for known, what in ((self.unseen, "fence"), (self.fenced, "barrier behind a fence")):
                if any(_overlap(slot, other) for other in known):
                    raise self.error(
                        f"{region.buffer.name} is read by an asynchronous product before a {what} "
                        "follows its stores"
                    )
            self.products[-1].add(slot)
        self.products[-1].add((output.buffer, None))

    def waits_for_sums(self, regions: tuple[T.Region, ...], env: Mapping[Var, int]) -> None:
        """An instruction that uses sums of products."""
        under_way = [s for group in self.products for s in group]
        for region in regions:
            slot = self.slot(region.buffer, region.start, env)
            if any(_overlap(slot, other) for other in under_way):
                raise self.error(f"{region.buffer.name} is used before its products have ended")

    def error(self, what: str) -> ScheduleError:
        return ScheduleError(f"kernel {self.kernel}: {what}")


def _overlap(a: _Slot, b: _Slot) -> bool:
    return a[0] is b[0] and (a[1] == b[1] or None in (a[1], b[1]))


def interval_of_condition(cond: Expr, env: Mapping[Var, int]) -> bool | None:
    """What a condition is in an iteration; None where threads decide it."""
    known = substitute(cond, {var: wrap(value) for var, value in env.items()})
    value = getattr(known, "value", None)
    return value if isinstance(value, bool) else None
