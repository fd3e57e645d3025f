"""Where the activations of an accelerator program lie in DRAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .....isa.params import HwParams
from .....runtime.layout import activation_bytes
from .....runtime.native import MemoryPlan
from ....arena import Lifetime, plan_arena
from ....graph.ir import Graph, Node
from ....graph.ops.layout import BlockReshape
from ....graph.ops.movement import Concat, ReplaceEnd, Reshape
from ...base import Part
from ..templates.base import Track


def place_activations(
    part: Part,
    tracks: Mapping[str, Track],
    params: HwParams,
    reach: Mapping[str, int] | None = None,
) -> tuple[dict[str, int], MemoryPlan]:
    """The byte offset of every tensor that a program reads or writes, and how they share memory.
    ``tracks`` has, by output, the tracks of the nodes that have instructions; ``reach`` the bytes
    that are read of a tensor, by name, where these are more than it has.

    Inputs are there from the start, results stay to the end. A reshape lies where its source lies,
    as does an image whose end is replaced, and the operands of a concatenation of channels lie in
    its result.

    A tensor also stays while the next operator of the other track may run beside its reader
    (``scratchpads.py``). Tokens would keep reuse of its memory correct, but one of the two would
    wait.
    """
    graph, nodes = part.graph, part.nodes
    made, kept = {node.output for node in nodes}, {*part.wanted}
    homes = _homes(graph, nodes, params)
    lives: dict[str, Lifetime] = {}
    reach = reach or {}
    for step, node in enumerate(nodes):
        for name in (*node.inputs, node.output):
            if graph[name].is_constant:
                continue
            home, start = homes.setdefault(name, (name, 0))
            own_bytes = activation_bytes(graph[name].shape, params)
            size_bytes = start + max(own_bytes, reach.get(name, 0))
            first = step if name in made else 0
            last = len(nodes) if name in kept else _last_beside(nodes, tracks, step)
            old = lives.get(home, Lifetime(size_bytes, first, last))
            lives[home] = Lifetime(
                max(old.size_bytes, size_bytes), min(old.first, first), max(old.last, last)
            )
    offsets, plan = plan_arena(lives)
    return {name: offsets[home] + start for name, (home, start) in homes.items()}, plan


def _homes(graph: Graph, nodes: Sequence[Node], params: HwParams) -> dict[str, tuple[str, int]]:
    """For each tensor that lies in another one: the name of that one, and the byte offset there."""
    homes: dict[str, tuple[str, int]] = {}
    # From the last node to the first: an operand may be the result of another concatenation.
    for node in reversed(nodes):
        if isinstance(node.op, Concat) and node.op.axis == 1:
            home, start = homes.get(node.output, (node.output, 0))
            for name in node.inputs:
                homes[name] = home, start
                start += activation_bytes(graph[name].shape, params)
        elif isinstance(node.op, Reshape | BlockReshape) and node.output in homes:
            homes[node.inputs[0]] = homes[node.output]
    for node in nodes:
        stays = isinstance(node.op, Reshape | BlockReshape | ReplaceEnd)
        if stays and node.output not in homes:
            homes[node.output] = homes.get(node.inputs[0], (node.inputs[0], 0))
    return homes


def _last_beside(nodes: Sequence[Node], tracks: Mapping[str, Track], step: int) -> int:
    """The last step that may run at the same time as this one: the next one on the other track,
    unless it waits for a step between them; else this step itself.
    """
    mine = tracks.get(nodes[step].output)
    between: set[str] = set()
    for later in range(step + 1, len(nodes) if mine is not None else 0):
        node, track = nodes[later], tracks.get(nodes[later].output)
        waits = not between.isdisjoint(node.inputs)
        if track is not None and track != mine:
            return step if waits else _classifier_beside(nodes, tracks, later)
        if waits or track is not None:
            between.add(node.output)
    return step


def _classifier_beside(nodes: Sequence[Node], tracks: Mapping[str, Track], step: int) -> int:
    """The step of the classifier with a track of its own behind this step, if no product is between
    them; else this step."""
    for later in range(step, len(nodes)):
        track = tracks.get(nodes[later].output)
        if track in (Track.TENSOR, Track.CLASSIFIER):
            return later if track is Track.CLASSIFIER else step
    return step
