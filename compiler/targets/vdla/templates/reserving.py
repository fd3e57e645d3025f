"""How much of ``wgt`` the buffers of an operator's weights take, so that weights are loaded far
ahead (``passes/weights_ahead.py``)."""

from __future__ import annotations

from dataclasses import dataclass

from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Decision, Plan
from ....graph.ir import Graph, Node

#: The name of the knob: eighths of ``wgt``.
WGT_EIGHTHS = "wgt_eighths"
#: Its values. With more, an operator's own weights come earlier; with fewer, those of the operators
#: behind it do. Of these that is taken, for all operators, whose program is estimated to end first.
EIGHTHS = (1, 2, 3, 4)
#: Where no program decides.
USUAL_EIGHTHS = 2


@dataclass(frozen=True)
class ReservingWorkload(Workload):
    """The shapes of what an operator of the tensor core reads and makes."""

    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]


class Reserving(Decision[ReservingWorkload]):
    """The share of ``wgt`` for an operator's weights; ``usual`` where nobody says."""

    name = "reserving"

    def __init__(self, usual: int):
        self.usual = usual

    def workload(self, graph: Graph, node: Node) -> ReservingWorkload:
        """The workload of an operator of the tensor core."""
        return ReservingWorkload(
            tuple(graph[name].shape for name in node.inputs), graph.result(node).shape
        )

    def space(self, workload: ReservingWorkload) -> Space:
        return Space({WGT_EIGHTHS: EIGHTHS})

    def plan(self, workload: ReservingWorkload, fixed: Knobs) -> Plan | Refusal:
        return Plan({WGT_EIGHTHS: self.usual})


def wgt_eighths(made: Knobs) -> int:
    """The eighths of ``wgt`` that an operator's knobs say."""
    return int(made.get(WGT_EIGHTHS, USUAL_EIGHTHS))
