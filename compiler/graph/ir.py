"""The graph: named tensors, nodes in execution order, constants as NumPy arrays; and a printer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ...isa.errors import VdlaError
from .ops.base import Misfit, Op, Type
from .ops.quantisation import Quant
from .text import array_text

Kind = TypeVar("Kind", bound=Op)
#: dtype names of tensors and the NumPy types that hold them.
DTYPES: dict[str, type[np.generic]] = {
    name: np.dtype(name).type
    for name in (
        "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
        "uint64", "bool",
    )
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor: ``data`` is set for constants; ``quant`` says what integers mean, if known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray | None = None
    quant: Quant | None = None

    @staticmethod
    def constant(name: str, data: np.ndarray, quant: Quant | None = None) -> Tensor:
        """A constant tensor of the array's own shape and dtype."""
        return Tensor(name, tuple(data.shape), str(data.dtype), data, quant)

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def type_text(self) -> str:
        """Dtype and shape, such as ``int8[1,8,4,4]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Node:
    """One operator application. ``inputs`` and ``output`` name tensors.

    ``target`` names the target that computes it, and ``reason`` says why there; both are empty
    until the graph is divided among targets. ``shares`` is what the target's plan lets it take of
    what the operators of a program share. ``again`` says that it computes a product that the model
    has once a second time, so that its multiplications are not the model's.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    output: str
    target: str = ""
    reason: str = ""
    shares: Mapping[str, int] = field(default_factory=dict, hash=False)
    again: bool = False

    def op_as(self, kind: type[Kind]) -> Kind:
        """The operator, which is of this class."""
        assert isinstance(self.op, kind)
        return self.op


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in running order; every tensor is an input, a constant or one node's output.

    ``states`` are the initial values of what a model keeps from one run to the next: the last
    inputs are the values before a run, and the last outputs those after it, in the same order.
    ``symbols`` has the inputs of which the model leaves dimensions open: their sizes there, with
    names for those that are open.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor] = field(repr=False)
    states: tuple[np.ndarray, ...] = field(default=(), repr=False)
    symbols: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs without the states."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def results(self) -> tuple[str, ...]:
        """The outputs without the next values of the states."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    @property
    def state_values(self) -> list[tuple[str, str, np.ndarray]]:
        """For each state the input, the output, and the initial value."""
        inputs, outputs = self.inputs[len(self.given) :], self.outputs[len(self.results) :]
        return list(zip(inputs, outputs, self.states, strict=True))

    def operands(self, node: Node) -> tuple[Tensor, ...]:
        """The input tensors of a node, in order."""
        return tuple(self.tensors[name] for name in node.inputs)

    def result(self, node: Node) -> Tensor:
        """The output tensor of a node."""
        return self.tensors[node.output]

    def macs(self, node: Node) -> int:
        """Multiply-accumulates of a node, as the model counts them; float ones too."""
        return node.op.macs(*(tensor.shape for tensor in self.operands(node)))

    def producers(self) -> dict[str, Node]:
        """The node that computes each tensor which is neither input nor constant."""
        return {node.output: node for node in self.nodes}

    def consumers(self) -> dict[str, list[Node]]:
        """For every tensor, the nodes that read it (twice if they read it twice)."""
        readers: dict[str, list[Node]] = {name: [] for name in self.tensors}
        for node in self.nodes:
            for name in node.inputs:
                readers[name].append(node)
        return readers

    def links(self) -> Iterator[tuple[Node, Node]]:
        """Pairs of nodes: the second one is the only reader of the first one's result, as its first
        operand. The result is no output of the graph."""
        producers, readers = self.producers(), self.consumers()
        for node in self.nodes:
            source = producers.get(node.inputs[0]) if node.inputs else None
            if source is None or source.output in self.outputs:
                continue
            if len(readers[source.output]) == 1:
                yield source, node

    def with_nodes(self, nodes: Iterable[Node], *tensors: Tensor) -> Graph:
        """The graph with other nodes and some tensors added or replaced."""
        return replace(
            self, nodes=tuple(nodes), tensors={**self.tensors, **{t.name: t for t in tensors}}
        )


def infer(op: Op, operands: Sequence[Tensor], where: str) -> Type:
    """The shape and dtype of an operator's result.

    Raises
    ------
    VdlaError
        Naming the node ``where``, when the operands do not fit the operator.
    """
    try:
        return op.infer(*((t.shape, t.dtype) for t in operands))
    except Misfit as misfit:
        got = ", ".join(f"{t.name}: {t.type_text}" for t in operands)
        raise VdlaError(f"node {where!r}: {op.name} expects {misfit}, got {got}") from None


def dump(graph: Graph) -> str:
    """The graph as text, a line per tensor or node; equal graphs give equal text."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input  {name}: {graph[name].type_text}" for name in graph.inputs]
    for tensor in graph.tensors.values():
        if tensor.data is not None:
            quant = f" {tensor.quant}" if tensor.quant else ""
            data = array_text(tensor.data)
            lines.append(f"  const  {tensor.name}: {tensor.type_text} {data}{quant}")
    lines += [f"  {_node_text(graph, node)}" for node in graph.nodes]
    lines += [f"  output {name}" for name in graph.outputs]
    lines += [f"  state  {a}, then {b}: {array_text(data)}" for a, b, data in graph.state_values]
    return "\n".join(lines) + "\n"


def _node_text(graph: Graph, node: Node) -> str:
    text = f"{node.output}: {graph[node.output].type_text} = {node.op.name}"
    text += f" {node.name!r}({', '.join(node.inputs)})"
    text += f" {node.op.text}" if node.op.text else ""
    text += f" @{node.target}" if node.target else ""
    return text + (f"  # {node.reason}" if node.reason else "")
