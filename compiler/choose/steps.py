"""The knob that is a log of steps, in the place of a template's own knobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .space import Knobs, Space

#: The knob: a log as text. Empty: as the operator's own template does it.
STEPS = "steps"


@dataclass(frozen=True)
class StepsSpace(Space):
    """Logs that are possible for an expression: too many to be listed, so each is tried.
    ``refuse_log`` says what is wrong with one, or an empty string.
    """

    refuse_log: Callable[[str], str] = lambda text: ""

    def refuse_values(self, knobs: Knobs) -> str:
        text = str(knobs.get(STEPS, ""))
        reason = self.refuse_log(text) if text else ""
        return f"knob {STEPS}: {reason}" if reason else ""


def steps_space(refuse_log: Callable[[str], str]) -> StepsSpace:
    """The space of the knob alone."""
    return StepsSpace({STEPS: ("",)}, refuse_log=refuse_log)
