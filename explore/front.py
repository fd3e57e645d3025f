"""Designs that no other beats, and how much they beat."""

from __future__ import annotations

from collections.abc import Sequence

Values = Sequence[float]
#: The box of the hypervolume ends at so many times the first design's values.
BOX = 2.0


def dominates(one: Values, other: Values) -> bool:
    """Whether the first is as good in everything and better in something; less is better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front(values: Sequence[Values]) -> list[int]:
    """Indices of the values that none of the others dominates. Of equal ones the first counts."""
    kept: list[int] = []
    for index, mine in enumerate(values):
        if any(dominates(values[k], mine) or tuple(values[k]) == tuple(mine) for k in kept):
            continue
        kept = [k for k in kept if not dominates(mine, values[k])]
        kept.append(index)
    return kept


def hypervolume(values: Sequence[Values], reference: Values) -> float:
    """The part of the box between 0 and the reference that the values dominate, 0 to 1."""
    inside = [
        tuple(v / r for v, r in zip(one, reference, strict=True))
        for one in values
        if all(v < r for v, r in zip(one, reference, strict=True))
    ]
    return _volume([inside[k] for k in front(inside)])


def _volume(points: list[tuple[float, ...]]) -> float:
    """The same for a front in the unit box: slices across the last objective, each of which the
    points below it dominate.
    """
    if not points:
        return 0.0
    if len(points[0]) == 1:
        return 1.0 - min(point[0] for point in points)
    points = sorted(points, key=lambda point: point[-1])
    ends = [*(point[-1] for point in points[1:]), 1.0]
    total = 0.0
    for count, (point, end) in enumerate(zip(points, ends, strict=True), 1):
        if end > point[-1]:
            below = [one[:-1] for one in points[:count]]
            total += (end - point[-1]) * _volume([below[k] for k in front(below)])
    return total
