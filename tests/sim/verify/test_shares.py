"""Co-verification on workers tells what one process tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from vdla.isa.params import HwParams
from vdla.runtime.workers import Workers
from vdla.sim.coverage.coverage import Coverage
from vdla.sim.verify import campaign
from vdla.sim.verify.campaign import DEVICE, verify, verify_on

from .test_verify import SMALL, VTA


class Backwards:
    """What :class:`Workers` does, in this process; the last item comes first."""

    def each(self, function: Callable[..., Any], items: Sequence[tuple]) -> Iterator[tuple]:
        for index in reversed(range(len(items))):
            yield index, function(*items[index])


@pytest.mark.more
@pytest.mark.slow
def test_two_workers_find_what_one_process_finds() -> None:
    told: list[tuple[int, int]] = []
    with closing(Workers(DEVICE, None, 2)) as workers:
        found = verify_on(workers, SMALL, VTA, 45, 7, lambda *now: told.append(now))
    assert found == verify(SMALL, VTA, 45, 7) and found["programs"] == 45
    assert told[-1] == (45, 45) and len(told) == 3


@pytest.mark.more
@pytest.mark.slow
def test_what_adds_to_the_coverage_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("SAMPLED_PROGRAMS", 5), ("STEERED_PROGRAMS", 3), ("SHARE_PROGRAMS", 2)):
        monkeypatch.setattr(campaign, name, count)
    workers: Any = Backwards()
    alone, shared = Coverage(SMALL), Coverage(SMALL)
    expected = verify(SMALL, VTA, 8, 0, coverage=alone)
    assert verify_on(workers, SMALL, VTA, 8, 0, coverage=shared) == expected
    assert expected["steered_programs"] == 3 and expected["programs"] == 8
    assert shared.holes() == alone.holes()


@pytest.mark.parametrize(
    ("steered", "wrong", "first"), [(0, {3, 1}, 1), (1, {2}, 2), (1, set(), "steered")]
)
def test_the_first_difference_is_that_of_the_lowest_seed(
    steered: int, wrong: set[int], first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Share 0, which covers, finds one in a steered program, if at all: these run at the end."""

    def fake(params: Any, memory: Any, programs: int, seed: int, *_: Any, **how: Any) -> Any:
        at = {"program": seed, "wanted": []} if seed in wrong else None
        if how and steered:
            at = {"program": "steered", "wanted": [["group", "bin"]]}
        return {"programs": programs, "max_cycle_error": seed, "first_divergence": at}

    monkeypatch.setattr(campaign, "verify", fake)
    monkeypatch.setattr(campaign, "RtlSimulator", lambda params: None)
    monkeypatch.setattr(campaign, "SAMPLED_PROGRAMS", 1)
    monkeypatch.setattr(campaign, "SHARE_PROGRAMS", 1)
    workers: Any = Backwards()
    found = verify_on(workers, HwParams(), VTA, 5, coverage=Coverage(HwParams()))
    assert found["programs"] == 5 and found["max_cycle_error"] == 4
    assert found["first_divergence"]["program"] == first
