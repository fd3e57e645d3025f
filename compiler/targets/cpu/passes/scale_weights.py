"""Scale the weights of a convolution in the place of its image.

Squeeze-and-excitation multiplies each channel of an image by a value before a convolution reads
it::

    h = Map[a * b](x, s);  y = BlockedConv2d(h, w, c)
                           ->      v = Map[a * b](w, s);  y = BlockedConv2d(x, v, c)

The products are rounded in another order, so results may differ in their last bits.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.blocked.convolution import BlockedConv2d
from ....graph.ops.elementwise import Map
from ....graph.ops.movement import Reshape
from ....te.expr import Binary


def scale_weights(graph: Graph) -> Graph:
    """The graph with weights scaled where they have fewer elements than the image."""
    made: dict[str, list[Node]] = {}
    tensors: list[Tensor] = []
    for scaling, node in graph.links():
        values = _values(graph, scaling) if isinstance(node.op, BlockedConv2d) else None
        if values is None or not _pays(graph, scaling, node):
            continue
        weight = graph[node.inputs[1]]
        # A row of a block's weights has one input channel; several images may have the same values.
        shape = (1, weight.shape[1], 1, 1, weight.shape[4], 1)
        of_rows = Tensor(f"{scaling.output}.rows", shape, "float32")
        scaled = Tensor(f"{scaling.output}.weight", weight.shape, "float32")
        tensors += [of_rows, scaled]
        [image] = [name for name in scaling.inputs if name != values]
        operands = (weight.name, of_rows.name)
        made[scaling.output] = [
            Node(f"{scaling.name}.rows", Reshape(of_rows.shape), (values,), of_rows.name),
            replace(scaling, inputs=operands, output=scaled.name),
        ]
        made[node.output] = [replace(node, inputs=(image, scaled.name, *node.inputs[2:]))]
    nodes = [each for node in graph.nodes for each in made.get(node.output, [node])]
    return graph.with_nodes(nodes, *tensors)


def _values(graph: Graph, node: Node) -> str | None:
    """The values of channels by which a node multiplies an image, if that is what it does."""
    match node.op:
        case Map(args=(a, b), body=Binary("*", left, right)) if {left, right} == {a, b}:
            n, *_, block = shape = graph.result(node).shape
            of_channels = (1, shape[1], 1, 1, block)
            shapes = [graph[name].shape for name in node.inputs]
            if n == 1 and len(shape) == 5 and sorted(shapes) == sorted([shape, of_channels]):
                return node.inputs[shapes.index(of_channels)]
    return None


def _pays(graph: Graph, scaling: Node, node: Node) -> bool:
    """Whether the weight, which is of all channels, has fewer elements than the image."""
    image, weight = graph.result(scaling).shape, graph[node.inputs[1]].shape
    return len(weight) == 6 and weight[1] == image[1] and prod(weight) < prod(image)
