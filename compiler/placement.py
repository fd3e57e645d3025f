"""Where the activations of an accelerator program lie in DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from ..isa.params import HwParams
from ..runtime.layout import activation_bytes
from ..runtime.native import MemoryPlan
from .arena import Lifetime, plan_arena
from .graph.ir import Graph, Node
from .graph.ops import Reshape
from .lanes import lane


def results(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """What some nodes make for others, and the graph's outputs among it."""
    made = {node.output for node in nodes}
    read = {name for node in graph.nodes if node.output not in made for name in node.inputs}
    return made & (read | {*graph.outputs})


def place_activations(
    graph: Graph, nodes: Sequence[Node], params: HwParams
) -> tuple[dict[str, int], MemoryPlan]:
    """Byte offset of every tensor that a program reads or writes, and how they share memory.

    Inputs are there from the start, results stay to the end; a reshape shares its source's place.
    Instructions of different units that touch the same place are ordered by tokens, as all are;
    so that this costs no time, a tensor also stays while the operator behind its reader runs
    beside it (``lanes.py``).
    """
    kept = results(graph, nodes)
    sources: dict[str, str] = {}
    lives: dict[str, Lifetime] = {}
    for step, node in enumerate(nodes):
        if isinstance(node.op, Reshape):
            sources[node.output] = sources.get(node.inputs[0], node.inputs[0])
        for name in (*node.inputs, node.output):
            if graph[name].is_constant:
                continue
            source = sources.setdefault(name, name)
            size_bytes = activation_bytes(graph[name].shape, params)
            first = step if name == node.output else 0
            last = len(nodes) if name in kept else _last_beside(nodes, step)
            old = lives.get(source, Lifetime(size_bytes, first, last))
            lives[source] = Lifetime(
                max(old.size_bytes, size_bytes), old.first, max(old.last, last)
            )
    offsets, plan = plan_arena(lives)
    return {name: offsets[source] for name, source in sources.items()}, plan


def _last_beside(nodes: Sequence[Node], step: int) -> int:
    """The step behind this one if it is another lane's, and so may run at the same time."""
    for later in range(step + 1, len(nodes)):
        if not isinstance(nodes[later].op, Reshape):
            return later if lane(nodes[later]) != lane(nodes[step]) else step
    return step
