"""Static memory planning: values that are never needed at the same time share memory."""

from __future__ import annotations

from collections.abc import Mapping
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

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are needed in some step."""
        return self.first <= other.last and other.first <= self.last


def plan_arena(lifetimes: Mapping[Key, Lifetime]) -> tuple[dict[Key, int], MemoryPlan]:
    """Aligned byte offsets of values, and what they need together.

    Largest first, each in the smallest gap that holds it between the values of overlapping
    lifetimes; above all of them where there is none.
    """
    offsets: dict[Key, int] = {}
    order = sorted(lifetimes, key=lambda n: (-lifetimes[n].size_bytes, lifetimes[n].first))
    for name in order:
        life = lifetimes[name]
        taken = sorted(
            (offsets[other], offsets[other] + align(lifetimes[other].size_bytes))
            for other in offsets
            if life.overlaps(lifetimes[other])
        )
        offsets[name] = _best_fit(align(life.size_bytes), taken)
    sizes = {name: align(life.size_bytes) for name, life in lifetimes.items()}
    end = max((offsets[name] + sizes[name] for name in offsets), default=0)
    plan = MemoryPlan(len(sizes), sum(sizes.values()), end, largest_live_set(lifetimes))
    return offsets, plan


def _best_fit(size_bytes: int, taken: list[tuple[int, int]]) -> int:
    """Where the smallest gap of at least this size begins; ``taken`` is sorted."""
    gaps, end = [], 0
    for start, stop in taken:
        if start - end >= size_bytes:
            gaps.append((start - end, end))
        end = max(end, stop)
    return min(gaps)[1] if gaps else end


def largest_live_set(lifetimes: Mapping[Key, Lifetime]) -> int:
    """Bytes, aligned, of the values that are needed in the same step, at most."""
    steps = {life.first for life in lifetimes.values()}  # a live set is largest where one begins
    return max(
        (
            sum(align(v.size_bytes) for v in lifetimes.values() if v.first <= step <= v.last)
            for step in steps
        ),
        default=0,
    )
