"""Knobs: what can be chosen for a workload, and what is legal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np

KnobValue = int | str | bool
#: Plain data by name, as it stands in JSON.
Knobs = Mapping[str, KnobValue]


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be done, in words."""

    reason: str


@dataclass(frozen=True)
class Workload:
    """What a template computes for a node.

    The fields that take part in comparisons are all that decides how fast its knobs are. Other
    fields, such as a zero point, only decide the values that it computes. A field ``context`` has
    what the neighbours of the node leave it: it decides which knobs are legal and wanted. A field
    that came later is given by keyword, and no part of the key at its default, so that records
    hold.
    """

    @property
    def key(self) -> str:
        """The fields that decide how fast knobs are, as JSON."""
        deciding = [f for f in fields(self) if f.compare and f.name != "context"]
        values = [(f, getattr(self, f.name)) for f in deciding]
        named = {f.name: _plain(v) for f, v in values if not (f.kw_only and v == f.default)}
        return json.dumps(named, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if not hasattr(value, "__dataclass_fields__"):
        return value
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}


@dataclass(frozen=True)
class Space:
    """Knobs with their legal values, and a check that values go together.

    ``misfit`` says what is wrong with knobs whose values are legal one by one, or an empty string.
    ``fits``, if given, answers for many at once: from an array of values for each knob to an array
    of bool, true where there is no misfit.
    """

    knobs: Mapping[str, Sequence[KnobValue]]
    misfit: Callable[[Knobs], str] = lambda knobs: ""
    fits: Callable[[Mapping[str, np.ndarray]], np.ndarray] | None = None

    def refuse_values(self, knobs: Knobs) -> str:
        """Why a value is not legal, naming its knob and what is legal; empty if all values are
        legal. ``knobs`` may have knobs of other spaces, too.
        """
        for name, legal in self.knobs.items():
            value = knobs.get(name, legal[0] if legal else None)
            if not any(type(value) is type(v) and value == v for v in legal):
                return f"knob {name}: expected {_listed(legal)}, got {value!r}"
        return ""

    def refuse(self, knobs: Knobs) -> str:
        """Why knobs are not legal; empty if they are. None may be missing, and none unknown."""
        for name in knobs:
            if name not in self.knobs:
                return f"knob {name}: expected one of {', '.join(self.knobs) or 'none'}"
        missing = [name for name in self.knobs if name not in knobs]
        if missing:
            return f"knob {missing[0]}: expected {_listed(self.knobs[missing[0]])}, got nothing"
        return self.refuse_values(knobs) or self.misfit(knobs)

    def points(self) -> Iterator[dict[str, KnobValue]]:
        """All legal knobs, the last named varying fastest."""
        for values in product(*self.knobs.values()):
            knobs = dict(zip(self.knobs, values, strict=True))
            if not self.misfit(knobs):
                yield knobs


def preferring(value: KnobValue, legal: Iterable[KnobValue]) -> tuple[KnobValue, ...]:
    """Legal values, the preferred one first: templates without a cost model choose it."""
    return (value, *(other for other in legal if other != value))


def _listed(values: Sequence[KnobValue]) -> str:
    """Legal values as a short text: a range of integers by its ends."""
    numbers = [v for v in values if type(v) is int]
    if len(numbers) == len(values) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    shown = [json.dumps(v) for v in values]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"
