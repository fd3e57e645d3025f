"""Find layers that repeat, as those of a transformer do. A plan is for all operators alike, so a
program with some of these layers is enough to compare plans.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from ....graph.ir import Graph

#: How often a layer is left. Fewer may let another plan win: with four, that of ResNet-50 takes
#: 0.1 % more cycles.
LEFT = 6


def without_repeats(graph: Graph, kinds: Sequence[Hashable]) -> Graph:
    """The graph with :data:`LEFT` copies of each layer that is repeated more often. Readers of a
    removed copy read the last one instead.

    Parameters
    ----------
    kinds : for each node what its cycles depend on; nodes of one kind have results of one type
    """
    while (found := _longest_repetition(graph, kinds)) is not None:
        first, period, times = found
        begin, end = first + LEFT * period, first + times * period
        last = graph.nodes[begin - period : begin]
        instead = {
            node.output: last[index % period].output
            for index, node in enumerate(graph.nodes[begin:end])
        }
        behind = [
            replace(node, inputs=tuple(instead.get(name, name) for name in node.inputs))
            for node in graph.nodes[end:]
        ]
        outputs = dict.fromkeys(instead.get(name, name) for name in graph.outputs)
        kinds = [*kinds[:begin], *kinds[end:]]
        graph = replace(graph.with_nodes([*graph.nodes[:begin], *behind]), outputs=tuple(outputs))
    return graph


def _longest_repetition(graph: Graph, kinds: Sequence[Hashable]) -> tuple[int, int, int] | None:
    """The repetition of which the most nodes can be removed: the index of its first node, the
    number of nodes in a layer, and the number of layers. None where nothing can be removed."""
    index_of = {node.output: index for index, node in enumerate(graph.nodes)}
    numbers: dict[Hashable, int] = {}
    ids = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], np.int64)
    operands = max((len(node.inputs) for node in graph.nodes), default=0)
    # The node that computes each operand; constants and inputs of the graph may differ.
    reads = np.full((operands, len(ids)), -1, np.int64)
    for index, node in enumerate(graph.nodes):
        for position, name in enumerate(node.inputs):
            reads[position, index] = index_of.get(name, -1)

    best, most = None, 0
    for period in range(1, len(ids) // (LEFT + 1) + 1):
        same = ids[:-period] == ids[period:]
        if np.count_nonzero(same) < LEFT * period:
            continue
        one, other = reads[:, :-period], reads[:, period:]
        # A node and the one a period behind it read the same tensor, or at the same distance.
        apart = (one >= 0) & (other >= 0) & (other - one == period)
        same &= ((one == other) | apart).all(0)
        ends = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        times = (ends[1::2] - ends[::2]) // period + 1
        removed = (times - LEFT) * period
        if removed.size and removed.max() > most:
            longest = int(removed.argmax())
            most = int(removed[longest])
            best = int(ends[2 * longest]), period, int(times[longest])
    return best
