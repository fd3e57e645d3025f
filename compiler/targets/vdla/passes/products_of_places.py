"""Let the accelerator compute products of two activations: their matrices become images.

The leading dimensions of the matrices, such as heads, become groups of channels, rows become places
and the dimension that is summed becomes channels, in whole blocks (``'``)::

    y = QMatMul(a [..,M,K], b [..,K,N])
      ->
    y' = QGroupMatMul(a' [1,G*K',M,1], b' [1,G*K',N,1]) [1,G*N',M,1]
    y = Reshape(Transpose(Slice(Reshape(y'))))

An operand that is an image of the accelerator with other dimensions, which it mostly is, is read as
that image: nothing moves. Where its channels and places have changed roles, it is transposed on the
accelerator (TransposeGroups). Any other operand is laid out by the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ....graph.ir import Graph, Node, Tensor, infer
from ....graph.ops.base import Op
from ....graph.ops.linear import QMatMul
from ....graph.ops.movement import Identity, Pad, Reshape, Slice, Transpose
from ....graph.ops.places import QGroupMatMul, TransposeGroups
from ....graph.passes.dead_code import dead_code
from ..machine import ACCELERATOR, HOST

MOVES = (Identity, Reshape, Slice, Transpose)
WHY = "a matrix becomes the places of an image, or these become a matrix"
TRANSPOSED = "channels and places change roles for a product of two activations"


def products_of_places(graph: Graph, block: int) -> Graph:
    """Rewrite the products of two activations that are on the accelerator."""
    if not any(map(_is_product, graph.nodes)):
        return graph
    images = _Images(graph, block)
    for node in graph.nodes:
        if _is_product(node):
            images.product(node)
        else:
            images.append(images.direct(node))
    return dead_code(graph.with_nodes(images.nodes, *images.made.values()))


def _is_product(node: Node) -> bool:
    return isinstance(node.op, QMatMul) and node.target == ACCELERATOR


@dataclass
class _Images:
    """The graph while it is rewritten: its nodes, the tensors that are new, and what makes each."""

    graph: Graph
    block: int
    nodes: list[Node] = field(default_factory=list)
    made: dict[str, Tensor] = field(default_factory=dict)
    producers: dict[str, Node] = field(default_factory=dict)

    def product(self, node: Node) -> None:
        """Append the product of two images, and its way back to a matrix."""
        op, (a, b) = node.op, node.inputs
        assert isinstance(op, QMatMul)
        *lead, places, depth = self[a].shape
        groups, others = prod(lead), self[b].shape[-1]
        second, is_filled = self.operand(node, b, (groups, depth, others), op.b_zero_point)
        first, _ = self.operand(
            node, a, (groups, places, depth), op.a_zero_point, rows=True, is_filled=is_filled
        )
        width = self.whole(others)
        product = QGroupMatMul(groups, width, op.a_zero_point, op.b_zero_point, op.requant)
        image = self.add(node.name, product, (first, second), f"{node.output}.image", ACCELERATOR)
        self.nodes[-1] = self.producers[image] = replace(self.nodes[-1], reason=node.reason)
        apart = self.moved(node, Reshape((groups, width, places)), image, "apart")
        if width != others:
            kept = Slice((0, 0, 0), (1, 1, 1), (groups, others, places))
            apart = self.moved(node, kept, apart, "kept")
        rows = self.moved(node, Transpose((0, 2, 1)), apart, "rows")
        shape = self.graph.result(node).shape
        back = Node(f"{node.name}.back", Reshape(shape), (rows,), node.output, HOST, WHY)
        self.append(back)

    def operand(
        self,
        node: Node,
        name: str,
        shape: tuple[int, int, int],
        zero_point: int,
        rows: bool = False,
        is_filled: bool = False,
    ) -> tuple[str, bool]:
        """The image of an operand, [1, groups * whole blocks, places, 1], and whether its channels
        beyond the matrix are the zero point.

        ``shape`` has groups, and rows and columns of a matrix. Its places are the ``rows``, or the
        columns. ``is_filled``: what is beyond the matrix does not matter, because the other operand
        is the zero point there.
        """
        source, origin = self.origin(name)
        order = origin.reshape(shape) if rows else origin.reshape(shape).transpose(0, 2, 1)
        groups, places, depth = order.shape
        width = self.whole(depth)
        g, p, c = np.ogrid[:groups, :places, :depth]
        as_it_is = (order == (g * width + c) * places + p).all()
        fits = self.is_image(source, groups * width, places) and (is_filled or depth == width)
        if fits and as_it_is:
            return source, depth == width
        turned = (order == (g * places + p) * depth + c).all()
        fits = self.is_image(source, groups * places, depth) and places % self.block == 0
        if fits and turned:
            turn = TransposeGroups(groups, width, zero_point)
            return self.once(f"{node.name}.turned", turn, source, "turned"), True
        return self.laid_out(node, name, shape, zero_point, rows), True

    def laid_out(
        self, node: Node, name: str, shape: tuple[int, int, int], zero_point: int, rows: bool
    ) -> str:
        """The image of an operand by the host."""
        label = "first" if rows else "second"
        x = self.moved(node, Reshape(shape), name, f"{label}.apart")
        if rows:
            x = self.moved(node, Transpose((0, 2, 1)), x, f"{label}.channels")
        groups, depth, places = self[x].shape
        width = self.whole(depth)
        if width != depth:
            fill = Tensor.constant(f"{node.output}.{label}.zero", np.array(zero_point, np.int8))
            self.made[fill.name] = fill
            op = Pad("constant", (0, 0, 0, 0, width - depth, 0))
            x = self.moved(node, op, x, f"{label}.blocks", fill.name)
        return self.moved(node, Reshape((1, groups * width, places, 1)), x, f"{label}.image")

    def direct(self, node: Node) -> Node:
        """The node. Where it is on the accelerator, and moves of the host change nothing between an
        image of the accelerator and an operand, it reads that image."""
        if node.target != ACCELERATOR:
            return node
        return replace(node, inputs=tuple(map(self.unmoved, node.inputs)))

    def unmoved(self, name: str) -> str:
        """The image of the accelerator that an operand is, or the operand itself."""
        source, origin = self.origin(name)
        same = self.is_made(source) and self[source].shape == self[name].shape
        return source if same and (np.diff(origin.reshape(-1)) == 1).all() else name

    def is_image(self, name: str, channels: int, places: int) -> bool:
        """Whether a tensor is such an image that the accelerator makes."""
        return self.is_made(name) and self[name].shape == (1, channels, places, 1)

    def is_made(self, name: str) -> bool:
        """Whether the accelerator makes a tensor."""
        node = self.producers.get(name)
        return node is not None and node.target == ACCELERATOR

    def origin(self, name: str) -> tuple[str, np.ndarray]:
        """The tensor whose elements a tensor has, and the place of each of its elements there."""
        moves: list[Op] = []
        while (node := self.producers.get(name)) is not None and isinstance(node.op, MOVES):
            moves.append(node.op)
            name = node.inputs[0]
        shape = self[name].shape
        places = np.arange(prod(shape), dtype=np.int64).reshape(shape)
        for op in reversed(moves):
            places = op.evaluate(places)
        return name, places

    def moved(self, node: Node, op: Op, source: str, label: str, *others: str) -> str:
        """Append a move by the host, and return its result."""
        inputs = (source, *others)
        return self.add(f"{node.name}.{label}", op, inputs, f"{node.output}.{label}", HOST)

    def once(self, name: str, op: Op, source: str, label: str) -> str:
        """The result of an operator of the accelerator on one image, appended unless it is there:
        several products may have one operand."""
        for node in self.nodes:
            if node.op == op and node.inputs == (source,):
                return node.output
        return self.add(name, op, (source,), f"{name}.{label}", ACCELERATOR)

    def add(self, name: str, op: Op, inputs: tuple[str, ...], output: str, target: str) -> str:
        """Append a node with a new result."""
        reason = WHY if target == HOST else TRANSPOSED
        shape, dtype = infer(op, tuple(self[i] for i in inputs), name)
        self.made[output] = Tensor(output, shape, dtype)
        self.append(Node(name, op, inputs, output, target, reason))
        return output

    def append(self, node: Node) -> None:
        """Append a node."""
        self.nodes.append(node)
        self.producers[node.output] = node

    def whole(self, channels: int) -> int:
        """Channels of whole blocks that hold so many."""
        return -(-channels // self.block) * self.block

    def __getitem__(self, name: str) -> Tensor:
        return self.made.get(name) or self.graph[name]
