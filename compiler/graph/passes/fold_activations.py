"""Fold Relu and Clip into the operator that computes their input."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node
from ..ops.base import Bounded
from ..ops.elementwise import Clip, Relu


def fold_activations(graph: Graph) -> Graph:
    """``Relu(Conv2d(x))`` becomes ``Conv2d(x){lo=0}`` if nothing else reads the Conv2d; etc."""
    consumers = graph.consumers()
    made: dict[str, Node] = {}
    for node in graph.nodes:
        made[node.output] = node
        source = made.get(node.inputs[0])
        if source is None or source.output in graph.outputs or len(consumers[source.output]) > 1:
            continue
        match node.op:
            case Relu():
                lo, hi = 0.0, float("inf")
            case Clip(lo, hi):
                pass
            case _:
                continue
        if isinstance(source.op, Bounded):
            low = min(max(source.op.lo, lo), hi)
            high = min(max(source.op.hi, lo), hi)
            del made[source.output]
            made[node.output] = replace(source, op=source.op.between(low, high), output=node.output)
    return graph.with_nodes(list(made.values()))
