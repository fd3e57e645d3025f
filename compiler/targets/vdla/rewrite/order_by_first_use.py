"""A topological order by first use.

::

    a = QNormalise(x); b = QNormalise(x)       ->       b = QNormalise(x); a = QNormalise(x)
    y = QConv2d(b, w); z = QAdd(y, a)                   y = QConv2d(b, w); z = QAdd(y, a)

A unit computes its operators in the order of the graph. Here the convolution begins before the
vector unit has computed the operand that only the addition reads.
"""

from __future__ import annotations

from ....graph.ir import Graph, Node
from ..machine import ACCELERATOR


def order_by_first_use(graph: Graph) -> Graph:
    """Swap neighbours on the accelerator until every node is in the order of its first use. A node
    does not move before a node that it reads. The outputs of the graph are used at its end."""
    nodes = list(graph.nodes)
    first_use = _first_uses(nodes)
    # An insertion sort from the end: the nodes behind ``start`` are in order already.
    for start in reversed(range(len(nodes) - 1)):
        for place in range(start, len(nodes) - 1):
            one, other = nodes[place : place + 2]
            uses = [first_use.get(node.output, len(nodes)) for node in (one, other)]
            is_free = one.target == other.target == ACCELERATOR and one.output not in other.inputs
            if not is_free or uses[1] >= uses[0]:
                break
            nodes[place : place + 2] = other, one
            for name in one.inputs:
                first_use[name] += first_use[name] == place
            for name in other.inputs:
                first_use[name] = min(first_use[name], place)
    return graph.with_nodes(nodes)


def _first_uses(nodes: list[Node]) -> dict[str, int]:
    """The index of the first node that reads each tensor, by name."""
    found: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in node.inputs:
            found.setdefault(name, place)
    return found
