"""Products of integers less their zero points, as products of the integers as they are stored.

::

    MatMul(x - zero, weight)      ->      PackedDense(x, w8) - zero * sums of w8
                                              + offsets * sums of (x - zero)

    x uint8, zero computed; weight int32 = w8 + offsets, int8 and int32, an offset for each column

A processor adds products of uint8 and int8 by fours. Zero points of activations that are quantised
dynamically are known only while the network runs. A weight that was uint8 has offsets: less their
zero point, its values need nine bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ....graph.arithmetic.requant import INT8_MAX, INT8_MIN
from ....graph.ir import Graph, Node, Tensor, infer
from ....graph.ops.base import Op
from ....graph.ops.blocked.dense import DOT_WIDTH, PackedDense
from ....graph.ops.convolution import Convolution, StoredConv2d
from ....graph.ops.elementwise import Map, SubtractZeroPoint
from ....graph.ops.layout import in_blocks
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Reshape
from ....graph.ops.reduction import Reduce
from ....graph.passes.dead_code import dead_code
from ....te.expr import Expr, Var


def stored_products(graph: Graph, block: int, dots: bool) -> Graph:
    """The graph with products by constants, whose first operand is a difference, on what that is a
    difference of: matrices in blocks of ``block`` columns, and convolutions. Without ``dots``, the
    instruction that adds products by fours, matrices stay int32, and convolutions as they are."""
    producers, nodes, tensors = graph.producers(), list[Node](), dict[str, Tensor]()
    for node in graph.nodes:
        product = _find_product(graph, producers, node)
        if product is not None and isinstance(node.op, MatMul):
            product.add_rows(block, dots)
        elif product is not None and dots and graph[product.x].dtype == "uint8":
            product.add_image(node.op_as(Convolution))
        else:
            nodes.append(node)
            continue
        nodes += product.nodes
        tensors |= product.tensors
    return dead_code(graph.with_nodes(nodes, *tensors.values()))


@dataclass
class _Product:
    """A product of ``x - zero``, and the nodes and tensors that take its place. The columns of the
    result are the first axis of the weight, which is ``stored`` plus ``offsets`` of columns."""

    graph: Graph
    node: Node
    x: str
    zero: str
    stored: np.ndarray
    offsets: np.ndarray
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def add_rows(self, block: int, dots: bool) -> None:
        """A product of rows with a matrix."""
        shape, (columns, depth) = self.graph.result(self.node).shape, self.stored.shape
        rows, [difference, _] = Reshape((math.prod(shape[:-1]), depth)), self.node.inputs
        fours = dots and depth % DOT_WIDTH == 0 and self.graph[self.x].dtype == "uint8"
        if fours:
            packed = in_blocks(in_blocks(self.stored, block, 0), DOT_WIDTH, 2)
            packed = packed.transpose(0, 2, 1, 3)
        else:
            packed = in_blocks(self.stored + self.offsets[:, None], block, 0).transpose(0, 2, 1)
        x = self._step("rows", rows, self.x if fours else difference)
        y = self._step("blocks", PackedDense(columns), x, self._constant("packed", packed))
        if not fours:
            self.nodes.append(replace(self.node, op=Reshape(shape), inputs=(y,)))
            return
        y, totals = self._step("sums", Reshape(shape), y), ""
        if self.offsets.any():
            totals = self._step("totals", Reduce("+", (len(shape) - 1,), True), difference)
        self._correct(y, totals, (columns,))

    def add_image(self, op: Convolution) -> None:
        """A convolution of images."""
        new = StoredConv2d(op.strides, op.pads, op.dilations, op.groups)  # type: ignore[arg-type]
        y = self._step("sums", new, self.x, self._constant("stored", self.stored), self.zero)
        totals = ""
        if self.offsets.any():
            ones = self._constant("ones", np.ones((1, 1, *self.stored.shape[2:]), np.int32))
            totals = self._step("channels", Reduce("+", (1,), True), self.node.inputs[0])
            totals = self._step("totals", op, totals, ones)
        self._correct(y, totals, (-1, 1, 1))

    def _correct(self, y: str, totals: str, column: tuple[int, ...]) -> None:
        """The result from sums ``y`` of stored integers, and the ``totals`` of differences, if
        there are offsets. Columns have the shape ``column``."""
        sums = self.stored.reshape(len(self.stored), -1).sum(1, dtype=np.int32)
        names = [y, self.zero, self._constant("sums", sums.reshape(column))]
        dtypes = ["int32", "uint8", *["int32"] * 3]
        acc, z, weights, total, offset = (Var(f"x{i}", dtype) for i, dtype in enumerate(dtypes))
        body: Expr = acc - z.astype("int32") * weights
        if totals:
            body += total * offset
            names += [totals, self._constant("offsets", self.offsets.reshape(column))]
        op = Map("ZeroPoints", (acc, z, weights, total, offset)[: len(names)], body)
        self.nodes.append(replace(self.node, op=op, inputs=tuple(names)))

    def _constant(self, label: str, data: np.ndarray) -> str:
        """A constant, which all products by one weight share."""
        name = f"{self.node.inputs[1]}.{label}"
        self.tensors[name] = Tensor.constant(name, np.ascontiguousarray(data))
        return name

    def _step(self, label: str, op: Op, *inputs: str) -> str:
        """A new node, unless it would change nothing; returns its result's name."""
        operands = [self.tensors.get(name) or self.graph[name] for name in inputs]
        if isinstance(op, Reshape) and operands[0].shape == op.shape:
            return inputs[0]
        name, as_part = f"{self.node.output}.{label}", f"{self.node.name}.{label}"
        self.tensors[name] = Tensor(name, *infer(op, operands, name))
        self.nodes.append(replace(self.node, name=as_part, op=op, inputs=inputs, output=name))
        return name


def _find_product(graph: Graph, producers: Mapping[str, Node], node: Node) -> _Product | None:
    """A product whose first operand is a difference with one zero point, and whose second one is a
    constant with values within the range of eight bits in each column; None for others."""
    match node.op:
        case MatMul() if len(graph[node.inputs[1]].shape) == 2:
            of_columns = graph[node.inputs[1]].data
            data = None if of_columns is None else of_columns.T
        case Convolution(_, pads) if len(pads) == 4 and min(pads) >= 0:
            data = graph[node.inputs[1]].data
        case _:
            return None
    made = producers.get(node.inputs[0])
    if made is None or not isinstance(made.op, SubtractZeroPoint) or data is None or not data.size:
        return None
    least, most = (kind(data.reshape(len(data), -1), 1) for kind in (np.min, np.max))
    offsets = np.clip(0, most - INT8_MAX, least - INT8_MIN).astype(np.int32)
    fits = (most - least <= INT8_MAX - INT8_MIN).all() and graph[made.inputs[1]].shape == ()
    # A group would have totals of its own.
    grouped = isinstance(node.op, Convolution) and node.op.groups > 1 and offsets.any()
    if not fits or grouped:
        return None
    x, zero = made.inputs
    stored = (data - offsets.reshape(-1, *[1] * (data.ndim - 1))).astype(np.int8)
    return _Product(graph, node, x, zero, stored, offsets)
