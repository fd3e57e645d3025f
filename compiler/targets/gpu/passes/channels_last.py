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
from dataclasses import dataclass

import numpy as np

from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.channels_last import TO_FIRST, TO_LAST, ChannelsLast
from ....graph.ops.convolution import Conv2d, QConv2d
from ....graph.ops.elementwise import Add, Clip, Relu
from ....graph.ops.in_phases import InPhases
from ....graph.ops.integer import QAdd
from ....graph.ops.movement import Transpose
from ....graph.ops.pooling import AvgPool, MaxPool, QMaxPool
from ...common.relayout import Relayout
from ..templates.product import LEAST_CHANNELS
from .window_rows import WindowRows, window_rows

#: Whether a convolution is worth another layout.
Pays = Callable[[Graph, Node], bool]


def channels_last(graph: Graph, pays: Pays, float_bytes: int) -> Graph:
    """The graph with the convolutions that it ``pays`` for, and operators that can follow them, on
    images whose channels lie side by side. A factor that is a float has ``float_bytes`` in a
    product."""
    return _ChannelsLast(graph, pays, float_bytes).run()


@dataclass
class _ChannelsLast(Relayout):
    suffix = "last"
    conversions = ("to_last", "to_first")

    pays: Pays
    float_bytes: int

    def into(self) -> Op:
        return Transpose(TO_LAST)

    def back(self, name: str) -> Op:
        return Transpose(TO_FIRST)

    def add(self, node: Node) -> None:
        match node.op:
            case Conv2d() | QConv2d() as op if self._moves(node, op):
                weight = self._weight(node, lambda w: w.transpose(TO_LAST))
                image = self.in_other(node.inputs[0])
                self.emit(node, ChannelsLast(op), image, weight, *node.inputs[2:])
            case Conv2d() | QConv2d() as op if rows := self._rows(node, op):
                weight = self._weight(node, rows.weights)
                name = f"{node.name}.padded"
                image = self.step(name, name, rows.image, self.in_plain(node.inputs[0]))
                self.emit(node, ChannelsLast(rows.op), image, weight, *node.inputs[2:])
            case InPhases() if self._is_wide(node):
                image = self.in_other(node.inputs[0])
                self.emit(node, ChannelsLast(node.op), image, *node.inputs[1:])
            case MaxPool() | AvgPool() | QMaxPool() if node.inputs[0] in self.moved:
                self.emit(node, ChannelsLast(node.op), self.moved[node.inputs[0]])
            case Relu() | Clip() if node.inputs[0] in self.moved:
                self.emit(node, node.op, self.moved[node.inputs[0]])
            case Add() | QAdd() if self.adds(node) and len(self.graph.result(node).shape) == 4:
                self.emit(node, node.op, *map(self.in_other, node.inputs))
            case _:
                self.keep(node, node.op, *map(self.in_plain, node.inputs))

    def _moves(self, node: Node, op: Conv2d | QConv2d) -> bool:
        """Whether a convolution gets the other layout: it pays, or is depthwise behind one."""
        channels = self.graph[node.inputs[0]].shape[1]
        if not self._is_known(node):
            return False
        if op.groups == 1:
            return self._is_wide(node)
        return node.inputs[0] in self.moved and op.groups == channels

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
        return self.is_constant_beyond_image(node) and len(self.graph.result(node).shape) == 4

    def _weight(self, node: Node, move: Callable[[np.ndarray], np.ndarray]) -> str:
        """A convolution's weights with channels last."""
        return self.constant(f"{node.name}.weight_last", move(self.data(node.inputs[1])))
