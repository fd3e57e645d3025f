"""Static memory planning: what the code of a graph has in memory, and when; values that are never
needed at the same time share memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ..runtime.native import MemoryPlan, TensorType, align, aligned_memory
from .graph.ir import Graph, Node
from .graph.ops.base import Fusion
from .graph.ops.movement import Concat, Slice

#: The most orders that are tried, from each of the two first ones.
ROUNDS = 20

#: The name of a value.
Key = TypeVar("Key")


@dataclass(frozen=True)
class Lifetime:
    """A value of ``size_bytes``, needed from step ``first`` to step ``last``, inclusive."""

    size_bytes: int
    first: int
    last: int

    @property
    def steps(self) -> range:
        """The steps in which it is needed."""
        return range(self.first, self.last + 1)

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are needed in some step."""
        return self.first <= other.last and other.first <= self.last


class GraphMemory:
    """The constants of a graph's code, and the lifetimes of what it computes.

    Attributes
    ----------
    round_up : the size that some bytes take
    parts : whether tensors may lie in others: a Slice whose elements lie together in its operand,
        and what a Concat puts one after another
    outside : tensors that have memory of their own
    constants : values by name: of tensors, and of nodes' attributes that are arrays
    lifetimes : of tensors by name, and of what a node needs besides by a key of the caller's
    """

    def __init__(self, graph: Graph, round_up: Callable[[int], int], parts: bool = False):
        self.graph, self.round_up = graph, round_up
        self.outside: set[str] = set()
        self.constants: dict[str, np.ndarray] = {}
        self.lifetimes: dict[str | int, Lifetime] = {}
        #: For a tensor that lies in another one: which, and where in it, in bytes.
        self._inside: dict[str, tuple[str, int]] = {}
        #: Results that need no code: other names of their operands, parts, and what consists of
        #: parts.
        self.given: set[str] = set()
        for node in graph.nodes:
            if node.op.fusion is Fusion.ALIAS:
                self._put(node.output, node.inputs[0], 0)
            elif parts and isinstance(node.op, Slice):
                begin = node.op.find_together(graph[node.inputs[0]].shape)
                if begin is not None:
                    self._put(node.output, node.inputs[0], begin)
            elif parts and isinstance(node.op, Concat):
                self._put_together(node, node.op)

    def _put(self, name: str, inside: str, elements: int) -> None:
        """Let a result lie in its operand, so many elements behind the beginning."""
        tensor = self.graph[name]
        self._inside[name] = inside, elements * np.dtype(tensor.dtype).itemsize
        self.given.add(name)

    def _put_together(self, node: Node, op: Concat) -> None:
        """Let the operands of a Concat lie in its result, where each is computed as a whole, for
        this Concat alone, and they lie one after another."""
        graph, whole = self.graph, [self.place(name) for name in node.inputs]
        sources = {source for source, _ in whole}
        computed = all(
            begin == 0 and graph[source].size_bytes == graph[name].size_bytes > 0
            and source not in graph.inputs and not graph[source].is_constant
            for name, (source, begin) in zip(node.inputs, whole, strict=True)
        )  # fmt: skip
        outer = graph.result(node).shape[: op.axis]
        if not computed or len(sources) < len(whole) or any(n != 1 for n in outer):
            return
        begin = 0
        for name, (source, _) in zip(node.inputs, whole, strict=True):
            self._inside[source] = node.output, begin
            begin += graph[name].size_bytes
        self.given.add(node.output)

    def place(self, name: str) -> tuple[str, int]:
        """The tensor whose memory a tensor lies in, perhaps its own, and where, in bytes."""
        begin = 0
        while name in self._inside:
            name, more = self._inside[name]
            begin += more
        return name, begin

    def source(self, name: str) -> str:
        """The tensor whose memory a tensor lies in."""
        return self.place(name)[0]

    def use(self, name: str, position: int) -> None:
        """Extend the lifetime of a tensor to a position."""
        tensor = self.graph[name]
        if tensor.data is not None:
            self.constants[name] = tensor.data
        elif name not in self.outside:
            first = self.lifetimes[name].first if name in self.lifetimes else position
            self.lifetimes[name] = Lifetime(self.round_up(tensor.size_bytes), first, position)

    def add_attributes(self, node: Node, arrays: Sequence[np.ndarray]) -> list[str]:
        """Add a node's attributes to the constants; their names."""
        names = [f"{node.name}.{node.output}.{index}" for index in range(len(arrays))]
        self.constants |= dict(zip(names, arrays, strict=True))
        return names

    def place_constants(self) -> tuple[dict[str, int], np.ndarray]:
        """Where each constant begins, in bytes, and all of them (uint8). The graph's constants are
        parts of these from then on, so that large ones are there once."""
        places, end = dict[str, int](), 0
        for name, data in self.constants.items():
            places[name], end = end, end + self.round_up(data.nbytes)
        parameters = aligned_memory(end)
        for name, data in self.constants.items():
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            part = parameters[places[name] : places[name] + data.nbytes]
            part[:] = raw
            self.constants[name] = part.view(data.dtype).reshape(data.shape)
            if name in self.graph.tensors:
                tensor = replace(self.graph[name], data=self.constants[name])
                self.graph.tensors[name] = tensor
        return places, parameters

    def offsets(self, offsets: Mapping[str | int, int]) -> dict[str, int]:
        """Where tensors are, their other names included, by the ``offsets`` of lifetimes."""
        found = {name: offset for name, offset in offsets.items() if isinstance(name, str)}
        others = {name: self.place(name) for name in self._inside}
        return found | {n: found[s] + begin for n, (s, begin) in others.items() if s in found}


def tensor_types(graph: Graph, names: Sequence[str]) -> tuple[TensorType, ...]:
    """The types of these tensors, for the caller of a graph's code."""
    return tuple(TensorType(name, graph[name].shape, graph[name].dtype) for name in names)


def plan_arena(lifetimes: Mapping[Key, Lifetime]) -> tuple[dict[Key, int], MemoryPlan]:
    """Aligned byte offsets of values, and the memory that they need together.

    Values are placed one by one. Each goes into the smallest gap between values of overlapping
    lifetimes that holds it; where there is no gap, it goes above all of them. Two orders are tried:
    the largest values first, and the values of the fullest step first. While a plan needs more
    memory than the fullest step, the value that ends highest is moved to the front of the order,
    for a few rounds. The best plan is returned.
    """
    live_bytes = Counter[int]()
    for life in lifetimes.values():
        live_bytes.update(dict.fromkeys(life.steps, align(life.size_bytes)))
    fullest = {name: max(live_bytes[s] for s in life.steps) for name, life in lifetimes.items()}
    bound = max(fullest.values(), default=0)
    rivals: dict[Key, list[Key]] = {name: [] for name in lifetimes}
    alive: list[Key] = []
    for a in sorted(lifetimes, key=lambda name: lifetimes[name].first):
        alive = [b for b in alive if lifetimes[a].overlaps(lifetimes[b])]
        for b in alive:
            rivals[a].append(b)
            rivals[b].append(a)
        alive.append(a)
    sizes = {name: align(life.size_bytes) for name, life in lifetimes.items()}
    by_size = sorted(sizes, key=lambda n: (-sizes[n], lifetimes[n].first))
    by_step = sorted(by_size, key=lambda n: -fullest[n])
    best, planned = _place(by_size, sizes, rivals)
    for order in (by_size, by_step):
        for _ in range(ROUNDS):
            if planned == bound:
                break
            offsets, end = _place(order, sizes, rivals)
            if end < planned:
                best, planned = offsets, end
            highest = next(n for n in order if offsets[n] + sizes[n] == end)
            order = [highest, *(n for n in order if n != highest)]
    return best, MemoryPlan(len(sizes), sum(sizes.values()), planned, bound)


def _place(
    order: Sequence[Key], sizes: Mapping[Key, int], rivals: Mapping[Key, Sequence[Key]]
) -> tuple[dict[Key, int], int]:
    """Offsets of values placed in some order, and where the highest ends; rivals never share."""
    offsets: dict[Key, int] = {}
    for name in order:
        placed = [other for other in rivals[name] if other in offsets]
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in placed)
        offsets[name] = _best_fit(sizes[name], taken)
    return offsets, max((offsets[name] + sizes[name] for name in order), default=0)


def _best_fit(size_bytes: int, taken: list[tuple[int, int]]) -> int:
    """Where the smallest gap of at least this size begins; ``taken`` is sorted."""
    gaps, end = [], 0
    for start, stop in taken:
        if start - end >= size_bytes:
            gaps.append((start - end, end))
        end = max(end, stop)
    return min(gaps)[1] if gaps else end
