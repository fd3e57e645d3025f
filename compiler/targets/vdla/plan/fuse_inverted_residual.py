"""Whether an expanded image stays on chip for the depthwise convolution that reads it
(``rewrite/fuse_inverted_residuals.py``)."""

from __future__ import annotations

from ....choose.space import Knobs, Refusal, Space
from ....choose.template import Decision, Plan
from ..cost.inverted_residual import cost_ratio
from ..machine import Machine
from ..templates.inverted_residual import InvertedResidualWorkload
from .fuse_residual import APART, JOINED

#: The name of the knob.
EXPANSION = "expansion"
#: Of these bounds for :func:`~..expansion.cost_ratio`, that is taken whose program is estimated to
#: end first. Estimates of one operator do not know what its neighbours leave of the bus: where
#: that is little, one that loads less is better than its own cycles say.
BOUNDS = (0.0, 1.0, 1.1, 1.2)


class Expanding(Decision[InvertedResidualWorkload]):
    """Which operator computes an expanded image: one of its own, or the one that filters it, if
    that costs up to ``bound`` times as much."""

    name = "expanding"

    def __init__(self, machine: Machine, bound: float):
        self.machine, self.bound = machine, bound

    def space(self, workload: InvertedResidualWorkload) -> Space:
        return Space({EXPANSION: (APART, JOINED)})

    def plan(self, workload: InvertedResidualWorkload, fixed: Knobs) -> Plan | Refusal:
        ratio = cost_ratio(workload.expansion, workload.context, self.machine)
        return Plan({EXPANSION: JOINED if ratio <= self.bound else APART})
