"""Whether the host packs the windows of a first convolution (``rewrite/pack_windows.py``)."""

from __future__ import annotations

from dataclasses import dataclass

from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Decision, Plan
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ..machine import Machine

#: Values of the knob: the input as the model has it, or whole windows in the place of channels.
PLAIN, PACKED = "plain", "packed"


@dataclass(frozen=True)
class PackingWorkload(Workload):
    """Channels of a convolution's input, and positions of its kernel."""

    channels: int
    taps: int


class Packing(Decision[PackingWorkload]):
    """How the host lays out the input of a convolution."""

    name = "packing"

    def __init__(self, machine: Machine):
        self.machine = machine

    def workload(self, graph: Graph, node: Node) -> PackingWorkload | None:
        """The workload of a convolution; None where there is no choice."""
        op = node.op_as(QConv2d)
        _, channels, kernel_h, kernel_w = graph[node.inputs[1]].shape
        taps = kernel_h * kernel_w
        if op.groups > 1 or op.dilations != (1, 1) or taps == 1:
            return None
        return PackingWorkload(channels, taps)

    def space(self, workload: PackingWorkload) -> Space:
        return Space({"windows": (PLAIN, PACKED)})

    def plan(self, workload: PackingWorkload, fixed: Knobs) -> Plan | Refusal:
        """Packed where that saves multiplications."""
        block, taps = self.machine.params.block, workload.taps
        packed = -(-workload.channels * taps // block)
        saves = packed < -(-workload.channels // block) * taps
        return Plan({"windows": PACKED if saves else PLAIN})
