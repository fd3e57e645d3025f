"""Find layers that repeat, as those of a transformer do. A plan is for all operators alike, so a
program with some of these layers is enough to compare plans.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from ....graph.ir import Graph, Node

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

    def reads_alike(index: int, period: int) -> bool:
        return _reads_alike(graph.nodes[index], graph.nodes[index + period], period, index_of)

    best, most = None, 0
    for period in range(1, len(ids) // (LEFT + 1) + 1):
        length = 0
        for index in range(len(ids) - period):
            same = ids[index] == ids[index + period] and reads_alike(index, period)
            length = length + 1 if same else 0
            times = length // period + 1
            if (times - LEFT) * period > most:
                most, best = (times - LEFT) * period, (index + 1 - length, period, times)
    return best


def _reads_alike(one: Node, other: Node, period: int, index_of: dict[str, int]) -> bool:
    """Whether a node and the one a period behind it read tensors at the same distance before them,
    or the same tensors. Constants and inputs of the graph may differ."""
    for name, later in zip(one.inputs, other.inputs, strict=True):
        if (name in index_of) != (later in index_of):
            return False
        if name != later and name in index_of and index_of[later] - index_of[name] != period:
            return False
    return True
