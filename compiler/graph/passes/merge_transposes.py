"""Merge transpositions that follow one another; those that undo one another disappear."""

from __future__ import annotations

from dataclasses import replace

from ..ir import Graph, Node, Tensor
from ..ops.base import Fusion
from ..ops.movement import Identity, Transpose


def merge_transposes(graph: Graph) -> Graph:
    """``Transpose(f(Transpose(x)))`` becomes ``Transpose(f(x))``, or ``f(x)`` where the two undo
    one another; f are element-wise operators, or none. Nodes that nothing reads any more fall to
    ``dead_code``.

    A node that computes a graph output stays, as an Identity where nothing moves.
    """
    consumers = graph.consumers()
    alone = {n for n, readers in consumers.items() if len(readers) == 1} - {*graph.outputs}
    made: dict[str, Node] = {}
    moved: dict[str, Tensor] = {}
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        chain, first = _elementwise_chain(made, node, alone)
        if first is not None:
            assert isinstance(node.op, Transpose) and isinstance(first.op, Transpose)
            order, before = node.op.order, first.op.order
            merged = tuple(before[axis] for axis in order)
            source = first.inputs[0]
            shape = moved.get(source, graph[source]).shape
            for link in reversed(chain):
                made[link.output] = replace(link, inputs=(source,))
                moved[link.output] = replace(graph[link.output], shape=shape)
                source = link.output
            alone.discard(source)
            identity = merged == tuple(range(len(merged)))
            op = Identity() if identity else Transpose(merged)
            node = replace(node, op=op, inputs=(source,))
            if identity and node.output not in graph.outputs:
                renamed[node.output] = source
        made[node.output] = node
    return graph.with_nodes(list(made.values()), *moved.values())


def _elementwise_chain(
    made: dict[str, Node], node: Node, alone: set[str]
) -> tuple[list[Node], Node | None]:
    """The operators between a transposition and an earlier one, last first, and the earlier one;
    none unless only this transposition depends on all of them.
    """
    chain: list[Node] = []
    if not isinstance(node.op, Transpose):
        return chain, None
    source = made.get(node.inputs[0])
    while source is not None and not isinstance(source.op, Transpose):
        if (
            source.op.fusion is not Fusion.ELEMENTWISE
            or len(source.inputs) != 1
            or source.output not in alone
        ):
            return chain, None
        chain.append(source)
        source = made.get(source.inputs[0])
    return chain, source
