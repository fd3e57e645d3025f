"""Let the accelerator compute a dense layer of more rows than its batch.

Rows become positions of one image, and the layer becomes a 1x1 convolution::

    y = QDense(x [N,K], w [OC,K]) [N,OC]
      ->
    x' = Transpose(Reshape(x)) [1,K,N,1];  y' = QConv2d(x', w [OC,K,1,1]) [1,OC,N,1]
    y = Reshape(Transpose(y'))

Element-wise operators between two such layers work on the image, too, so that nothing moves there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.convolution import QConv2d
from ....graph.ops.integer import QAdd, QAddFixed, QTable
from ....graph.ops.linear import QDense
from ....graph.ops.movement import Reshape, Transpose
from ....graph.passes.dead_code import dead_code
from ..machine import ACCELERATOR, HOST

ELEMENTWISE = (QAdd, QAddFixed, QTable)
TURN = (2, 1, 0, 3)
WHY = "rows become the places of an image, or these become rows"


def dense_as_convolution(graph: Graph, batch: int) -> Graph:
    """Rewrite dense layers on the accelerator of more than ``batch`` rows."""
    images = _Images(graph)
    for node in graph.nodes:
        images.node(node, batch)
    return dead_code(graph.with_nodes(images.nodes, *images.tensors.values()))


@dataclass
class _Images:
    """The graph while it is rewritten; ``names`` has the image of each matrix that has one."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def node(self, node: Node, batch: int) -> None:
        result = self.graph.result(node)
        many = node.target == ACCELERATOR and len(result.shape) == 2 and result.shape[0] > batch
        if many and isinstance(node.op, QDense):
            self.dense(node, node.op)
        elif many and isinstance(node.op, ELEMENTWISE) and set(node.inputs) <= set(self.names):
            image = self.image(result)
            self.nodes.append(
                replace(node, inputs=tuple(self.names[i] for i in node.inputs), output=image)
            )
            self.back(node)
        else:
            self.nodes.append(node)

    def dense(self, node: Node, op: QDense) -> None:
        x, weight, bias = self.graph.operands(node)
        assert weight.data is not None
        if x.name not in self.names:
            column = self.add(replace(x, name=f"{x.name}.column", shape=(*x.shape, 1, 1)))
            name = self.image(x)
            self.host(f"{node.name}.column", Reshape((*x.shape, 1, 1)), x.name, column)
            self.host(f"{node.name}.places", Transpose(TURN), column, name)
        kernel = weight.data.reshape(*weight.shape, 1, 1)
        wide = self.add(Tensor.constant(f"{node.output}.kernel", kernel))
        product = QConv2d((1, 1), (0, 0, 0, 0), (1, 1), 1, op.x_zero_point, op.requant)
        image = self.image(self.graph.result(node))
        inputs = (self.names[x.name], wide, bias.name)
        self.nodes.append(replace(node, op=product, inputs=inputs, output=image))
        self.back(node)

    def image(self, matrix: Tensor) -> str:
        """Add a tensor [1, C, N, 1] for a matrix [N, C], its image."""
        rows, channels = matrix.shape
        name = self.add(replace(matrix, name=f"{matrix.name}.image", shape=(1, channels, rows, 1)))
        self.names[matrix.name] = name
        return name

    def back(self, node: Node) -> None:
        """Turn an image back into its matrix, for other readers."""
        matrix = self.graph.result(node)
        column = replace(matrix, name=f"{matrix.name}.turned", shape=(*matrix.shape, 1, 1))
        name = self.names[matrix.name]
        self.host(f"{node.name}.turned", Transpose(TURN), name, self.add(column))
        self.host(f"{node.name}.rows", Reshape(matrix.shape), column.name, matrix.name)

    def host(self, name: str, op: Reshape | Transpose, source: str, result: str) -> None:
        self.nodes.append(Node(name, op, (source,), result, HOST, WHY))

    def add(self, tensor: Tensor) -> str:
        self.tensors[tensor.name] = tensor
        return tensor.name
