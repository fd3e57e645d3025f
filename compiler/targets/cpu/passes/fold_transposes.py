"""Change layouts once: from blocks of channels to rows of channels, and back.

::

    a = FromBlocks(x);  b = Transpose(a)   ->   b = FromBlocks{last}(x)
    c = Transpose(y);   d = ToBlocks(c)    ->   d = ToBlocks{last}(y)

Layer normalisation and linear layers read channels last, convolutions read blocks of them.
"""

from __future__ import annotations

from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.layout import FromBlocks, ToBlocks
from ....graph.ops.movement import Transpose

#: Orders of dimensions: [N, C, H, W] to [N, H, W, C], and back.
TO_LAST, FROM_LAST = (0, 2, 3, 1), (0, 3, 1, 2)


def fold_transposes(graph: Graph) -> Graph:
    """The graph without transposes next to a change of layout, where nothing else reads what is
    between them."""
    folded: dict[str, Node] = {}
    gone: set[str] = set()
    for source, node in graph.links():
        match source.op, node.op:
            case (FromBlocks(last=False) as op, Transpose(order=order)) if order == TO_LAST:
                made = replace(op, last=True)
            case (Transpose(order=order), ToBlocks(last=False) as op) if order == FROM_LAST:
                made = replace(op, last=True)
            case _:
                continue
        folded[node.output] = replace(node, op=made, inputs=source.inputs)
        gone.add(source.output)
    return graph.with_nodes([folded.get(n.output, n) for n in graph.nodes if n.output not in gone])
