"""What is needed first is computed first.

::

    a = QNormalise(x); b = QNormalise(x)       ->       b = QNormalise(x); a = QNormalise(x)
    y = QConv2d(b, w); z = QAdd(y, a)                   y = QConv2d(b, w); z = QAdd(y, a)

Operators of a unit are computed in the order of the graph. The convolution then begins before the
vector unit has computed what only the addition reads.
"""

from __future__ import annotations

from ....graph.ir import Graph, Node
from ..machine import ACCELERATOR


def needed_first(graph: Graph) -> Graph:
    """Exchange neighbours on the accelerator, where the second one does not read the first one and
    is read earlier, until there are none. Results of the graph are needed at its end."""
    nodes = list(graph.nodes)
    first_use = _first_uses(nodes)
    # What lies behind a node is in order already when the node finds its place there.
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
    """Where tensors are read for the first time, by name."""
    found: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in node.inputs:
            found.setdefault(name, place)
    return found
