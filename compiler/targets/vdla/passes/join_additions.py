"""Let a convolution add the constants that are added to its result.

ONNX Runtime's quantiser leaves the bias of a matrix product as an addition of its own, between two
pairs::

    h = QConv2d(x, w, b);  y = QAddChannels(h)      ->      y = QConvAddChannels(x, w, b)

The result of the product is rounded to int8 as before, but it does not go to DRAM.
"""

from __future__ import annotations

from dataclasses import replace

from ....graph.ir import Graph
from ....graph.ops.convolution import QConv2d
from ....graph.ops.places import QAddChannels, QConvAddChannels
from ..machine import ACCELERATOR


def join_additions(graph: Graph) -> Graph:
    """Join additions with convolutions in one group whose results nothing else reads."""
    producers, readers = graph.producers(), graph.consumers()
    joined, gone = {}, set()
    for node in graph.nodes:
        source = producers.get(node.inputs[0]) if node.inputs else None
        if not isinstance(node.op, QAddChannels) or node.target != ACCELERATOR or source is None:
            continue
        alone = len(readers[source.output]) == 1 and source.output not in graph.outputs
        one = isinstance(source.op, QConv2d) and source.op.groups == 1
        if alone and one and source.target == ACCELERATOR:
            assert isinstance(source.op, QConv2d)
            op = QConvAddChannels(source.op, node.op)
            joined[node.output] = replace(source, op=op, output=node.output)
            gone.add(source.output)
    nodes = [joined.get(n.output, n) for n in graph.nodes if n.output not in gone]
    return graph.with_nodes(nodes)
