"""The oracle of :mod:`tests.programs` holds for the smallest networks."""

from __future__ import annotations

import json

import pytest

from .__main__ import KNOWN
from .cases import CASES, made

known = json.loads(KNOWN.read_text())


def test_only_cases_are_written_down() -> None:
    assert set(known) <= set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["digits on 16x16 without features", "digits on 4x4", "dqn, int8, on the CPU"]
)
def test_the_compiler_writes_what_it_wrote(name: str) -> None:
    """The others take minutes: ``make programs``."""
    assert made(name) == known[name]
