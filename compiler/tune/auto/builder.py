"""Schedules that are made step by step, some of whose steps are open; and who decides these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from ...te.intrinsic import TensorIntrin
from ...te.schedule import Schedule, create_schedule
from ...te.stage import Stage
from ...te.steps import Log, Step, apply, label
from ...te.tensor import IterVar, Tensor
from ...tir.bounds import infer_domains


class Kind(Enum):
    """What an open step decides."""

    SKETCH = "whether a stage is rewritten: cached, factored"
    TILE = "how large a tile is"
    UNROLL = "whether a loop is unrolled"
    LOCATION = "where a stage is computed, and in what order loops run"
    THREADS = "how loops are shared among threads"


@dataclass(frozen=True)
class Opening:
    """A step that is open.

    Attributes
    ----------
    key : what is decided, of which stage; no other opening of a schedule has this key
    stage : the name of the stage
    options : the steps that are possible; None is no step
    position : how many steps were made before
    """

    key: str
    stage: str
    kind: Kind
    options: Sequence[Step | None]
    position: int


#: Decides an opening: returns one of its options.
Picker = Callable[[Opening], Step | None]


@dataclass(frozen=True)
class Decided:
    """An opening, and what was decided."""

    opening: Opening
    step: Step | None


@dataclass(frozen=True)
class Program:
    """A schedule by rules: the steps that were made, and what was decided on the way."""

    log: Log
    decided: tuple[Decided, ...] = field(compare=False)


class Builder:
    """A schedule that is being made. Every change is a step of the log.

    Attributes
    ----------
    schedule : as far as it is
    places : loops inside of which other stages may be computed
    """

    def __init__(self, output: Tensor, pick: Picker, intrinsics: Mapping[str, TensorIntrin]):
        self.schedule: Schedule = create_schedule(output)
        self.places: set[IterVar] = set()
        self.intrinsics = intrinsics
        self._pick = pick
        self._log: list[Step] = []
        self._decided: list[Decided] = []
        self._keys: set[str] = set()

    @property
    def program(self) -> Program:
        """What has been made so far."""
        return Program(tuple(self._log), tuple(self._decided))

    def step(self, primitive: str, stage: Stage, *arguments: Any) -> Step:
        """A step of a stage. An argument that is a loop is one of the stage itself; of a place, one
        of the stage before it.
        """
        of, found = stage, []
        for argument in arguments:
            match argument:
                case Stage():
                    of = argument
                    found.append(label(argument, self.schedule.stages))
                case IterVar():
                    found.append(label(argument, of.leaves))
                case _:
                    found.append(argument)
        return Step(primitive, label(stage, self.schedule.stages), tuple(found))

    def do(self, primitive: str, stage: Stage, *arguments: Any) -> Any:
        """Make a step; returns what the primitive returns."""
        return self._make(self.step(primitive, stage, *arguments))

    def _make(self, step: Step) -> Any:
        found = apply(self.schedule, step, self.intrinsics)
        self._log.append(step)
        return found

    def choose(self, kind: Kind, what: str, stage: Stage, options: Sequence[Step | None]) -> Any:
        """Make the step that is decided; returns what its primitive returns, None for no step."""
        name = label(stage, self.schedule.stages)
        key = f"{what} of {name}"
        assert key not in self._keys and options, key
        self._keys.add(key)
        step = options[0]
        if len(options) > 1:
            opening = Opening(key, name, kind, tuple(options), len(self._log))
            step = self._pick(opening)
            self._decided.append(Decided(opening, step))
        return None if step is None else self._make(step)

    def split(self, stage: Stage, axis: IterVar, factors: Sequence[int]) -> tuple[IterVar, IterVar]:
        """Split a loop by one of the factors."""
        options = [self.step("split", stage, axis, factor) for factor in factors]
        what = f"tile {label(axis, stage.leaves)}"
        return self.choose(Kind.TILE, what, stage, options)

    def extents(self, stage: Stage) -> dict[IterVar, int]:
        """How many indices of each axis of a tensor its stage computes at a time, where it is."""
        domain = infer_domains(self.schedule, {})[stage]
        found = dict(zip(stage.tensor.axes, domain.extents, strict=True))
        return found | {axis: axis.extent for axis in stage.reduce_axes}

    # ---- who reads whom

    def readers(self, stage: Stage) -> list[Stage]:
        """The stages that read a stage and are computed somewhere."""
        return [
            other for other in self.schedule.stages
            if not other.inlined and any(read.source is stage.tensor for read in other.reads())
        ]  # fmt: skip

    def locations(self, stage: Stage) -> Iterator[tuple[Stage, IterVar]]:
        """The loops that all readers of a stage are inside of, and that are places, outermost
        first.
        """
        around: dict[Stage, int] | None = None
        for reader in self.readers(stage):
            mine = _surrounding(reader)
            if around is None:
                around = mine
            around = {s: min(n, mine[s]) for s, n in around.items() if s in mine}
        for consumer, depth in reversed((around or {}).items()):
            for axis in consumer.leaves[:depth]:
                if axis in self.places:
                    yield consumer, axis


def _surrounding(stage: Stage) -> dict[Stage, int]:
    """Stages around a stage, itself first, and how many of their loops it is inside of."""
    found = {stage: len(stage.leaves)}
    while stage.attach is not None and stage.attach[0] not in found:
        stage, axis = stage.attach
        found[stage] = stage.leaves.index(axis) + 1
    return found


# ---- who decides ---------------------------------------------------------------------------------


def at_random(rng: np.random.Generator) -> Picker:
    """Every option is as likely as another."""
    return lambda opening: opening.options[int(rng.integers(len(opening.options)))]


def inclined(rng: np.random.Generator) -> Picker:
    """As often the last option as any: whole reductions in a tile, the innermost place. Then what
    is in registers stays there over the whole reduction.
    """
    by_chance = at_random(rng)

    def pick(opening: Opening) -> Step | None:
        return opening.options[-1] if rng.random() < 0.5 else by_chance(opening)

    return pick


def following(log: Log) -> Picker:
    """As in a log. What the log does not have is not decided by it: the first option is taken, and
    the program that results is another one.
    """

    def pick(opening: Opening) -> Step | None:
        made = log[opening.position] if opening.position < len(log) else None
        if made in opening.options:
            return made
        return None if None in opening.options else opening.options[0]

    return pick


def as_in(
    parents: Callable[[Opening], Program], rng: np.random.Generator, anew: Collection[str] = ()
) -> Picker:
    """As in a parent, which may be another one for each opening; at random what is to be decided
    ``anew``, and where the parent's step is no option any more.
    """
    known: dict[int, dict[str, Step | None]] = {}
    by_chance = at_random(rng)

    def pick(opening: Opening) -> Step | None:
        parent = parents(opening)
        steps = known.get(id(parent))
        if steps is None:
            steps = {each.opening.key: each.step for each in parent.decided}
            known[id(parent)] = steps
        if opening.key in anew:
            others = [o for o in opening.options if o != steps.get(opening.key)]
            return others[int(rng.integers(len(others)))]
        if opening.key in steps and steps[opening.key] in opening.options:
            return steps[opening.key]
        return by_chance(opening)

    return pick
