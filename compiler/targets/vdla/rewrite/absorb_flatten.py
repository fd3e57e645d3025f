"""Let a dense layer read the image that is flattened for it.

Flattening an image that lies in blocks of channels moves its elements, and the host would have to
do that between two programs. A convolution with a kernel of the image's size is the same product::

    f = Reshape(x [N,C,H,W]) [N,C*H*W];  y = QDense(f, w [OC,C*H*W])
      ->
    p = QConv2d(x, w [OC,C,H,W]) [N,OC,1,1];  y = Reshape(p) [N,OC]
"""

from __future__ import annotations

from dataclasses import replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.convolution import QConv2d
from ....graph.ops.linear import QDense
from ....graph.ops.movement import Reshape
from ....graph.passes.dead_code import dead_code
from ..machine import ACCELERATOR, HOST


def absorb_flatten(graph: Graph, most_pixels: int) -> Graph:
    """Rewrite dense layers on the accelerator that read the Reshape of an image which the
    accelerator computes. Images of more than ``most_pixels`` pixels stay: their kernel would not
    fit.
    """
    producers = graph.producers()
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    for node in graph.nodes:
        flatten = producers.get(node.inputs[0])
        if flatten is not None and _flattens(graph, producers, flatten, node, most_pixels):
            pair, made = _absorbed(graph, flatten, node)
            nodes += pair
            tensors += made
        else:
            nodes.append(node)
    return dead_code(graph.with_nodes(nodes, *tensors))


def _flattens(
    graph: Graph, producers: dict[str, Node], flatten: Node, node: Node, most_pixels: int
) -> bool:
    if not (isinstance(node.op, QDense) and isinstance(flatten.op, Reshape)):
        return False
    source, image = producers.get(flatten.inputs[0]), graph[flatten.inputs[0]].shape
    behind = source is not None and source.target == node.target == ACCELERATOR
    moved = flatten.target == HOST and len(image) == 4 and image[0] == flatten.op.shape[0]
    return behind and moved and image[2] * image[3] <= most_pixels


def _absorbed(graph: Graph, flatten: Node, node: Node) -> tuple[list[Node], list[Tensor]]:
    """The convolution and the Reshape behind it, and the new tensors."""
    op, (_, weight_name, bias) = node.op_as(QDense), node.inputs
    image, weight, y = flatten.inputs[0], graph[weight_name], graph.result(node)
    assert weight.data is not None
    _, channels, height, width = graph[image].shape
    kernel = weight.data.reshape(-1, channels, height, width)
    wide = Tensor.constant(f"{node.output}.kernel", kernel)
    pixel = replace(y, name=f"{node.output}.pixel", shape=(*y.shape, 1, 1))
    product = QConv2d((1, 1), (0, 0, 0, 0), (1, 1), 1, op.x_zero_point, op.requant)
    conv = replace(node, op=product, inputs=(image, wide.name, bias), output=pixel.name)
    name, reason = f"{node.name}.flat", "no data moves"
    back = Node(name, Reshape(y.shape), (pixel.name,), node.output, ACCELERATOR, reason)
    return [conv, back], [wide, pixel]
