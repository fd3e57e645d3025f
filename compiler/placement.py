"""Where the activations of an accelerator program lie in DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from ..isa.params import HwParams
from ..runtime.layout import activation_bytes
from ..runtime.native import MemoryPlan
from .arena import Lifetime, plan_arena
from .graph.ir import Graph, Node
from .graph.ops import Reshape


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
    Instructions of different units that touch the same place are ordered by tokens, as all are.
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
            new = Lifetime(0, step if name == node.output else 0, step)
            old = lives.get(source, new)
            size_bytes = activation_bytes(graph[name].shape, params)
            last = len(nodes) if name in kept else step
            lives[source] = Lifetime(
                max(old.size_bytes, size_bytes), old.first, max(old.last, last)
            )
    offsets, plan = plan_arena(lives)
    return {name: offsets[source] for name, source in sources.items()}, plan
