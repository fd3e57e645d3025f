"""The plan of a program: which operators are fused, and what each takes of what all share.

Operators of a program run at the same time and share the scratchpads. An operator that loads less
may leave less room to its neighbours. An estimate of one operator cannot know what that costs, so
plans are compared by the exact cycles of their programs (:mod:`.planner`).

A plan is for all operators. Each has knobs of its own that follow from it, which a person may give
instead:

- ``addition``: ``fused`` if a convolution adds the image of a residual connection to its result
- ``expansion``: ``fused`` if a depthwise convolution also computes the image that it filters, so
  that this image does not go to DRAM
- ``wgt_eighths``: the part of ``wgt`` for its weights (``lower/prefetch_weights.py``)
- ``share_sixteenths``: the part of the scratchpads for an operator of the vector track
- ``image_chunks``: the number of chunks in which its image is loaded (``lower/split_k.py``)
- ``track``: ``vector`` if a normalisation or a transposition, which uses both units, runs beside
  the tensor core's operators, not between them
- ``classifier``: ``beside`` if a dense layer behind a mean runs beside what the mean reads
- ``room_times``: how much of the scratchpads it may use at all (:meth:`.machine.Machine.room`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache

from ....choose.chooser import Given
from ....choose.space import Knobs, KnobValue, Refusal, Space, Workload
from ....choose.template import Decision, Plan
from ....graph.ir import Node
from ..machine import USUAL_EIGHTHS
from ..templates.base import AcceleratorTemplate, Track

ADDITION, EXPANSION = "addition", "expansion"
WGT_EIGHTHS, SHARE_SIXTEENTHS, IMAGE_CHUNKS = "wgt_eighths", "share_sixteenths", "image_chunks"
ROOM_TIMES, TRACK, CLASSIFIER = "room_times", "track", "classifier"
#: The values of ``addition`` and ``expansion``.
APART, FUSED = "apart", "fused"
#: The values of ``track``.
TRACKS = ON_TENSOR, ON_VECTOR = "tensor", "vector"
#: The values of ``classifier``.
CLASSIFIERS = BEHIND, BESIDE = "behind", "beside"
#: What an operator takes of what all share. With more of ``wgt``, its own weights come earlier;
#: with less, those of the operators behind it do. With a larger share, an operator of the vector
#: track loads less; its neighbours on the tensor track load more. With more chunks, the first
#: product of an image begins earlier, and there are more instructions to fetch. In less room,
#: an operator has tiles that estimates do not prefer, but that may be faster all the same.
SHARES: Mapping[str, Sequence[int]] = {
    WGT_EIGHTHS: (1, 2, 3, 4), SHARE_SIXTEENTHS: range(1, 16), IMAGE_CHUNKS: (1, 2, 4, 8),
    ROOM_TIMES: tuple(1 << n for n in range(16)),
}  # fmt: skip
_LEGAL: Mapping[str, Sequence[KnobValue]] = {
    ADDITION: (APART, FUSED), EXPANSION: (APART, FUSED), TRACK: TRACKS,
    CLASSIFIER: CLASSIFIERS, **SHARES,
}  # fmt: skip
#: By the other track of a template, the knob that says whether an operator is there, and its value.
_OTHER_TRACKS = {Track.VECTOR: (TRACK, ON_VECTOR), Track.CLASSIFIER: (CLASSIFIER, BESIDE)}
#: Parts of an image where no program decides.
USUAL_CHUNKS = 1
#: Bounds that are tried for :meth:`.InvertedResiduals.cost_ratio`. Estimates of one operator
#: do not know what its neighbours leave of the bus: where that is little, one that loads less is
#: better than its own cycles say.
BOUNDS = (0.0, 1.0, 1.1, 1.2)
#: Shares become larger or smaller by at most so many sixteenths.
MOST_STEPS = 5


@dataclass(frozen=True)
class ProgramPlan:
    """Choices for all operators of a program, except those whose knobs a person gives.

    Attributes
    ----------
    bound : the most that a fused pair of convolutions may be expected to cost, as a multiple of
        what both cost apart
    addition : whether convolutions add images to their results
    share_steps : sixteenths that are added to the share of the scratchpads which a template of the
        vector track usually takes; negative for a smaller share
    wgt_eighths : eighths of ``wgt`` for an operator's weights
    image_chunks : chunks in which an image is loaded, each with a product of its own
    track : the track of normalisations and transpositions, which may be on either
    classifier : whether a dense layer behind a mean has a track of its own
    room_times : times the entries of a preset that operators may use; None: all entries
    """

    bound: float = BOUNDS[0]
    addition: str = APART
    share_steps: int = 0
    wgt_eighths: int = USUAL_EIGHTHS
    image_chunks: int = USUAL_CHUNKS
    track: str = ON_TENSOR
    classifier: str = BEHIND
    room_times: int | None = None

    def shares(self, template: AcceleratorTemplate) -> Knobs:
        """What an operator with this template takes of what all share."""
        knobs: dict[str, KnobValue] = {}
        if template.other_track is not None:
            name, _ = _OTHER_TRACKS[template.other_track]
            knobs[name] = getattr(self, name)
        template = on_track(template, knobs)
        if template.multiplies or template.track is Track.TENSOR:
            knobs |= {WGT_EIGHTHS: self.wgt_eighths, IMAGE_CHUNKS: self.image_chunks}
        if template.track is not Track.TENSOR:
            legal, share = SHARES[SHARE_SIXTEENTHS], int(16 * template.share)
            knobs[SHARE_SIXTEENTHS] = min(max(share + self.share_steps, legal[0]), legal[-1])
        if self.room_times is not None:
            knobs[ROOM_TIMES] = self.room_times
        return knobs


USUAL_PLAN = ProgramPlan()


def on_track(template: AcceleratorTemplate, shares: Knobs) -> AcceleratorTemplate:
    """The template of an operator with these shares, on its other track if they say so."""
    if template.other_track is None:
        return template
    name, value = _OTHER_TRACKS[template.other_track]
    return moved(template, template.other_track, True) if shares.get(name) == value else template


@lru_cache(maxsize=64)
def moved(template: AcceleratorTemplate, track: Track, multiplies: bool) -> AcceleratorTemplate:
    """The template on another track, where it ``multiplies``, or does not."""
    return _moved_kind(type(template), track, multiplies)(template.machine)


@cache
def _moved_kind(
    kind: type[AcceleratorTemplate], track: Track, multiplies: bool
) -> type[AcceleratorTemplate]:
    return type(kind.__name__, (kind,), {"track": track, "multiplies": multiplies})


def find_plan(
    cycles_of: Callable[[ProgramPlan], float], usual: ProgramPlan = USUAL_PLAN
) -> ProgramPlan:
    """Find the plan whose program takes the fewest cycles. Its choices are made one after the
    other, each with the best of those before it. A choice stays as ``usual`` unless another one
    saves cycles; the share is changed by one sixteenth after the other as long as each saves some.
    """
    best = usual

    def decide(others: Iterable[ProgramPlan]) -> bool:
        """Take one of the others if it is better than the best so far; return whether one is."""
        nonlocal best
        before, best = best, min((best, *others), key=cycles_of)
        return best != before

    decide([replace(best, track=ON_VECTOR)])
    decide(replace(best, bound=bound) for bound in BOUNDS)
    # Fused additions may save cycles only where images come in chunks.
    fused = replace(best, addition=FUSED)
    decide([fused])
    decide(replace(plan, image_chunks=SHARES[IMAGE_CHUNKS][-1]) for plan in (best, fused))
    # It takes room from others, so it is tried before their shares are decided, and again behind.
    decide([replace(best, classifier=BESIDE)])
    for step in (1, -1):
        saves = True
        while saves and abs(best.share_steps) < MOST_STEPS:
            saves = decide([replace(best, share_steps=best.share_steps + step)])
    decide(replace(best, wgt_eighths=eighths) for eighths in SHARES[WGT_EIGHTHS])
    decide([replace(best, classifier=BESIDE)])
    return best


class Planned(Decision[Workload]):
    """Knobs of one operator that follow from a plan, where nobody says otherwise."""

    name = "program"

    def __init__(self, usual: Knobs):
        self.usual = usual

    def space(self, workload: Workload) -> Space:
        return Space({name: _LEGAL[name] for name in self.usual})

    def plan(self, workload: Workload, fixed: Knobs) -> Plan | Refusal:
        return Plan({**self.usual, **fixed})


def has_own_knobs(given: Given, knob: str, *nodes: Node) -> bool:
    """Whether someone gives knobs for operators that might be fused, but not the ``knob`` that
    decides it. Such operators stay apart, because the knobs are for each by itself."""
    own = [name for node in nodes for name in given.get(node.name, {})]
    return bool(own) and knob not in own


def share_of(usual: Fraction, node: Node) -> Fraction:
    """The share of the scratchpads that a node of the vector track takes."""
    sixteenths = node.shares.get(SHARE_SIXTEENTHS)
    return usual if sixteenths is None else Fraction(sixteenths, 16)
