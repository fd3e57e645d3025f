"""Schedules by steps (``te/steps.py``) instead of a template: what the AutoScheduler searches."""

from __future__ import annotations

from functools import partial

from ....choose.space import Knobs, Refusal, Space
from ....choose.steps import STEPS, steps_space
from ....choose.template import Plan
from ....graph.ops.base import Expression
from ....te.errors import ScheduleError
from ....te.schedule import Schedule, create_schedule
from ....te.steps import from_text, replay
from ....te.tensor import placeholder
from ....tir.lower import lower
from ...common.workload import OperatorWorkload, loop_shapes
from ..micro_kernels import DOT, DOT_EACH
from .base import CpuTemplate

#: Instructions that steps may name.
INTRINSICS = {intrinsic.name: intrinsic for intrinsic in (DOT, DOT_EACH)}


class BySteps(CpuTemplate):
    """Any operator, by the steps of a log. It is chosen only where the user or a record says so."""

    name = "auto"

    def space(self, workload: OperatorWorkload) -> Space:
        return steps_space(partial(_refuse, expression_of_workload(workload)))

    def plan(self, workload: OperatorWorkload, fixed: Knobs) -> Plan | Refusal:
        return Plan({STEPS: ""} | dict(fixed))

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        replay_text(str(knobs[STEPS]), schedule)


def _refuse(expression: Expression, text: str) -> str:
    """Why a log makes no loop program of an expression; empty if it does."""
    schedule = create_schedule(expression.output)
    try:
        replay_text(text, schedule)
        lower(schedule, [*expression.args, expression.output])
    except ScheduleError as error:
        return str(error)
    return ""


def replay_text(text: str, schedule: Schedule) -> None:
    """Make the steps of a log in a schedule.

    Raises
    ------
    ScheduleError
        For a text that is no log, and for the first step that is not possible.
    """
    replay(from_text(text), schedule, INTRINSICS)


def expression_of_workload(workload: OperatorWorkload) -> Expression:
    """The expression that the operator of a workload is computed by."""
    shapes = loop_shapes(workload.op, [shape for shape, _ in workload.operands])
    inputs = [
        placeholder(tuple(max(size, 1) for size in shape) or (1,), dtype, f"x{index}")
        for index, (shape, (_, dtype)) in enumerate(zip(shapes, workload.operands, strict=True))
    ]
    return workload.op.expression(inputs, shapes)
