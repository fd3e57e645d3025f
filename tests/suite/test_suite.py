"""The sentence at the end of ``make test``, lint that ends the tests, and which tests are where."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
import vdla
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.isa.memory import MEMORY_PRESETS
from vdla.sim.model.core import count_cycles

from ..processors import was_asked
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
    assert sentence("make test", {}, 2, 12, "lint") == (
        "make test: FAILED in 0:12 minutes: make lint found what stands above"
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


def test_who_asks_for_the_processor() -> None:
    """What is compiled for the CPU asks, the second time, too; the simulators do not."""
    for _ in range(2):  # a processor that is described already is asked for, too
        was_asked()
        host_processor()
        assert was_asked()
    for _ in range(2):
        was_asked()
        module = vdla.compile(ROOT / "examples" / "models" / "digits_int8.onnx", target="sim")
        assert was_asked() and not was_asked()  # for the layers on the host
    (program,) = module.compiled.programs
    count_cycles(program.table, MEMORY_PRESETS["vta"])
    assert not was_asked()


def test_every_test_is_in_one_part() -> None:
    """In `test` or `more`, whatever its marks, but for the sweeps; `check` has some of `test`."""
    for slow, more, sweep in product((False, True), repeat=3):
        marks = {"slow": slow, "more": more, "sweep": sweep}
        takes = {name: eval(expression, {}, marks) for name, (expression, _) in PARTS.items()}
        assert takes["test"] + takes["more"] == (not sweep)
        assert takes["test"] or not takes["check"]


def test_lint_is_what_the_makefile_has() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert LINT and all(f"\n{name}: $(STAMP)" in makefile for name in LINT)
