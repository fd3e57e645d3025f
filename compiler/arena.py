"""Static memory planning: values that are never needed at the same time share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..runtime.native import MemoryPlan, align

#: What names a value.
Key = TypeVar("Key")


@dataclass(frozen=True)
class Lifetime:
    """A value of so many bytes, needed from step ``first`` to step ``last``, inclusive."""

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
    """Aligned byte offsets of values, and what they need together.

    Values are placed one by one, each in the smallest gap that holds it between those of
    overlapping lifetimes, above all of them where there is none. Of two orders the better counts:
    the largest first; or all of the fullest step first, then of the next, the largest first.
    """
    live_bytes = Counter[int]()
    for life in lifetimes.values():
        live_bytes.update(dict.fromkeys(life.steps, align(life.size_bytes)))
    fullest = {name: max(live_bytes[s] for s in life.steps) for name, life in lifetimes.items()}
    by_size = sorted(lifetimes, key=lambda n: (-lifetimes[n].size_bytes, lifetimes[n].first))
    by_step = sorted(by_size, key=lambda n: -fullest[n])
    plans = [_place(lifetimes, order) for order in (by_size, by_step)]
    offsets, planned = min(plans, key=lambda plan: plan[1])
    sizes = [align(life.size_bytes) for life in lifetimes.values()]
    bound = max(fullest.values(), default=0)
    return offsets, MemoryPlan(len(sizes), sum(sizes), planned, bound)


def _place(lifetimes: Mapping[Key, Lifetime], order: Sequence[Key]) -> tuple[dict[Key, int], int]:
    """Offsets of values placed in some order, and where the highest ends."""
    offsets: dict[Key, int] = {}
    end = 0
    for name in order:
        life = lifetimes[name]
        taken = sorted(
            (offsets[other], offsets[other] + align(lifetimes[other].size_bytes))
            for other in offsets
            if life.overlaps(lifetimes[other])
        )
        offsets[name] = _best_fit(align(life.size_bytes), taken)
        end = max(end, offsets[name] + align(life.size_bytes))
    return offsets, end


def _best_fit(size_bytes: int, taken: list[tuple[int, int]]) -> int:
    """Where the smallest gap of at least this size begins; ``taken`` is sorted."""
    gaps, end = [], 0
    for start, stop in taken:
        if start - end >= size_bytes:
            gaps.append((start - end, end))
        end = max(end, stop)
    return min(gaps)[1] if gaps else end
