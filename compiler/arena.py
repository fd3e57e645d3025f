"""Static memory planning: values that are never needed at the same time share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from ..runtime.native import MemoryPlan, align

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
    for a, b in combinations(lifetimes, 2):
        if lifetimes[a].overlaps(lifetimes[b]):
            rivals[a].append(b)
            rivals[b].append(a)
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
