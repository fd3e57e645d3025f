"""Schedules as data: a log of steps, each of them one call of a primitive with its arguments.

::

    ["cache_write", "y", "global"]
    ["split", "y", "j", 64]                  makes the loops j.o and j.i
    ["compute_at", "y.global", "y", "j.o"]
    ["vectorize", "y.global", "j"]

Stages and loops are named as they are when the step is made. Where several of a schedule's stages,
or of a stage's loops, have one name, ``#1`` after it means the second of them, and so on. A log is
plain data: it can be stored, compared, changed, and applied again to a schedule of the same
expression.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import ScheduleError
from .intrinsic import TensorIntrin
from .schedule import Schedule, inline_stages
from .stage import Stage
from .tensor import IterVar

Argument = int | str
#: Primitives that take a loop and nothing else.
_OF_LOOP = ("unroll", "vectorize", "parallel", "vthread")
#: Primitives that take nothing but the stage.
_OF_STAGE = ("compute_root", "double_buffer")


@dataclass(frozen=True)
class Step:
    """A call of a primitive of a stage, or of its schedule for the tensor of a stage."""

    primitive: str
    stage: str
    arguments: tuple[Argument, ...] = ()

    @property
    def data(self) -> list[Argument]:
        """The step as it stands in JSON."""
        return [self.primitive, self.stage, *self.arguments]

    def __str__(self) -> str:
        return " ".join(map(str, self.data))


Log = tuple[Step, ...]


class Named(Protocol):
    """A stage or a loop."""

    @property
    def name(self) -> str: ...


def label(item: Named, among: Iterable[Named]) -> str:
    """How steps name a stage among those of a schedule, or a loop among those of a stage."""
    alike = [other for other in among if other.name == item.name]
    place = next(index for index, other in enumerate(alike) if other is item)
    return f"{item.name}#{place}" if place else item.name


def _find(text: Argument, among: Sequence[Any], what: str) -> Any:
    labels = {label(item, among): item for item in among}
    if text not in labels:
        raise ScheduleError(f"expected {what} ({', '.join(labels)}), got {text!r}")
    return labels[str(text)]


def find_stage(schedule: Schedule, text: Argument) -> Stage:
    """The stage that a step means."""
    return _find(text, schedule.stages, "a stage")


def find_loop(stage: Stage, text: Argument) -> IterVar:
    """The loop that a step means."""
    return _find(text, stage.leaves, f"a loop of {stage.name}")


def apply(schedule: Schedule, step: Step, intrinsics: Mapping[str, TensorIntrin]) -> Any:
    """Make a step; returns what the primitive returns. ``intrinsics`` are those of the target, by
    name.

    Raises
    ------
    ScheduleError
        When the step is none, or is not possible here.
    """
    stage = find_stage(schedule, step.stage)
    match step.primitive, step.arguments:
        case "split", (str(loop), int(factor)):
            return stage.split(find_loop(stage, loop), factor)
        case "fuse", (str(outer), str(inner)):
            return stage.fuse(find_loop(stage, outer), find_loop(stage, inner))
        case "reorder", (_, *_) as loops:
            return stage.reorder(*(find_loop(stage, loop) for loop in loops))
        case name, (str(loop),) if name in _OF_LOOP:
            return getattr(stage, name)(find_loop(stage, loop))
        case name, () if name in _OF_STAGE:
            return getattr(stage, name)()
        case "compute_inline", ():
            stage.compute_inline()
            return inline_stages(schedule)  # so that later steps see who reads what
        case "pragma", (str(loop), str(key)):
            return stage.pragma(find_loop(stage, loop), key)
        case "tensorize", (str(loop), str(name)):
            return stage.tensorize(find_loop(stage, loop), _intrinsic(intrinsics, name))
        case "compute_at", (str(other), str(loop)):
            consumer = find_stage(schedule, other)
            return stage.compute_at(consumer, find_loop(consumer, loop))
        case "set_scope", (str(scope),):
            return stage.set_scope(scope)
        case "cache_write", (str(scope),):
            return schedule.cache_write(stage.tensor, scope)
        case "cache_read", (str(scope), _, *_):
            readers = [find_stage(schedule, text).tensor for text in step.arguments[1:]]
            return schedule.cache_read(stage.tensor, scope, readers)
        case "rfactor", (str(loop), int(factor_axis)):
            return schedule.rfactor(stage.tensor, find_loop(stage, loop), factor_axis)
    raise ScheduleError(f"expected a primitive with its arguments, got {json.dumps(step.data)}")


def _intrinsic(intrinsics: Mapping[str, TensorIntrin], name: str) -> TensorIntrin:
    if name not in intrinsics:
        known = ", ".join(intrinsics) or "none"
        raise ScheduleError(f"expected an intrinsic of the target ({known}), got {name!r}")
    return intrinsics[name]


def replay(
    log: Log, schedule: Schedule, intrinsics: Mapping[str, TensorIntrin] | None = None
) -> None:
    """Make all steps of a log.

    Raises
    ------
    ScheduleError
        Naming the first step that is not possible.
    """
    for number, step in enumerate(log):
        try:
            apply(schedule, step, intrinsics or {})
        except ScheduleError as error:
            raise ScheduleError(f"step {number} ({step}): {error}") from None


def to_text(log: Log) -> str:
    """A log as JSON, in one line."""
    return json.dumps([step.data for step in log], separators=(",", ":"))


def from_text(text: str) -> Log:
    """The log of :func:`to_text`.

    Raises
    ------
    ScheduleError
        For a text that is no log.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ScheduleError(
            f"steps: expected a list in JSON, got {text[:40]!r} ({error})"
        ) from None
    if not isinstance(found, list) or not all(map(_is_step, found)):
        raise ScheduleError(
            "steps: expected lists of a primitive, a stage and arguments (integers and texts), got "
            f"{text[:40]!r}"
        )
    return tuple(Step(primitive, stage, tuple(rest)) for primitive, stage, *rest in found)


def _is_step(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) >= 2
        and all(isinstance(part, str) for part in found[:2])
        and all(type(part) in (int, str) for part in found[2:])
    )
