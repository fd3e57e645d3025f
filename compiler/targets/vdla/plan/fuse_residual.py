"""Whether a convolution adds the image of a residual connection to its result, or an operator of
its own does (``rewrite/fuse_epilogues.py``)."""

from __future__ import annotations

from dataclasses import dataclass

from ....choose.chooser import Given
from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Decision, Plan
from ....graph.ir import Graph, Node

#: The name of the knob.
ADDITION = "addition"
#: Its values: an operator of its own adds the image, or the convolution does.
APART, JOINED = "apart", "joined"


@dataclass(frozen=True)
class JoiningWorkload(Workload):
    """Channels that a convolution reads and makes, and places of its result."""

    depth: int
    channels: int
    places: int


class Joining(Decision[JoiningWorkload]):
    """Which operator adds the image of a residual connection; ``usual`` where nobody says."""

    name = "joining"

    def __init__(self, usual: str):
        self.usual = usual

    def workload(self, graph: Graph, node: Node) -> JoiningWorkload:
        """The workload of a convolution."""
        channels, depth = graph[node.inputs[1]].shape[:2]
        height, width = graph.result(node).shape[2:]
        return JoiningWorkload(depth, channels, height * width)

    def space(self, workload: JoiningWorkload) -> Space:
        return Space({ADDITION: (APART, JOINED)})

    def plan(self, workload: JoiningWorkload, fixed: Knobs) -> Plan | Refusal:
        return Plan({ADDITION: self.usual})


def has_own_knobs(given: Given, knob: str, *nodes: Node) -> bool:
    """Whether someone gives knobs for operators that might be joined, but not the ``knob`` that
    decides it. Such operators stay apart, because the knobs are for each by itself."""
    own = [name for node in nodes for name in given.get(node.name, {})]
    return bool(own) and knob not in own
