"""Fuse epilogues into convolutions.

ONNX Runtime's quantiser leaves the bias of a matrix product as a separate addition between two QDQ
pairs. Functions such as SiLU are tables of the rounded result. A residual connection adds a second
image to it::

    h = QConv2d(x, w, b);  y = QAddChannels(h)      ->      y = QConvAddChannels(x, w, b)
    h = QConv2d(x, w, b);  y = QTable(h)            ->      y = QConvTable(x, w, b)
    h = QConv2d(x, w, b);  y = QAdd(h, z)           ->      y = QConvAdd(x, w, b, z)

The result of the convolution is still rounded to int8, but it does not go to DRAM.

A depthwise convolution fuses with a table only, also where a reshape that moves no data stands
between them::

    h = QConv2d(x, w, b);  r = Reshape(h);  y = QTable(r)      ->      y = Reshape(QConvTable(..))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.convolution import QConv2d
from ....graph.ops.fused_pairs import EPILOGUES, QConvTable
from ....graph.ops.integer import QAdd, QTable
from ....graph.ops.movement import Reshape
from ....graph.passes.dead_code import dead_code
from ..machine import ACCELERATOR

#: Whether to fuse an addition (the second node) into a convolution (the first one).
AddsImage = Callable[[Node, Node], bool]


def fuse_epilogues(graph: Graph, adds_image: AddsImage) -> Graph:
    """Fuse each ungrouped convolution that has a single reader with this reader.

    Tables on the accelerator are fused, additions of images into 1x1
    convolutions where ``adds_image`` says so. If convolutions compute both operands of an addition,
    ``adds_image`` is asked for the later one first.
    """
    producers, readers = graph.producers(), graph.consumers()
    order = {node.output: index for index, node in enumerate(graph.nodes)}
    fused: dict[str, Node] = {}
    for node in graph.nodes:
        if node.target != ACCELERATOR:
            continue
        sources = [
            producers[name] for name in node.inputs
            if name in producers and len(readers[name]) == 1 and name not in graph.outputs
            and producers[name].target == ACCELERATOR
        ]  # fmt: skip
        for source in sorted(sources, key=lambda found: -order[found.output]):
            made = _fuse(graph, source, node, adds_image)
            if made is not None:
                fused[node.output] = made
                break
    return dead_code(graph.with_nodes(fused.get(n.output, n) for n in graph.nodes))


def fuse_window_tables(graph: Graph) -> Graph:
    """Fuse each table on the accelerator into the depthwise convolution that it alone reads. Where
    the readers of a table look it up themselves, that costs less: this pass comes behind."""
    before = {node.output: source for source, node in graph.links()}
    changed: dict[str, Node] = {}
    made: list[Tensor] = []
    for node in graph.nodes:
        source, moved = before.get(node.output), None
        if source is not None and isinstance(source.op, Reshape):
            source, moved = before.get(source.output), source
        if not isinstance(node.op, QTable) or source is None:
            continue
        nodes, conv = [source, node, *([moved] if moved else [])], source.op
        if not isinstance(conv, QConv2d) or {n.target for n in nodes} != {ACCELERATOR}:
            continue
        if not conv.is_depthwise(graph[source.inputs[1]].shape):
            continue
        fused = replace(source, op=QConvTable(conv, node.op), output=node.output)
        if moved is not None:
            image = replace(graph[source.output], name=f"{node.output}.windows")
            made.append(image)
            fused = replace(fused, output=image.name)
            changed[node.output] = replace(moved, inputs=(image.name,), output=node.output)
            changed[moved.output] = fused
        else:
            changed[node.output] = fused
    return dead_code(graph.with_nodes((changed.get(n.output, n) for n in graph.nodes), *made))


def _fuse(graph: Graph, source: Node, node: Node, adds_image: AddsImage) -> Node | None:
    """The node that fuses a convolution with its reader; None if they do not fuse."""
    conv, last, inputs = source.op, node.op, source.inputs
    pair = EPILOGUES.get(type(last))
    if pair is None or not (isinstance(conv, QConv2d) and conv.groups == 1):
        return None
    if isinstance(last, QAdd):
        is_sum = len(last.factors) == 2 and all(last.factors)
        is_product = graph[inputs[1]].shape[2:] == (1, 1) and is_sum
        if not is_product or node.inputs[0] == node.inputs[1] or not adds_image(source, node):
            return None
        first, other = node.inputs
        if first != source.output:
            other, last = first, replace(last, factors=last.factors[::-1])
        inputs = (*inputs, other)
    return replace(source, op=pair(conv, last), inputs=inputs, output=node.output)
