"""A trial that crashes, hangs or fills memory is a failed trial, and the next one runs."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vdla.compiler.tune.sandbox import Sandbox, TrialFailed

SUBJECT = pickle.dumps({"size": 40})


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.syspath_prepend(str(Path(__file__).parent))
        with Sandbox(timeout_s=60, memory_bytes=2 << 30) as box:
            yield box
    sys.modules.pop("trials", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("crash", "crashed: SIGSEGV"),
        ("exit", "exited with 3"),
        ("fill", "needs more than 2048 MiB"),
        ("refuse", "^no such tile$"),
        ("bug", "^ZeroDivisionError: a bug of two lines$"),
    ],
)
def test_what_goes_wrong_fails_and_the_next_trial_runs(box: Sandbox, then: str, said: str) -> None:
    import trials  # type: ignore[import-not-found]

    with pytest.raises(TrialFailed, match=said):
        box.call(trials.size_of, SUBJECT, {"a": 1, "then": then})
    assert box.call(trials.size_of, SUBJECT, {"a": 2}) == 42.0


@pytest.mark.slow
def test_a_trial_that_hangs_is_ended(box: Sandbox) -> None:
    import trials  # type: ignore[import-not-found]

    assert box.call(trials.size_of, SUBJECT, {"a": 2}) == 42.0
    box.timeout_s, begun = 1.0, time.monotonic()
    with pytest.raises(TrialFailed, match="took longer than 1 s"):
        box.call(trials.size_of, SUBJECT, {"a": 1, "then": "hang"})
    assert time.monotonic() - begun < 30
    box.timeout_s = 60.0
    assert box.call(trials.size_of, SUBJECT, {"a": 2}) == 42.0


def test_what_a_trial_prints_is_no_answer_and_subjects_change(box: Sandbox) -> None:
    import trials  # type: ignore[import-not-found]

    assert box.call(trials.size_of, SUBJECT, {"a": 2, "then": "print"}) == 42.0
    assert box.call(trials.size_of, pickle.dumps({"size": 1}), {"a": 2}) == 3.0
    assert box.call(trials.size_of, SUBJECT, {"a": 2}) == 42.0
