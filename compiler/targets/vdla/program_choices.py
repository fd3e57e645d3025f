"""Choices for a whole program: of several programs, that is taken which ends first.

Operators of a program run beside each other. Whether one that loads less, or one that leaves more
room, is better depends on what its neighbours do, which no estimate of one operator knows. So
programs are made, and their exact cycles are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .templates.expanding import BOUNDS
from .templates.joining import APART, JOINED
from .templates.reserving import RESERVED, USUAL_EIGHTHS, WGT_EIGHTHS

#: The most sixteenths by which shares are made larger, or smaller.
MOST_STEPS = 5


@dataclass(frozen=True)
class ProgramChoices:
    """Choices that hold for all operators of a program, but where someone says otherwise.

    Attributes
    ----------
    bound : two convolutions become one operator where that is expected to cost up to so many times
        what both cost (:class:`~.templates.expanding.Expanding`)
    addition : whether convolutions add images to their results (:mod:`~.templates.joining`)
    share_steps : sixteenths of the scratchpads by which the share of an operator of the vector
        track is larger than its template's usual one
    wgt_eighths : eighths of ``wgt`` for an operator's weights
    """

    bound: float = BOUNDS[0]
    addition: str = APART
    share_steps: int = 0
    wgt_eighths: int = USUAL_EIGHTHS


def first_to_end(cycles_of: Callable[[ProgramChoices], float]) -> ProgramChoices:
    """The choices whose program takes the fewest cycles, one choice decided after the other. Of
    equal ones, the first, and the usual one, is taken. Shares are changed step by step, as long as
    that saves cycles."""
    best = ProgramChoices()

    def decide(values: Iterable[ProgramChoices]) -> bool:
        """Take the best of the best so far and others; whether it is another one."""
        nonlocal best
        before, best = best, min((best, *values), key=cycles_of)
        return best != before

    decide(replace(best, bound=bound) for bound in BOUNDS)
    decide([replace(best, addition=JOINED)])
    for step in (1, -1):
        while abs(best.share_steps) < MOST_STEPS and decide(
            [replace(best, share_steps=best.share_steps + step)]
        ):
            pass
    decide(replace(best, wgt_eighths=eighths) for eighths in RESERVED[WGT_EIGHTHS])
    return best
