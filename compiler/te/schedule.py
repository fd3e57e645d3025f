"""Schedules: how tensors are computed. Every primitive preserves the result; names and meanings are
TVM's.

A :class:`Schedule` has one :class:`Stage` per tensor (``te/stage.py``). A stage starts with one
loop per axis, data axes outermost, and the primitives rearrange them; ``tir/lower.py`` turns the
schedule into a loop program.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ScheduleError
from .expr import Expr, Extern, Read, Var, rewrite, substitute
from .rfactor import factored
from .stage import Stage
from .tensor import IterVar, Tensor


@dataclass(eq=False)
class Schedule:
    """Stages in dependency order (producers first) of the computation of ``outputs``."""

    outputs: list[Tensor]
    stages: list[Stage]

    def __getitem__(self, tensor: Tensor) -> Stage:
        for stage in self.stages:
            if stage.tensor is tensor:
                return stage
        raise ScheduleError(
            f"schedule: tensor {tensor.name} has no stage here "
            f"(stages: {[s.name for s in self.stages]}); after "
            "cache_read or cache_write use the tensors that stages hold now"
        )

    def cache_read(self, tensor: Tensor, scope: str, readers: list[Tensor]) -> Tensor:
        """Copy a tensor into a memory scope and let the readers read the copy.

        ::

            c[i] = f(x[i])      ->      x.scope[i] = x[i];  c[i] = f(x.scope[i])
        """
        if not readers or any(reader is tensor for reader in readers):
            raise ScheduleError(
                f"cache_read of {tensor.name}: expected tensors that read it, got {readers!r}"
            )
        for reader in readers:
            if not any(read.source is tensor for read in self[reader].reads()):
                raise ScheduleError(
                    f"cache_read of {tensor.name}: expected tensors that read it, got "
                    f"{reader.name}, which does not"
                )
        indices = tuple(IterVar(Var(f"ax{i}"), n) for i, n in enumerate(tensor.shape))
        copy = Tensor(
            f"{tensor.name}.{scope}", tensor.shape, tensor.dtype, indices,
            Read(tensor, tuple(axis.var for axis in indices)),
        )  # fmt: skip
        stage = Stage(copy)
        stage.set_scope(scope)
        self._replace_reads({tensor: copy}, [self[reader] for reader in readers])
        first = min(self.stages.index(self[r]) for r in readers)
        self.stages.insert(first, stage)
        return copy

    def cache_write(self, tensor: Tensor, scope: str) -> Tensor:
        """Compute into a memory scope and copy the result out; schedule the returned tensor's loops
        for the computation.

        ::

            y[i] = f(i)      ->      y.scope[i] = f(i);  y[i] = y.scope[i]
        """
        stage = self[tensor]
        if stage.body is None:
            raise ScheduleError(f"cache_write: {tensor.name} is a placeholder; nothing computes it")
        if not stage.untouched:
            raise ScheduleError(
                f"cache_write of {tensor.name}: apply it before other primitives of the stage"
            )
        if tensor.state is not None:
            raise ScheduleError(
                f"cache_write of {tensor.name}: a scan reads its rows where it writes them"
            )
        axes = tuple(IterVar(Var(a.name), a.extent) for a in tensor.axes)
        renamed = {a.var: b.var for a, b in zip(tensor.axes, axes, strict=True)}
        body = substitute(stage.body, renamed)
        local = Tensor(f"{tensor.name}.{scope}", tensor.shape, tensor.dtype, axes, body)
        local_stage = Stage(local, attach=stage.attach)
        local_stage.set_scope(scope)
        position = self.stages.index(stage)
        copied = Read(local, tuple(axis.var for axis in tensor.axes))
        copy = Stage(tensor, copied, stage.scope, attach=stage.attach)
        self.stages[position : position + 1] = [local_stage, copy]
        return local

    def rfactor(self, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Tensor:
        """Make a reduction loop a data axis: partial results, one for each of its iterations, and
        their reduction. Sums of floats are rounded in this order; integers stay what they are.

        ::

            for i:                               for k.i in 4: for i: y.rf[k.i, i] = 0
              y[i] = 0                             for k.o: y.rf[k.i, i] += x[k.o*4 + k.i]
              for k.o: for k.i in 4:       ->    for i:
                y[i] += x[k.o*4 + k.i]             y[i] = 0
                                                   for k.i in 4: y[i] += y.rf[k.i, i]

        Parameters
        ----------
        tensor : computed by a reduction; only its reduction loops were split or fused before
        axis : the loop
        factor_axis : where the partial results' new axis goes, 0 is outermost

        Returns
        -------
        The partial results, a tensor with a stage of its own.
        """
        stage = self[tensor]
        partial, body = factored(stage, axis, factor_axis)
        position = self.stages.index(stage)
        final = Stage(tensor, body, stage.scope, attach=stage.attach)
        self.stages[position : position + 1] = [Stage(partial, attach=stage.attach), final]
        return partial

    def _replace_reads(self, mapping: dict[Tensor, Tensor], stages: list[Stage]) -> None:
        def leaf(node: Expr) -> Expr | None:
            if isinstance(node, Read) and node.source in mapping:
                return Read(mapping[node.source], node.indices)
            return None

        for stage in stages:
            assert stage.body is not None  # it reads a tensor
            stage.body = rewrite(stage.body, leaf)


def create_schedule(outputs: Tensor | list[Tensor]) -> Schedule:
    """The default schedule: every tensor computed as a whole, one loop per axis. Tensors that read
    the state of a scan are computed inside the scan's first loop.

    Rewriting primitives change stages, never tensors: one description can have many schedules.
    """
    outputs = outputs if isinstance(outputs, list) else [outputs]
    ordered: list[Tensor] = []

    def visit(tensor: Tensor) -> None:
        if tensor not in ordered:
            for source in tensor.inputs:
                visit(source)
            ordered.append(tensor)

    for output in outputs:
        visit(output)
    stages = [Stage(tensor) for tensor in ordered]
    for stage in stages:
        if stage.tensor.state is not None:
            for part in reading_state(stage, stages):
                part.attach = (stage, stage.tensor.axes[0])
    return Schedule(outputs, stages)


def reading_state(scan: Stage, stages: list[Stage]) -> list[Stage]:
    """Stages that read rows of a scan by its state, directly or not, the scan itself left out."""
    sources, found = {scan.tensor.state}, []
    for stage in stages:
        if stage is not scan and any(read.source in sources for read in stage.reads()):
            sources.add(stage.tensor)
            found.append(stage)
    return found


def inline_stages(schedule: Schedule) -> None:
    """Put the expressions of inlined stages in place of their reads.

    Raises
    ------
    ScheduleError
        When a loop program of the user's reads such a stage.
    """
    for stage in schedule.stages:
        if not stage.inlined:
            continue
        axes = stage.tensor.axes

        outside = [s.name for s in schedule.stages if isinstance(s.body, Extern)
                   and any(r.source is stage.tensor for r in s.reads())]  # fmt: skip
        if outside:
            raise ScheduleError(
                f"compute_inline: {stage.name} is read by the loop program of {outside[0]}, which "
                "needs it in memory"
            )

        def leaf(node: Expr, stage: Stage = stage, axes: tuple[IterVar, ...] = axes) -> Expr | None:
            if isinstance(node, Read) and node.source is stage.tensor:
                values = {a.var: i for a, i in zip(axes, node.indices, strict=True)}
                return substitute(stage.body, values)  # type: ignore[arg-type]
            return None

        for consumer in schedule.stages:
            if consumer.body is not None and consumer is not stage:
                consumer.body = rewrite(consumer.body, leaf)
