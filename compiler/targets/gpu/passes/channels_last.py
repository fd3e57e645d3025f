"""Channels side by side: convolutions on tensor cores, and what can follow them, read [N, H, W, C].

::

    y = QConv2d(x, w, b)            x1 = Transpose(x)
    z = QMaxPool(y)           ->    y1 = QConv2d, channels last(x1, w1, b)
    r = Gather(z)                   z1 = QMaxPool, channels last(y1)
                                    z = Transpose(z1);  r = Gather(z)

A tensor changes its layout at most once in each direction. Weights are transposed here. An image of
few channels gets its border and more channels where it changes its layout (``window_rows.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ....graph.ir import Graph, Node, Tensor, infer
from ....graph.ops.base import Op
from ....graph.ops.channels_last import TO_FIRST, TO_LAST, ChannelsLast
from ....graph.ops.convolution import Conv2d, QConv2d
from ....graph.ops.elementwise import Add, Clip, Relu
from ....graph.ops.in_phases import InPhases
from ....graph.ops.integer import QAdd
from ....graph.ops.movement import Transpose
from ....graph.ops.pooling import AvgPool, MaxPool, QMaxPool
from ....graph.passes.dead_code import dead_code
from ..templates.product import LEAST_CHANNELS
from .window_rows import WindowRows, window_rows

#: Whether a convolution is worth another layout.
Pays = Callable[[Graph, Node], bool]


def channels_last(graph: Graph, pays: Pays, float_bytes: int) -> Graph:
    """The graph with the convolutions that it ``pays`` for, and operators that can follow them, on
    images whose channels lie side by side. A factor that is a float has ``float_bytes`` in a
    product."""
    rewriting = _Rewriting(graph, pays, float_bytes)
    for node in graph.nodes:
        rewriting.add(node)
    return rewriting.finish()


@dataclass
class _Rewriting:
    """``nodes`` has the new nodes by output; ``last`` has the name of a tensor's form with channels
    last; ``plain`` has the tensors that exist in the model's own layout."""

    graph: Graph
    pays: Pays
    float_bytes: int
    nodes: dict[str, Node] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tensors |= self.graph.tensors
        constants = (name for name, tensor in self.graph.tensors.items() if tensor.is_constant)
        self.plain |= {*self.graph.inputs, *constants}
        self.target = self.graph.nodes[0].target if self.graph.nodes else ""

    def add(self, node: Node) -> None:
        """Add a node, with channels last where that is possible and pays."""
        match node.op:
            case Conv2d() | QConv2d() as op if self._moves(node, op):
                weight = self._weight(node, self._data(node).transpose(TO_LAST))
                image = self._last(node.inputs[0])
                self._emit(node, ChannelsLast(op), image, weight, *node.inputs[2:])
            case Conv2d() | QConv2d() as op if rows := self._rows(node, op):
                weight = self._weight(node, rows.weights(self._data(node)))
                image = self._padded(node, rows)
                self._emit(node, ChannelsLast(rows.op), image, weight, *node.inputs[2:])
            case InPhases() if self._is_wide(node):
                image = self._last(node.inputs[0])
                self._emit(node, ChannelsLast(node.op), image, *node.inputs[1:])
            case MaxPool() | AvgPool() | QMaxPool() if node.inputs[0] in self.last:
                self._emit(node, ChannelsLast(node.op), self.last[node.inputs[0]])
            case Relu() | Clip() if node.inputs[0] in self.last:
                self._emit(node, node.op, self.last[node.inputs[0]])
            case Add() | QAdd() if self._adds(node):
                self._emit(node, node.op, *map(self._last, node.inputs))
            case _:
                inputs = tuple(map(self._plain, node.inputs))
                self.nodes[node.output] = replace(node, inputs=inputs)
                self.plain.add(node.output)

    def finish(self) -> Graph:
        """The new graph; its outputs are in the model's layout."""
        for name in self.graph.outputs:
            self._plain(name)
        return dead_code(self.graph.with_nodes(self.nodes.values(), *self.tensors.values()))

    def _moves(self, node: Node, op: Conv2d | QConv2d) -> bool:
        """Whether a convolution gets the other layout: it pays, or is depthwise behind one."""
        channels = self.graph[node.inputs[0]].shape[1]
        if not self._is_known(node):
            return False
        if op.groups == 1:
            return self._is_wide(node)
        return node.inputs[0] in self.last and op.groups == channels

    def _is_wide(self, node: Node) -> bool:
        """Whether a convolution pays, and its channels are read by 16 bytes."""
        channels = self.graph[node.inputs[0]].shape[1]
        return channels % LEAST_CHANNELS == 0 and self.pays(self.graph, node)

    def _rows(self, node: Node, op: Conv2d | QConv2d) -> WindowRows | None:
        """A convolution by rows of windows, where it has few channels and that pays."""
        if not self._is_known(node) or op.groups > 1 or not self.pays(self.graph, node):
            return None
        image, weight = (self.graph[name].shape for name in node.inputs[:2])
        return window_rows(op, image, weight, 1 if isinstance(op, QConv2d) else self.float_bytes)

    def _is_known(self, node: Node) -> bool:
        """Whether a convolution has constant weights, and something to compute."""
        known = all(self.graph[name].is_constant for name in node.inputs[1:])
        empty = 0 in (*self.graph[node.inputs[1]].shape, *self.graph.result(node).shape)
        return known and not empty and len(self.graph.result(node).shape) == 4

    def _data(self, node: Node) -> np.ndarray:
        """A convolution's weights, which are known."""
        data = self.graph[node.inputs[1]].data
        assert data is not None
        return data

    def _weight(self, node: Node, data: np.ndarray) -> str:
        """A convolution's weights with channels last."""
        name = f"{node.name}.weight_last"
        self.tensors[name] = Tensor.constant(name, np.ascontiguousarray(data))
        return name

    def _padded(self, node: Node, rows: WindowRows) -> str:
        """A convolution's image with channels last, its border and more channels."""
        name, inputs = f"{node.name}.padded", (self._plain(node.inputs[0]),)
        shape, dtype = infer(rows.image, tuple(self.tensors[i] for i in inputs), name)
        self.tensors[name] = Tensor(name, shape, dtype)
        self.nodes[name] = Node(name, rows.image, inputs, name, self.target)
        return name

    def _adds(self, node: Node) -> bool:
        a, b = node.inputs
        same = self.graph[a].shape == self.graph[b].shape and len(self.graph[a].shape) == 4
        return same and (a in self.last or b in self.last)

    def _plain(self, name: str) -> str:
        """A tensor in the model's own layout."""
        if name not in self.plain:
            inputs = (self.last[name],)
            node = Node(f"{name}.to_first", Transpose(TO_FIRST), inputs, name, self.target)
            self.nodes[name] = node
            self.plain.add(name)
        return name

    def _last(self, name: str) -> str:
        """A tensor with channels last."""
        if name not in self.last:
            inputs = (self._plain(name),)
            node = Node(f"{name}.to_last", Transpose(TO_LAST), inputs, name, self.target)
            self._emit(node, node.op, *node.inputs)
        return self.last[name]

    def _emit(self, node: Node, op: Op, *inputs: str) -> None:
        output = f"{node.output}.last"
        shape, dtype = infer(op, tuple(self.tensors[i] for i in inputs), output)
        self.tensors[output] = Tensor(output, shape, dtype)
        self.nodes[output] = replace(node, op=op, inputs=inputs, output=output)
        self.last[node.output] = output
