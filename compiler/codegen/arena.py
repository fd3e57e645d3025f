"""Static memory planning: values that are never needed at the same time share memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .llvm import align


@dataclass(frozen=True)
class Lifetime:
    """A value of so many bytes, needed from step ``first`` to step ``last``, inclusive."""

    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are needed in some step."""
        return self.first <= other.last and other.first <= self.last


def plan_arena(lifetimes: Mapping[str, Lifetime]) -> tuple[dict[str, int], int]:
    """Aligned byte offsets of values, and the bytes that they need together.

    Largest first, each at the lowest offset that no value of an overlapping lifetime uses.
    """
    offsets: dict[str, int] = {}
    total = 0
    order = sorted(lifetimes, key=lambda n: (-lifetimes[n].size_bytes, lifetimes[n].first, n))
    for name in order:
        life = lifetimes[name]
        taken = sorted(
            (offsets[other], offsets[other] + align(lifetimes[other].size_bytes))
            for other in offsets
            if life.overlaps(lifetimes[other])
        )
        offset = 0
        for start, end in taken:
            if offset + align(life.size_bytes) <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
        total = max(total, offset + align(life.size_bytes))
    return offsets, total
