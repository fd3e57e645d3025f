"""The checks of mutants that are no tests of a room find nothing without a mutant."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from vdla.sim.rtl import toolchain

from . import checks
from .__main__ import MUTANTS, compile_quickly


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("check", checks.DIRECTED, ids=lambda check: check.__name__)
def test_nothing_is_found_without_a_mutant(check: Callable[[], str | None]) -> None:
    with patch.object(toolchain, "compile_shared", compile_quickly):
        assert check() is None


def test_every_check_is_in_the_suite() -> None:
    """As tests of a room, or by the test above."""
    others = {mutant.check for mutant in MUTANTS if not isinstance(mutant.check, checks.Tests)}
    assert others == set(checks.DIRECTED)
