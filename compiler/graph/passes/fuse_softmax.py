"""Turn the softmax of attention, between Dequantize and Quantize, into integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...te.expr import Binary, Call
from ..ir import Graph, Node
from ..ops.elementwise import Map
from ..ops.linear import QMatMul
from ..ops.quantisation import Dequantize, Quantize
from ..ops.reduction import Reduce
from ..ops.softmax import MOST_KEYS, MOST_ROOM, QTableSoftmax
from .fuse_tables import is_int8

#: Scales of a result for which the inverse of a sum is exact enough, and which can be requantised.
OUT_SCALES = (2.0 ** -(8 + MOST_ROOM), 1.0)


def fuse_softmax(graph: Graph) -> Graph:
    """``Quantize(softmax(Dequantize(x)))`` becomes ``QTableSoftmax(x)``, where it runs along the
    last axis and a product of two activations takes its rows.

    It does for every target, so that a model's values are the same on all of them. Any other
    softmax, such as that of a classifier, stays in float32.
    """
    producers = graph.producers()
    weights = {node.inputs[0] for node in graph.nodes if isinstance(node.op, QMatMul)}
    nodes = []
    for node in graph.nodes:
        if isinstance(node.op, Quantize) and node.output in weights:
            node = _Softmax(graph, producers).fused(node)
        nodes.append(node)
    return graph.with_nodes(nodes)


@dataclass
class _Softmax:
    """Matches the float operators that a softmax is made of."""

    graph: Graph
    producers: Mapping[str, Node]

    def fused(self, quantize: Node) -> Node:
        """The Quantize as a softmax in integers, or as it is."""
        assert isinstance(quantize.op, Quantize)
        share, out = self.producers.get(quantize.inputs[0]), quantize.op.quant
        source = self.source(share) if share is not None and is_int8(out) else None
        if share is None or source is None:
            return quantize
        assert isinstance(source.op, Dequantize)
        shape, scale = self.graph.result(quantize).shape, float(out.scale[0])
        in_scale, (low, high) = float(source.op.quant.scale[0]), OUT_SCALES
        is_row = len(shape) > 1 and 0 < shape[-1] <= MOST_KEYS
        if not (is_row and in_scale > 0 and low <= scale <= high):
            return quantize
        op = QTableSoftmax(len(shape) - 1, in_scale, scale, int(out.zero_point[0]))
        return replace(quantize, name=share.name, op=op, inputs=source.inputs, reason="")

    def source(self, share: Node) -> Node | None:
        """The Dequantize whose softmax along the last axis a node ends."""
        match share.op:
            case Map(args=args, body=Binary("/", above, below)) if (above, below) == args:
                power = self.producers.get(share.inputs[0])
            case _:
                return None
        match power:
            case Node(op=Map(args=args, body=Call("exp", (Binary("-", x, m),)))) if (x, m) == args:
                source = self.producers.get(power.inputs[0])
            case _:
                return None
        most, total = power.inputs[1], share.inputs[1]
        reduced = self.is_reduced(most, "max", power.inputs[0])
        if not (reduced and self.is_reduced(total, "+", power.output)):
            return None
        match source:
            case Node(op=Dequantize(quant)) if is_int8(quant):
                return source
        return None

    def is_reduced(self, name: str, kind: str, source: str) -> bool:
        """Whether a tensor is another one, reduced along its last axis."""
        node = self.producers.get(name)
        last = len(self.graph[source].shape) - 1
        if node is None or node.inputs != (source,):
            return False
        return node.op == Reduce(kind, (last,), True)
