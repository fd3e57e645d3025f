"""Schedules to loop programs: loops, guards of tails, buffers of attached stages, initialisation of
reductions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..te import expr as E
from ..te.affine import is_of_loops, prove, simplify_index
from ..te.errors import ScheduleError
from ..te.intrinsic import TensorIntrin
from ..te.relations import tail_guards
from ..te.schedule import Schedule, inline_stages, reading_state
from ..te.stage import Stage, is_thread_axis
from ..te.tensor import IterVar, Tensor
from .bounds import Domain, Sharing, infer_domains, read_inside
from .ir import Allocate, Buffer, For, If, Prefetch, PrimFunc, Stmt, Store, seq
from .printer import expr_text
from .scans import check_row, check_scans
from .tensorize import match_intrinsic

#: Bytes of a cache line, which one request prefetches.
LINE_BYTES = 64


def lower(
    schedule: Schedule, args: list[Tensor], name: str = "main", sharing: Sharing | None = None
) -> PrimFunc:
    """The loop program of a schedule; ``args`` are its parameters, inputs first, outputs last.
    ``sharing`` says which threads share the memories of the target, if it has threads.
    """
    _check_places(schedule, args, name)
    inline_stages(schedule)
    domains = infer_domains(schedule, sharing or {})
    lowering = _Lowering(schedule, domains, {}, {}, check_scans(schedule, args))
    for tensor in args:
        lowering.buffers[tensor] = Buffer(tensor.name, tensor.shape, tensor.dtype)
    for stage in schedule.stages:
        if stage.body is None:
            if stage.tensor not in lowering.buffers and stage.tensor not in lowering.scans:
                raise ScheduleError(f"lower {name}: placeholder {stage.name} is missing in args")
        elif not stage.inlined and stage.tensor not in lowering.buffers:
            shape = tuple(lowering.domains[stage].extents)
            lowering.buffers[stage.tensor] = Buffer(
                stage.name, shape, stage.tensor.dtype, stage.scope, _alignments(stage),
                stage.swizzled,
            )  # fmt: skip
    for state, scan in lowering.scans.items():
        lowering.buffers[state] = lowering.buffers[scan.tensor]
    roots = [s for s in schedule.stages if s.body is not None and not s.inlined and not s.attach]
    body = seq([lowering.produce(stage) for stage in roots])
    for stage in roots:
        if stage.tensor not in args:
            body = Allocate(lowering.buffers[stage.tensor], body)
    return PrimFunc(name, tuple(lowering.buffers[t] for t in args), body)


def _check_places(schedule: Schedule, args: list[Tensor], name: str) -> None:
    for tensor in schedule.outputs:
        if tensor not in args:
            raise ScheduleError(f"lower {name}: output {tensor.name} is missing in args")
    for stage in schedule.stages:
        if stage.tensor in args and (stage.attach or stage.inlined):
            raise ScheduleError(
                f"lower {name}: {stage.name} is a parameter, it must be computed at root"
            )
        if stage.tensor in args and stage.alignments:
            raise ScheduleError(
                f"storage_align of {stage.name}: it is a parameter of {name}, whose layout is the "
                "caller's; align a cache_write of it"
            )
        if stage.attach is None or stage.attach[1] not in stage.attach[0].leaves:
            continue
        around, axis = stage.attach
        outside = around.leaves[: around.leaves.index(axis) + 1]
        swallowed = [a for a in outside if a in around.intrinsics]
        if swallowed:
            raise ScheduleError(
                f"compute_at: {stage.name} is attached in {around.name} at {axis!r}, inside the "
                f"loop {swallowed[0]!r} that an intrinsic replaces"
            )


def _alignments(stage: Stage) -> tuple[tuple[int, int, int], ...]:
    """Padded dimensions of the stage's buffer, from its end."""
    axes = stage.tensor.axes
    return tuple((axes.index(a) - len(axes), *by) for a, by in stage.alignments.items())


@dataclass
class _Lowering:
    schedule: Schedule
    domains: dict[Stage, Domain]
    buffers: dict[Tensor, Buffer]
    ranges: dict[E.Expr, tuple[int, int]]
    #: For each state, a placeholder, the scan that it stands for.
    scans: dict[Tensor, Stage]

    def produce(self, stage: Stage) -> Stmt:
        """Loops of one stage with everything that is attached in them."""
        if isinstance(stage.body, E.Extern):
            return self.extern(stage, stage.body)
        return _StageLowering(self, stage, self.domains[stage]).emit()

    def extern(self, stage: Stage, body: E.Extern) -> Stmt:
        """The loop program that the rule of an extern makes."""
        if stage.attach is not None:
            raise ScheduleError(f"extern {stage.name} cannot be computed in parts, inside a scan")
        inputs = [self.buffers[read.source] for read in stage.reads()]
        made = body.rule(inputs, self.buffers[stage.tensor])
        if not isinstance(made, Stmt):
            raise ScheduleError(
                f"extern {stage.name}: expected a statement of its rule, got {made!r}"
            )
        return made

    def attached(self, stage: Stage, axis: IterVar) -> list[Stage]:
        """Stages computed inside a loop of ``stage``, producers first."""
        return [
            s for s in self.schedule.stages
            if s.attach == (stage, axis) and s.body is not None and not s.inlined
        ]  # fmt: skip

    def buffer_reads(self, expr: E.Expr) -> E.Expr:
        """Tensor accesses as buffer accesses, relative to the buffer's first index."""

        def leaf(node: E.Expr) -> E.Expr | None:
            if isinstance(node, E.Binary) and node.op in ("//", "%") and is_of_loops(node):
                return simplify_index(node)
            if not (isinstance(node, E.Read) and isinstance(node.source, Tensor)):
                return None
            mins = self.mins(node.source)
            indices = tuple(simplify_index(i - m) for i, m in zip(node.indices, mins, strict=True))
            if node.source in self.scans:
                check_row(self.scans[node.source], indices[0], self.ranges)
            return E.Read(self.buffers[node.source], indices)

        return E.rewrite(expr, leaf)

    def mins(self, tensor: Tensor) -> list[E.Expr]:
        """First index of a tensor's buffer."""
        for stage, domain in self.domains.items():
            if stage.tensor is tensor:
                return domain.mins
        return [E.Const(0)] * len(tensor.shape)


class _StageLowering:
    def __init__(self, context: _Lowering, stage: Stage, domain: Domain):
        self.context, self.stage, self.domain = context, stage, domain
        self.buffer = context.buffers[stage.tensor]
        self.loops = [a for a in stage.leaves if domain.loop_extents[a] > 1]
        for axis in self.loops:
            context.ranges[axis.var] = (0, domain.loop_extents[axis] - 1)
        self.guards = self._guards()

    def _guards(self) -> list[E.Expr]:
        """Conditions under which an iteration is inside the tensor: of splits that do not divide,
        and of regions that reach beyond the tensor."""
        domain = self.domain
        guards = tail_guards(self.stage.relations, domain.values, domain.loop_extents)
        for axis, low in zip(self.stage.tensor.axes, domain.mins, strict=True):
            index = low + domain.values[axis]
            guards += [index >= 0, index < axis.extent]
        unproved = [g for g in guards if prove(g, self.context.ranges) is not True]
        return list(dict.fromkeys(unproved))

    def emit(self) -> Stmt:
        stage = self.stage
        body = stage.body
        assert body is not None
        values = {
            axis.var: simplify_index(low + self.domain.values[axis])
            for axis, low in zip(stage.tensor.axes, self.domain.mins, strict=True)
        }
        values |= {axis.var: simplify_index(self.domain.values[axis]) for axis in stage.reduce_axes}
        indices = tuple(simplify_index(self.domain.values[a]) for a in stage.tensor.axes)
        if isinstance(body, E.Reduce):
            term = self.context.buffer_reads(E.substitute(body.body, values))
            update = Store(self.buffer, indices, body.combine(E.Read(self.buffer, indices), term))
            start = self.context.buffer_reads(E.substitute(body.start, values))
            return self._nest(0, update, set(), start)
        value = self.context.buffer_reads(E.substitute(body, values))
        return self._nest(0, Store(self.buffer, indices, value), set(), None)

    def _nest(self, depth: int, core: Store, bound: set[E.Var], start: E.Expr | None) -> Stmt:
        """Loops from ``depth`` inwards. ``start`` is the start value of a reduction, until it has
        been placed.
        """
        stage, extents = self.stage, self.domain.loop_extents
        if depth == len(stage.leaves):
            if start is not None:
                return seq([Store(core.buffer, core.indices, start), core])
            return core
        axis = stage.leaves[depth]
        intrinsic = stage.intrinsics.get(axis)
        if start is not None and (axis.kind == "reduce" or intrinsic is not None):
            init = self._init_nest(depth, core, start)
            return seq([init, self._nest(depth, core, bound, None)])
        if intrinsic is not None:
            inner = stage.leaves[depth:]
            self._check_unguarded(inner, intrinsic)
            is_reduction = isinstance(stage.body, E.Reduce)
            variant = "update" if is_reduction else "full"
            return match_intrinsic(intrinsic, variant, inner, extents, core, stage.name)
        now = bound | {axis.var}
        body = self._nest(depth + 1, core, now, start)
        for producer in reversed(self.context.attached(stage, axis)):
            produced = self._in_order(producer, self.context.produce(producer))
            buffer = self.context.buffers[producer.tensor]
            body = seq([produced, body])
            body = Allocate(buffer, body, producer.double_buffered, producer.stages)
        body = self._guarded(seq([*self._prefetches(axis), body]), now, axis)
        if extents[axis] == 1:
            return body
        pragmas = tuple(stage.pragmas.get(axis, {}).items())
        return For(axis.var, extents[axis], stage.kinds.get(axis, "serial"), body, pragmas)

    def _in_order(self, producer: Stage, produced: Stmt) -> Stmt:
        """Guard a producer that reads rows of this scan: it runs only after the first rows."""
        body = self.stage.tensor.body
        if self.stage.tensor.state is None or not isinstance(body, E.Select):
            return produced
        parts = reading_state(self.stage, self.context.schedule.stages)
        return If(body.cond, produced) if producer in parts else produced

    def _prefetches(self, axis: IterVar) -> list[Stmt]:
        """Requests for the elements that a later iteration of a loop reads, one per cache line."""
        found = []
        for asked in self.stage.prefetches:
            if asked.axis is not axis or self.domain.loop_extents[axis] == 1:
                continue
            tensor, later = asked.tensor, {axis.var: axis.var + asked.offset}
            self._check_outside(tensor, axis)
            region = read_inside(self.stage, self.domain, axis, tensor)
            buffer = self.context.buffers.get(tensor)
            if buffer is None or any(count == 0 for _, count in region):
                raise ScheduleError(
                    f"prefetch of {tensor.name} at {axis!r}: {self.stage.name} does not read it"
                )
            steps = [1] * (len(region) - 1) + [
                max(1, LINE_BYTES // np.dtype(tensor.dtype).itemsize)
            ]
            loops = [
                (E.Var(f"p{dim}"), -(-count // step))
                for dim, ((_, count), step) in enumerate(zip(region, steps, strict=True))
            ]
            request: Stmt = Prefetch(
                buffer,
                tuple(
                    simplify_index(
                        E.substitute(low, later) + (var * step if count > 1 else 0) - first
                    )
                    for (low, _), (var, count), step, first in zip(
                        region, loops, steps, self.context.mins(tensor), strict=True
                    )
                ),
            )
            for var, count in reversed(loops):
                request = For(var, count, "serial", request) if count > 1 else request
            found.append(request)
        return found

    def _check_outside(self, tensor: Tensor, axis: IterVar) -> None:
        """Refuse to prefetch what is computed inside the loop: it does not exist earlier."""
        stage = next((s for s in self.context.schedule.stages if s.tensor is tensor), None)
        while stage is not None and stage.attach is not None:
            around, at = stage.attach
            leaves = around.leaves
            if around is self.stage and leaves.index(at) >= leaves.index(axis):
                raise ScheduleError(
                    f"prefetch of {tensor.name} at {axis!r} in {around.name}: {tensor.name} is "
                    "computed inside that loop"
                )
            stage = around

    def _check_unguarded(self, inner: list[IterVar], intrinsic: TensorIntrin) -> None:
        """A tensor instruction has no guard inside: its loops must be full."""
        mine = {axis.var for axis in inner}
        for guard in self.guards:
            if any(node in mine for node in E.walk(guard)):
                raise ScheduleError(
                    f"tensorize of {self.stage.name}: {intrinsic.name} at {inner[0]!r} would need "
                    f"the guard {expr_text(guard)}; choose factors that divide the extents, or pad"
                )

    def _guarded(self, body: Stmt, bound: set[E.Var], newest: IterVar) -> Stmt:
        """Guards go directly inside the loop that binds the last of their variables."""
        for guard in self.guards:
            names = {n for n in E.walk(guard) if isinstance(n, E.Var)}
            mine = names & {leaf.var for leaf in self.loops}
            if (newest.var in mine and mine <= bound) or (
                not mine and newest is self.stage.leaves[0]
            ):
                body = If(guard, body)
        return body

    def _init_nest(self, depth: int, core: Store, start: E.Expr) -> Stmt:
        """Set the elements that the loops from ``depth`` inwards accumulate to the start value."""
        stage, extents = self.stage, self.domain.loop_extents
        self._check_computed(stage.leaves[depth:], start)
        inner = [a for a in stage.leaves[depth:] if a.kind == "data"]
        fresh = {
            a.var: IterVar(E.Var(a.name + ".init"), extents[a]) for a in inner if extents[a] > 1
        }
        renamed = {old: axis.var for old, axis in fresh.items()}
        for axis in fresh.values():
            self.context.ranges[axis.var] = (0, axis.extent - 1)
        indices = tuple(E.substitute(i, renamed) for i in core.indices)
        body: Stmt = Store(core.buffer, indices, E.substitute(start, renamed))
        kinds = {axis: stage.kinds.get(axis, "serial") for axis in inner}
        first = next((i for i, a in enumerate(inner) if a in self._tensorized()), len(inner))
        if first < len(inner) and not isinstance(start, E.Const):
            # The intrinsic sets results to the neutral element only.
            kinds[inner[-1]] = "vectorized"
            first = len(inner)
        if first < len(inner):
            intrinsic = next(iter(stage.intrinsics.values()))
            axes = [fresh.get(a.var, a) for a in inner[first:]]
            sizes = {fresh.get(a.var, a): extents[a] for a in inner[first:]}
            body = match_intrinsic(intrinsic, "init", axes, sizes, body, stage.name)
        for guard in self.guards:
            names = {n for n in E.walk(guard) if isinstance(n, E.Var)}
            if names & set(renamed) and not names & {
                a.var for a in stage.leaves if a.kind != "data"
            }:
                body = If(E.substitute(guard, renamed), body)
        for axis in reversed(inner[:first]):
            if extents[axis] > 1:
                loop, kind = fresh[axis.var], kinds[axis]
                keeps = kind in ("unrolled", "vectorized") or is_thread_axis(kind)
                kept = kind if keeps else "serial"
                body = For(loop.var, loop.extent, kept, body)
        return body

    def _check_computed(self, inner: list[IterVar], start: E.Expr) -> None:
        """Check that the start value of a reduction is not computed inside the reduction."""
        read = [node.source for node in E.walk(start) if isinstance(node, E.Read)]
        for axis in inner:
            for producer in self.context.attached(self.stage, axis):
                if self.context.buffers[producer.tensor] in read:
                    raise ScheduleError(
                        f"compute_at: {producer.name} is attached in {self.stage.name} at "
                        f"{axis!r}, but its first value reads it; attach it outside the reduction"
                    )

    def _tensorized(self) -> set[IterVar]:
        for position, axis in enumerate(self.stage.leaves):
            if axis in self.stage.intrinsics:
                return set(self.stage.leaves[position:])
        return set()
