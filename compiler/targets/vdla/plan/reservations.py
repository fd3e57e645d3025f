"""How much an operator takes of what the operators of a program share.

``wgt_eighths`` is the part of ``wgt`` into which its weights are prefetched
(``lower/prefetch_weights.py``). ``share_sixteenths`` is the part of the scratchpads that an
operator of the vector track uses. ``image_parts`` is the number of chunks in which an image is
loaded (``lower/split_k.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Decision, Plan
from ....graph.ir import Graph, Node
from ..machine import USUAL_EIGHTHS

#: The names of the knobs: eighths of ``wgt``, sixteenths of each scratchpad that both tracks use,
#: and parts of an image.
WGT_EIGHTHS, SHARE_SIXTEENTHS = "wgt_eighths", "share_sixteenths"
IMAGE_PARTS = "image_parts"
#: Their values. With more of ``wgt``, an operator's own weights come earlier; with less, those of
#: the operators behind it do. With a larger share, an operator of the vector track loads less; its
#: neighbours on the tensor track load more. With more parts, the first product of an image begins
#: earlier, and there are more instructions to fetch.
RESERVED: Mapping[str, Sequence[int]] = {
    WGT_EIGHTHS: (1, 2, 3, 4), SHARE_SIXTEENTHS: range(1, 16), IMAGE_PARTS: (1, 2, 4, 8),
}  # fmt: skip
#: Parts of an image where no program decides.
USUAL_PARTS = 1


@dataclass(frozen=True)
class ReservingWorkload(Workload):
    """The shapes of what an operator reads and makes, and the knobs that it has."""

    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    names: tuple[str, ...]


class Reserving(Decision[ReservingWorkload]):
    """What an operator takes; the ``usual`` knobs where nobody says."""

    name = "reserving"

    def __init__(self, usual: Knobs):
        self.usual = usual

    def workload(self, graph: Graph, node: Node) -> ReservingWorkload:
        """The workload of an operator."""
        operands = tuple(graph[name].shape for name in node.inputs)
        return ReservingWorkload(operands, graph.result(node).shape, tuple(self.usual))

    def space(self, workload: ReservingWorkload) -> Space:
        return Space({name: RESERVED[name] for name in workload.names})

    def plan(self, workload: ReservingWorkload, fixed: Knobs) -> Plan | Refusal:
        return Plan({**self.usual, **fixed})


def wgt_eighths(made: Knobs) -> int:
    """The eighths of ``wgt`` that an operator's knobs say."""
    return int(made.get(WGT_EIGHTHS, USUAL_EIGHTHS))


def share_of(usual: Fraction, made: Knobs) -> Fraction:
    """The share of the scratchpads that an operator's knobs say; the ``usual`` one if none do."""
    sixteenths = made.get(SHARE_SIXTEENTHS)
    return usual if sixteenths is None else Fraction(int(sixteenths), 16)


def image_parts(made: Knobs) -> int:
    """The parts of an image that an operator's knobs say."""
    return int(made.get(IMAGE_PARTS, USUAL_PARTS))
