"""Whether a convolution adds the image of a residual connection to its result, or an operator of
its own does (``passes/join_results.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Decision, Plan
from ....graph.ir import Graph, Node
from ..machine import Machine
from ..planner import read_cycles

#: Values of the knob: an operator of its own adds the images, or the convolution does.
APART, JOINED = "apart", "joined"
#: Loads are scarce where what must be read takes at least this share of the products' cycles. In
#: ResNet-18 they are not (0.32), in ResNet-50 they are (0.39, and 0.35 with joined additions).
SCARCE_SHARE = 1 / 3
#: Convolutions add images where loads are scarce, but what the part must read takes less than this
#: share of the cycles of its products (BERT: 0.54). Where it takes more (MobileNet-V2: 1.17),
#: additions of their own hide better behind loads, because their tiles are larger.
ADDED_SHARE = 2 / 3


@dataclass(frozen=True)
class JoiningWorkload(Workload):
    """Channels that a convolution reads and makes, places of its result, and the ``reading`` share
    of its program (:func:`reading_share`)."""

    depth: int
    channels: int
    places: int
    reading: float = field(compare=False)


class Joining(Decision[JoiningWorkload]):
    """Which operator adds the image of a residual connection."""

    name = "joining"

    def __init__(self, machine: Machine):
        self.machine = machine

    def workload(self, graph: Graph, node: Node, reading: float) -> JoiningWorkload:
        """The workload of a convolution."""
        channels, depth = graph[node.inputs[1]].shape[:2]
        height, width = graph.result(node).shape[2:]
        return JoiningWorkload(depth, channels, height * width, reading)

    def space(self, workload: JoiningWorkload) -> Space:
        return Space({"addition": (APART, JOINED)})

    def plan(self, workload: JoiningWorkload, fixed: Knobs) -> Plan | Refusal:
        pays = self.machine.saves_loads and SCARCE_SHARE <= workload.reading < ADDED_SHARE
        return Plan({"addition": fixed.get("addition") or (JOINED if pays else APART)})


def reading_share(graph: Graph, nodes: Sequence[Node], machine: Machine) -> float:
    """The cycles for reading each operand of the nodes once, over those that the tensor core needs
    for their products; 0 where nothing is multiplied."""
    operands = [tensor for node in nodes for tensor in graph.operands(node)]
    read = sum(prod(t.shape) * np.dtype(t.dtype).itemsize for t in operands)
    products = sum(map(graph.macs, nodes)) / machine.params.peak_macs_per_cycle
    return read_cycles(read, machine) / products if products else 0.0
