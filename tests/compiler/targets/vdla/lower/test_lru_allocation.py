"""Operators have the entries of a scratchpad in turn."""

from __future__ import annotations

from vdla.compiler.targets.vdla.lower.lru_allocation import Rotation


def test_operators_have_other_entries_while_there_are_any() -> None:
    rotation = Rotation(16)
    assert [rotation.take(entries) for entries in (4, 6, 5)] == [0, 4, 10]


def test_then_those_that_were_left_alone_for_longest() -> None:
    """A single entry is new. Two in a row are the first operator's, then what is left of these and
    one of the second operator, then one of that and one of the third."""
    rotation = Rotation(8)
    for entries in (3, 2, 2):
        rotation.take(entries)
    assert [rotation.take(entries) for entries in (1, 2, 2, 2)] == [7, 0, 2, 4]


def test_an_operator_may_take_everything_or_nothing() -> None:
    rotation = Rotation(4)
    assert [rotation.take(entries) for entries in (2, 0, 4, 4, 0)] == [0, 2, 0, 0, 0]


def test_the_last_entries_are_left_to_others_unless_there_are_too_few() -> None:
    rotation = Rotation(8)
    assert [rotation.take(entries, kept=3) for entries in (3, 3, 2, 6)] == [0, 0, 3, 0]
