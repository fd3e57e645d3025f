"""Search the choices of all layers together, by the cycles of the model's programs.

The layers of a program overlap: they share the bus, the units and the scratchpads. What is fastest
for a layer alone may hold up its neighbours. Here a trial changes a knob of one layer, or of all
layers that have the same choice, and compiles and simulates the whole program. A change that saves
cycles stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...isa.errors import VdlaError
from ..build import prepare
from ..choose.chooser import Choice, Chooser, Given
from ..choose.space import Knobs, KnobValue
from ..dumps import Dumps
from ..partition import split_parts
from ..targets.base import Part
from ..targets.vdla.plan.program_plan import SHARES
from ..targets.vdla.plan.scratchpads import Operator
from ..targets.vdla.target import Accelerator

#: Of the legal numbers of a knob, a trial takes one of so many that are nearest.
NEAREST = 4
#: Proposals in a row that are not new, or not legal, after which the search ends.
PATIENCE = 2000


@dataclass(frozen=True)
class _Attempt:
    """A part's operators and choices, the knobs of the layers that were ``changed``, and the
    cycles of its program."""

    changed: Mapping[str, Knobs]
    operators: tuple[Operator, ...]
    chooser: Chooser
    cycles: int


@dataclass
class Together:
    """The search for one model.

    Attributes
    ----------
    curve : the cycles of all programs: before the first trial, and the least after each
    failed : trials that gave no program
    exhausted : whether no new proposal was found
    """

    model: object
    target: Accelerator
    given: Given
    seed: int
    failed: int = 0
    exhausted: bool = False

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._chooser = Chooser(self.target.name, self.target.machine_key, self.given)
        graph = prepare(self.model, self.target, self._chooser, Dumps())
        self._parts = [
            part for where, part in split_parts(graph, self.target) if where is self.target
        ]
        if not self._parts:
            raise VdlaError(f"refine: expected a layer for {self.target.title}, got none")
        self._tried: set[tuple] = set()
        self._best = [self._attempt(part, {}) for part in self._parts]
        made = {layer: choice for one in self._best for layer, choice in one.chooser.made.items()}
        replace(self._chooser, made=self._chooser.made | made).check_given()
        self.curve = [sum(one.cycles for one in self._best)]

    @property
    def knobs(self) -> dict[str, Knobs]:
        """The best choices, by layer: all that ``vdla run --knobs`` needs for these programs."""
        found = {}
        for one in self._best:
            for operator in one.operators:
                choice = one.chooser.of(operator.node.name)
                if choice is not None and choice.knobs:
                    found[operator.node.name] = dict(choice.knobs)
        return found

    def run(self, trials: int, goes_on: Callable[[], bool]) -> None:
        """Make so many trials in all, while there are new proposals and ``goes_on``, which is asked
        before the first trial and after each."""
        while goes_on() and len(self.curve) <= trials:
            proposal = self._propose()
            if proposal is None:
                self.exhausted = True
                return
            number, changed = proposal
            best = self._best[number]
            try:
                found = self._attempt(self._parts[number], changed)
                if found.cycles < best.cycles:
                    self._best[number] = found
            except VdlaError:
                self.failed += 1
            self.curve.append(sum(one.cycles for one in self._best))

    def _attempt(self, part: Part, changed: Mapping[str, Knobs]) -> _Attempt:
        """Compile and simulate a part, with these knobs for the ``changed`` layers."""
        trial = self._chooser.copy()
        trial.given = {**self._chooser.given, **changed}
        nodes = []
        for node in part.nodes:
            knobs = changed.get(node.name, {})
            shares = {name: knobs[name] for name in node.shares if name in knobs}
            if shares:
                trial.made[node.name] = [*trial.made[node.name], Choice(shares, "user")]
                node = replace(node, shares={**node.shares, **shares})
            nodes.append(node)
        linked = self.target.link(replace(part, nodes=tuple(nodes)), trial)
        cycles = linked.count_cycles(self.target.machine.params)
        return _Attempt(changed, tuple(linked.made.values()), trial, cycles)

    def _propose(self) -> tuple[int, dict[str, Knobs]] | None:
        """A part, and the knobs of its changed layers, those that were changed before included."""
        for _ in range(PATIENCE):
            number = int(self._random.integers(len(self._parts)))
            best = self._best[number]
            operator = best.operators[self._random.integers(len(best.operators))]
            knobs = self._other_knobs(operator, best.chooser)
            if knobs is None:
                continue
            layers = [operator]
            if self._random.random() < 0.5:
                layers = [o for o in best.operators if _same_choice(o, operator)]
            changed = {**best.changed, **{o.node.name: knobs for o in layers}}
            asked = number, *((name, *sorted(k.items())) for name, k in sorted(changed.items()))
            if asked not in self._tried:
                self._tried.add(asked)
                return number, changed
        return None

    def _other_knobs(self, operator: Operator, chooser: Chooser) -> Knobs | None:
        """The knobs of an operator with another value for one of them; None where that is not
        legal."""
        space = operator.template.space(operator.workload)
        choice = chooser.of(operator.node.name)
        known = dict(choice.knobs) if choice else {}
        legal: dict[str, Sequence[KnobValue]] = {
            name: values for name, values in space.knobs.items() if name in operator.choice.knobs
        }
        legal |= {name: values for name, values in SHARES.items() if name in known}
        name = list(legal)[self._random.integers(len(legal))] if legal else ""
        others = _near(legal[name], known[name]) if legal else []
        if not others:
            return None
        knobs = known | {name: others[self._random.integers(len(others))]}
        tile = {name: value for name, value in knobs.items() if name in space.knobs}
        return None if space.refuse(tile) else knobs


def _same_choice(one: Operator, other: Operator) -> bool:
    """Whether two operators are computed in the same way with the same knobs."""
    return one.template is other.template and one.choice.knobs == other.choice.knobs


def _near(legal: Sequence[KnobValue], value: KnobValue) -> list[KnobValue]:
    """Other legal values: words, or the numbers that are nearest by their ratio."""
    others = [other for other in legal if other != value]
    if isinstance(value, str):
        return others
    return sorted(others, key=lambda v: abs(np.log1p(v) - np.log1p(value)))[:NEAREST]
