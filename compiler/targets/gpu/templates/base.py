"""The base of the templates: from a node to a schedule, and from a schedule to kernels."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ....choose.space import Knobs, Refusal, Space
from ....choose.template import Template
from ....graph.ir import Graph, Node
from ....te.schedule import Schedule
from ....te.tensor import Tensor
from ...common.workload import OperatorWorkload, workload_of


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A schedule with its parameters: the operands, then attributes that are arrays, whose values
    are ``attributes``, then the result. Their shapes may be others than the graph's, of as many
    elements.
    """

    schedule: Schedule
    args: list[Tensor]
    attributes: tuple[np.ndarray, ...]


class GpuTemplate(Template[OperatorWorkload]):
    """A template whose operators become kernels."""

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "kernels"

    def space(self, workload: OperatorWorkload) -> Space:
        return Space({})

    def workload(self, graph: Graph, node: Node) -> OperatorWorkload:
        """What its speed depends on."""
        return workload_of(graph, node)

    @abstractmethod
    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        """The schedule of a node with these knobs."""
