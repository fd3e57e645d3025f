"""The base of the processor's templates, which schedule an operator's tensor expression."""

from __future__ import annotations

from abc import abstractmethod

from ....choose.space import Knobs, Refusal, Space
from ....choose.template import Template
from ....graph.ir import Graph, Node
from ....te.schedule import Schedule
from ...common.workload import OperatorWorkload
from ..processor import Processor


class CpuTemplate(Template[OperatorWorkload]):
    """A template whose operators become machine code."""

    def __init__(self, processor: Processor):
        self.processor = processor

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "machine code"

    def space(self, workload: OperatorWorkload) -> Space:
        return Space({})

    @abstractmethod
    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        """Schedule the operator's expression, whose last stage is the result."""
