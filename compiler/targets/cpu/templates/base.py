"""What every template of the processor brings: a schedule for an operator's tensor expression."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.template import Template
from ....graph.ir import Graph, Node
from ....graph.ops.base import Op, Type
from ....te.schedule import Schedule
from ..processor import Processor


@dataclass(frozen=True)
class CpuWorkload(Workload):
    """An operator on operands of some types; of its attributes those that are no values."""

    operator: str
    attributes: tuple[tuple[str, str], ...]
    operands: tuple[Type, ...]
    result: Type
    op: Op = field(compare=False)


def workload_of(graph: Graph, node: Node) -> CpuWorkload:
    """What a node computes."""
    result, operands = graph.result(node), graph.operands(node)
    return CpuWorkload(
        node.op.name, tuple(_deciding(node.op)), tuple((t.shape, t.dtype) for t in operands),
        (result.shape, result.dtype), node.op,
    )  # fmt: skip


class CpuTemplate(Template[CpuWorkload]):
    """A template whose operators become machine code."""

    def __init__(self, processor: Processor):
        self.processor = processor

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "machine code"

    def space(self, workload: CpuWorkload) -> Space:
        return Space({})

    @abstractmethod
    def apply(self, workload: CpuWorkload, knobs: Knobs, schedule: Schedule) -> None:
        """Schedule the operator's expression, whose last stage is the result."""


def _deciding(op: Op) -> Iterator[tuple[str, str]]:
    """Attributes that are integers or words, which decide how an operator is computed."""
    for name, text in op.attributes():
        value = getattr(op, name)
        parts = value if isinstance(value, tuple) else (value,)
        if all(isinstance(part, int | str) for part in parts):
            yield name, text
