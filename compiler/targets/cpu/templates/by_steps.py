"""Schedules by steps (``te/steps.py``) instead of a template: what the AutoScheduler searches."""

from __future__ import annotations

from dataclasses import dataclass

from ....choose.space import Knobs, Refusal, Space
from ....choose.template import Plan
from ....graph.ops.base import Expression
from ....te.errors import ScheduleError
from ....te.schedule import Schedule, create_schedule
from ....te.steps import from_text, replay
from ....te.tensor import placeholder
from ....tir.lower import lower
from ..micro_kernels import DOT, DOT_EACH
from .base import CpuTemplate, CpuWorkload, loop_shapes

#: The knob: a log as text. Empty: as the operator's own template does it.
STEPS = "steps"
#: Instructions that steps may name.
INTRINSICS = {intrinsic.name: intrinsic for intrinsic in (DOT, DOT_EACH)}


@dataclass(frozen=True)
class StepsSpace(Space):
    """Logs that are possible for an expression: too many to be listed, so each is tried."""

    expression: Expression | None = None

    def refuse_values(self, knobs: Knobs) -> str:
        text = knobs.get(STEPS, "")
        if text == "" or self.expression is None:
            return ""
        schedule = create_schedule(self.expression.output)
        try:
            replay_text(str(text), schedule)
            lower(schedule, [*self.expression.args, self.expression.output])
        except ScheduleError as error:
            return f"knob {STEPS}: {error}"
        return ""


class BySteps(CpuTemplate):
    """Any operator, by the steps of a log. It is chosen only where the user or a record says so."""

    name = "auto"

    def space(self, workload: CpuWorkload) -> Space:
        return StepsSpace({STEPS: ("",)}, expression=expression_of_workload(workload))

    def plan(self, workload: CpuWorkload, fixed: Knobs) -> Plan | Refusal:
        return Plan({STEPS: ""} | dict(fixed))

    def apply(self, workload: CpuWorkload, knobs: Knobs, schedule: Schedule) -> None:
        replay_text(str(knobs[STEPS]), schedule)


def replay_text(text: str, schedule: Schedule) -> None:
    """Make the steps of a log in a schedule.

    Raises
    ------
    ScheduleError
        For a text that is no log, and for the first step that is not possible.
    """
    replay(from_text(text), schedule, INTRINSICS)


def expression_of_workload(workload: CpuWorkload) -> Expression:
    """The expression that the operator of a workload is computed by."""
    shapes = loop_shapes(workload.op, [shape for shape, _ in workload.operands])
    inputs = [
        placeholder(tuple(max(size, 1) for size in shape) or (1,), dtype, f"x{index}")
        for index, (shape, (_, dtype)) in enumerate(zip(shapes, workload.operands, strict=True))
    ]
    return workload.op.expression(inputs, shapes)
