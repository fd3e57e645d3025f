"""Where all choices are made: the user's knobs, else a record, else the decision's own plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...isa.errors import VdlaError
from .aliases import with_new_names
from .records import Records
from .space import Knobs, Refusal, Workload
from .template import Decision

W = TypeVar("W", bound=Workload)
#: Who chooses, the strongest first.
CHOOSERS = ("user", "record", "planner", "default")
#: Knobs by layer.
Given = Mapping[str, Knobs]


@dataclass(frozen=True)
class Choice:
    """Knobs, who chose them (one of ``CHOOSERS``), and the cycles that a cost model predicts."""

    knobs: Knobs
    chosen_by: str
    predicted_cycles: int | None = None


def choose(
    decision: Decision[W], workload: W, given: Knobs, records: Sequence[Knobs]
) -> Choice | Refusal:
    """The knobs for a workload, or why there are no legal ones: the ``given`` knobs, completed by
    the decision's plan where some are missing; else the first ones of ``records`` that are legal;
    else those of the plan.
    """
    space = decision.space(workload)
    if reason := space.refuse_values(given):
        return Refusal(reason)
    if given.keys() >= space.knobs.keys() and space.knobs:
        reason = space.misfit(given)
        found = Choice(given, "user", decision.predict(workload, given))
        return Refusal(reason) if reason else found
    legal = (knobs for knobs in records if not given and not space.refuse(knobs))
    if (record := next(legal, None)) is not None:
        return Choice(record, "record", decision.predict(workload, record))
    planned = decision.plan(workload, given)
    if isinstance(planned, Refusal):
        return planned
    by = "planner" if decision.has_cost_model else "default"
    return Choice(planned.knobs, "user" if given else by, planned.cycles)


@dataclass
class Chooser:
    """Makes the choices of one compilation and remembers them by layer.

    ``target`` and ``machine`` say whose records apply. ``plan`` is what the target chose for all
    layers together. A layer may have several choices: an
    algorithm by one decision, and its tiles by another. Their knobs have different names, and stand
    side by side in reports.
    """

    target: str
    machine: str
    given: Given = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    made: dict[str, list[Choice]] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.given = {layer: with_new_names(knobs) for layer, knobs in self.given.items()}

    def on(self, target: str, machine: str) -> Chooser:
        """A chooser for another target of the same compilation, which adds to the same choices."""
        return replace(self, target=target, machine=machine)

    def copy(self) -> Chooser:
        """A chooser with the same choices so far, for an attempt."""
        return replace(self, made={layer: [*choices] for layer, choices in self.made.items()})

    def prefers(self, first: Decision[W], other: Decision[W], workload: W, layer: str) -> bool:
        """Whether the first of two decisions, of which one is enough, is made for a layer: the user
        or the cheaper record says so.
        """
        given = self.given.get(layer, {})
        if given:
            return any(name in given for name in first.space(workload).knobs)
        mine, theirs = (
            self.records.cost(self.target, self.machine, decision.name, workload.key)
            for decision in (first, other)
        )
        return mine < theirs

    def attempt(self, decision: Decision[W], workload: W, layer: str) -> Choice | Refusal:
        """The choice for a layer, or why there is none."""
        known = decision.space(workload).knobs
        given = {name: v for name, v in self.given.get(layer, {}).items() if name in known}
        records = self.records.find(self.target, self.machine, decision.name, workload.key)
        found = choose(decision, workload, given, records)
        if isinstance(found, Choice):
            self.made.setdefault(layer, []).append(found)
        return found

    def choose(self, decision: Decision[W], workload: W, layer: str) -> Choice:
        """The choice for a layer.

        Raises
        ------
        VdlaError
            When there is none, naming the layer, the knob and what is legal.
        """
        found = self.attempt(decision, workload, layer)
        if isinstance(found, Refusal):
            raise VdlaError(f"layer {layer!r}: {found.reason}")
        return found

    def of(self, layer: str) -> Choice | None:
        """All choices of a layer as one; None if there are none."""
        made = self.made.get(layer)
        if not made:
            return None
        knobs = {name: value for choice in made for name, value in choice.knobs.items()}
        by = min((choice.chosen_by for choice in made), key=CHOOSERS.index)
        predicted = [c.predicted_cycles for c in made if c.predicted_cycles is not None]
        return Choice(knobs, by, predicted[-1] if predicted else None)

    def check_given(self) -> None:
        """Raise VdlaError for a given layer or knob that no choice has used."""
        for layer, knobs in self.given.items():
            chosen = self.of(layer)
            if chosen is None:
                known = ", ".join(self.made) or "none"
                raise VdlaError(f"knobs: expected layers with choices ({known}), got {layer!r}")
            for name in knobs:
                if name not in chosen.knobs:
                    known = ", ".join(chosen.knobs) or "none"
                    raise VdlaError(f"layer {layer!r}: expected knobs {known}, got {name!r}")
