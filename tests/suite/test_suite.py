"""The sentence at the end of ``make test``, lint that ends the tests, and who asks for the
processor."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from vdla.compiler.targets.cpu.processor import host
from vdla.runtime.machine_code import compile_native
from vdla.sim.model import loop

from ..processors import times_asked
from .__main__ import LINT, PARTS, Lint, sentence

ROOT = Path(__file__).resolve().parents[2]
FOUND = {
    "outcomes": {"passed": 6100, "failed": 0},
    "skipped": {"it is Monday": 3, "torch is not installed": 7},
}


def test_how_it_went() -> None:
    assert sentence("make test", FOUND, 0, 500.4, "") == (
        "make test: 6,100 tests passed in 8:20 minutes; "
        "10 were skipped: 7 without torch, 3 because: it is Monday"
    )
    failed = {"outcomes": {"passed": 5, "failed": 2, "error": 1}, "skipped": {}}
    assert sentence("make more", failed, 1, 61, "") == (
        "make more: FAILED: 3 tests failed, 5 passed in 1:01 minutes"
    )
    assert "FAILED: pytest ended with 4 in" in sentence("make test", {}, 4, 1, "")
    assert sentence("make test", {}, 2, 12, "pyright") == (
        "make test: FAILED in 0:12 minutes: pyright found what stands above; the tests were ended"
    )


def test_lint_ends_the_tests(capfd: pytest.CaptureFixture[str]) -> None:
    """At the first check that fails."""
    begin = time.monotonic()
    tests = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    says = (sys.executable, "-c", "print('a line is long'); raise SystemExit(1)")
    right = (sys.executable, "-c", "print('nothing to see')")
    lint = Lint(tests, {"right": right, "wrong": says, "never": ("no-such-program",)})
    lint.join()
    assert lint.failed == "wrong" and tests.wait() != 0
    assert time.monotonic() - begin < 50
    said = capfd.readouterr().out
    assert "a line is long" in said and "nothing to see" not in said


def test_every_test_is_in_one_part() -> None:
    """Which are those without a marker `sweep`."""
    parts = [expression for expression, _ in PARTS.values()]
    assert parts[1:] == ["not more and not sweep", "more and not sweep"]
    assert all(Path(command[0]).exists() for command in LINT.values())


def test_who_asks_for_the_processor() -> None:
    """Not machine code of the simulators."""
    before = times_asked()
    compile_native(next(f for f in vars(loop).values() if hasattr(f, "callees")))
    assert times_asked() == before
    assert host().vector_lanes
    assert times_asked() > before
