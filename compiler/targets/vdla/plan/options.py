"""Program-level options are chosen by simulated cycles: the compiler writes a program for each
candidate, counts its exact cycles, and takes the fastest.

Operators of a program run at the same time and share the scratchpads. An operator that loads less
may leave less room to its neighbours. An estimate of one operator cannot know what that costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..machine import USUAL_EIGHTHS
from .fuse_inverted_residual import BOUNDS
from .fuse_residual import APART, JOINED
from .reservations import IMAGE_PARTS, RESERVED, USUAL_PARTS, WGT_EIGHTHS

#: Shares become larger or smaller by at most so many sixteenths.
MOST_STEPS = 5


@dataclass(frozen=True)
class ProgramChoices:
    """Choices for all operators of a program, except those whose knobs a person gives.

    Attributes
    ----------
    bound : two convolutions become one operator if the planner expects it to cost at most so many
        times what they cost apart (:class:`~.fuse_inverted_residual.Expanding`)
    addition : whether convolutions add images to their results (:mod:`~.fuse_residual`)
    share_steps : sixteenths that are added to the share of the scratchpads which a template of the
        vector track usually takes; negative for a smaller share
    wgt_eighths : eighths of ``wgt`` for an operator's weights
    image_parts : parts in which an image comes, each with a product of its own
    """

    bound: float = BOUNDS[0]
    addition: str = APART
    share_steps: int = 0
    wgt_eighths: int = USUAL_EIGHTHS
    image_parts: int = USUAL_PARTS


def first_to_end(cycles_of: Callable[[ProgramChoices], float]) -> ProgramChoices:
    """Find the choices whose program takes the fewest cycles. They are decided one after the other,
    each with the best of those before it. A choice stays as usual unless another one saves cycles;
    the share is changed by one sixteenth after the other as long as each saves some.
    """
    best = ProgramChoices()

    def decide(others: Iterable[ProgramChoices]) -> bool:
        """Take one of the others if it is better than the best so far; return whether one is."""
        nonlocal best
        before, best = best, min((best, *others), key=cycles_of)
        return best != before

    decide(replace(best, bound=bound) for bound in BOUNDS)
    decide([replace(best, addition=JOINED)])
    decide([replace(best, image_parts=RESERVED[IMAGE_PARTS][-1])])
    for step in (1, -1):
        saves = True
        while saves and abs(best.share_steps) < MOST_STEPS:
            saves = decide([replace(best, share_steps=best.share_steps + step)])
    decide(replace(best, wgt_eighths=eighths) for eighths in RESERVED[WGT_EIGHTHS])
    return best
