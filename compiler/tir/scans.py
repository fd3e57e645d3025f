"""Checks that a schedule computes the rows of scans in order."""

from __future__ import annotations

from ..te.affine import prove
from ..te.errors import ScheduleError
from ..te.expr import Expr
from ..te.schedule import Schedule, reading_state
from ..te.stage import Stage
from ..te.tensor import Tensor
from .printer import expr_text


def check_scans(schedule: Schedule, args: list[Tensor]) -> dict[Tensor, Stage]:
    """The scan of every state. Raises ScheduleError where rows would not be computed in order."""
    scans: dict[Tensor, Stage] = {}
    for scan in schedule.stages:
        state = scan.tensor.state
        if state is None:
            continue
        if state in scans or state in args:
            raise ScheduleError(
                f"scan {scan.name}: its state {state.name} stands for {scan.name} alone; it is no "
                "parameter, and no other scan's state"
            )
        scans[state] = scan
        time = scan.tensor.axes[0]
        if (
            scan.leaves[0] is not time
            or scan.kinds.get(time, "serial") not in ("serial", "unrolled")
            or time in scan.intrinsics
        ):
            raise ScheduleError(
                f"scan {scan.name}: rows are computed in order; the loop {time!r} must stay "
                f"outermost, whole and serial, got loops {scan.leaves!r}"
            )
        for part in reading_state(scan, schedule.stages):
            if not part.inlined and not _is_inside(part, scan):
                raise ScheduleError(
                    f"scan {scan.name}: {part.name} reads its state; compute it at {time!r} of "
                    f"{scan.name}, or inside"
                )
    return scans


def _is_inside(stage: Stage, around: Stage) -> bool:
    while stage.attach is not None and stage is not around:
        stage = stage.attach[0]
    return stage is around


def check_row(scan: Stage, row: Expr, ranges: dict[Expr, tuple[int, int]]) -> None:
    """Raise ScheduleError where the state is read at a row that is not computed yet."""
    time = scan.tensor.axes[0]
    if not prove(row < time.var, ranges):
        raise ScheduleError(
            f"scan {scan.name}: its state is read at row {expr_text(row)}, expected one before "
            f"{time.name}"
        )
