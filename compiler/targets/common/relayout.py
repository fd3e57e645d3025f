"""Another layout for the operators of a graph that gain by it: a tensor changes its layout at most
once in each direction, where an operator in one layout meets one in the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ...graph.ir import Graph, Node, Tensor, infer
from ...graph.ops.base import Op
from ...graph.passes.dead_code import dead_code


@dataclass
class Relayout(ABC):
    """Makes the new graph, node by node.

    Attributes
    ----------
    graph : the graph as it is
    nodes : the new nodes, by output
    tensors : those of both graphs
    moved : the name of a tensor's form in the other layout
    plain : the tensors that exist in the model's own layout
    """

    #: What ends the names of tensors in the other layout; the names of the two conversions.
    suffix: ClassVar[str]
    conversions: ClassVar[tuple[str, str]]

    graph: Graph
    nodes: dict[str, Node] = field(default_factory=dict, kw_only=True)
    tensors: dict[str, Tensor] = field(default_factory=dict, kw_only=True)
    moved: dict[str, str] = field(default_factory=dict, kw_only=True)
    plain: set[str] = field(default_factory=set, kw_only=True)

    def __post_init__(self) -> None:
        self.tensors |= self.graph.tensors
        constants = (name for name, tensor in self.graph.tensors.items() if tensor.is_constant)
        self.plain |= {*self.graph.inputs, *constants}
        self.target = self.graph.nodes[0].target if self.graph.nodes else ""

    @abstractmethod
    def add(self, node: Node) -> None:
        """Add a node, in the other layout where that is possible and pays."""

    @abstractmethod
    def into(self) -> Op:
        """The operator that puts a tensor into the other layout."""

    @abstractmethod
    def back(self, name: str) -> Op:
        """The operator that brings a tensor back."""

    def run(self) -> Graph:
        """The new graph; its outputs are in the model's layout."""
        for node in self.graph.nodes:
            self.add(node)
        for name in self.graph.outputs:
            self.in_plain(name)
        return dead_code(self.graph.with_nodes(self.nodes.values(), *self.tensors.values()))

    def in_plain(self, name: str) -> str:
        """A tensor in the model's own layout."""
        if name not in self.plain:
            label = f"{name}.{self.conversions[1]}"
            self.nodes[name] = Node(label, self.back(name), (self.moved[name],), name, self.target)
            self.plain.add(name)
        return name

    def in_other(self, name: str) -> str:
        """A tensor in the other layout."""
        if name not in self.moved:
            inputs = (self.in_plain(name),)
            node = Node(f"{name}.{self.conversions[0]}", self.into(), inputs, name, self.target)
            self.emit(node, node.op, *node.inputs)
        return self.moved[name]

    def emit(self, node: Node, op: Op, *inputs: str) -> None:
        """A node whose result is in the other layout."""
        output = f"{node.output}.{self.suffix}"
        self.define(output, op, inputs)
        self.nodes[output] = replace(node, op=op, inputs=inputs, output=output)
        self.moved[node.output] = output

    def keep(self, node: Node, op: Op, *inputs: str) -> None:
        """A node whose result is in the model's own layout."""
        self.nodes[node.output] = replace(node, op=op, inputs=inputs)
        self.plain.add(node.output)

    def step(self, name: str, output: str, op: Op, *inputs: str) -> str:
        """A new node whose result is in neither layout."""
        self.define(output, op, inputs)
        self.nodes[output] = Node(name, op, inputs, output, self.target)
        return output

    def define(self, name: str, op: Op, inputs: tuple[str, ...]) -> None:
        """A new tensor."""
        shape, dtype = infer(op, tuple(self.tensors[i] for i in inputs), name)
        self.tensors[name] = Tensor(name, shape, dtype)

    def constant(self, name: str, data: np.ndarray) -> str:
        """A new constant."""
        self.tensors[name] = Tensor.constant(name, np.ascontiguousarray(data))
        return name

    def data(self, name: str) -> np.ndarray:
        """The value of a constant."""
        data = self.graph[name].data
        assert data is not None
        return data

    def is_constant_beyond_image(self, node: Node) -> bool:
        """Whether all operands but the first are constants, and there is something to compute."""
        known = all(self.graph[name].is_constant for name in node.inputs[1:])
        return known and 0 not in (
            *self.graph[node.inputs[1]].shape, *self.graph.result(node).shape
        )  # fmt: skip

    def adds(self, node: Node) -> bool:
        """Whether the operands of an addition have one shape, and one is in the other layout."""
        same = len({self.graph[name].shape for name in node.inputs}) == 1
        return same and any(name in self.moved for name in node.inputs)
