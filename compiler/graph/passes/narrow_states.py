"""Keep a state in the integers that it is used in."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node
from ..ops.quantisation import Dequantize, Quantize


def narrow_states(graph: Graph) -> Graph:
    """A state that only Quantize nodes of one quantisation read, and whose next value a Dequantize
    of the same computes, becomes the integers on the other side of these nodes: to quantise again
    what was dequantised changes nothing.
    """
    producers, readers = graph.producers(), graph.consumers()
    renamed: dict[str, str] = {}
    after_of: dict[str, str] = {}
    tensors, initial = dict(graph.tensors), []
    for before, after, value in graph.state_values:
        last, first = producers.get(after), readers[before]
        source = "" if last is None else last.inputs[0]
        free = source in producers and source not in (*graph.outputs, *after_of.values())
        seen = {before, *(node.output for node in first)}.intersection(graph.outputs)
        if last is None or not _undo(first, last) or not free or seen:
            initial.append(value)
            continue
        tensors[before] = replace(graph[source], name=before)
        renamed |= {node.output: before for node in first}
        after_of[after] = source
        initial.append(first[0].op.evaluate(value))
    if not renamed:
        return graph
    nodes = [
        replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        for node in graph.nodes
        if node.output not in renamed
    ]
    outputs = tuple(after_of.get(name, name) for name in graph.outputs)
    kept = {name: tensor for name, tensor in tensors.items() if name not in renamed}
    return replace(graph, nodes=tuple(nodes), outputs=outputs, tensors=kept, states=tuple(initial))


def _undo(first: list[Node], last: Node) -> bool:
    """Whether there are nodes that quantise, all as ``last`` dequantises."""
    quant = last.op.quant if isinstance(last.op, Dequantize) else None
    return bool(first) and all(
        isinstance(node.op, Quantize) and quant is not None and node.op.quant.same(quant)
        for node in first
    )
