"""Fronts and hypervolumes against what trying everything gives."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from vdla.explore.front import front, hypervolume

CORNER = 6


def many(objectives: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    value = st.integers(0, CORNER + 1)
    return st.lists(st.tuples(*[value] * objectives), max_size=7)


points = st.integers(1, 4).flatmap(many)


@given(points)
def test_a_front_has_what_nothing_beats(values: list[tuple[int, ...]]) -> None:
    def beaten(mine: tuple[int, ...]) -> bool:
        return any(
            other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
            for other in values
        )

    kept = front(values)
    assert [values[k] for k in kept] == [v for v in dict.fromkeys(values) if not beaten(v)]
    assert kept == [values.index(values[k]) for k in kept]


@given(points)
def test_a_hypervolume_counts_cells(values: list[tuple[int, ...]]) -> None:
    objectives = len(values[0]) if values else 2
    cells = list(product(range(CORNER), repeat=objectives))
    covered = sum(
        any(all(a <= b for a, b in zip(v, cell, strict=True)) for v in values) for cell in cells
    )
    found = hypervolume(values, [CORNER] * objectives)
    assert abs(found - covered / len(cells)) < 1e-9
