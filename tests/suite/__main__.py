"""``make check``, ``make test``, ``make more``, ``make processors``: some of the tests, and one
sentence at the end. What lint finds beside them ends the tests, and is named in that sentence.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..processors import DEFAULT, FEATURES
from .summary import ASKING, SUMMARY

ROOT = Path(__file__).resolve().parents[2]
#: Targets of the Makefile that run beside the tests, one after the other.
LINT = {name: ("make", "--no-print-directory", name) for name in ("lint", "docs")}
#: A file's tests run in one process, so that what they share is made once; files with slow tests
#: begin first (tests/conftest.py).
PYTEST = (sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
#: The parts: which tests, and whether lint runs beside them.
PARTS: Mapping[str, tuple[str, bool]] = {
    "check": ("not slow and not more and not sweep", True),
    "test": ("not more and not sweep", True),
    "more": ("more and not sweep", False),
}
#: Seconds in which pytest tells what it found so far, when it is interrupted.
GRACE_S = 20
#: The part for one processor after the other.
PROCESSORS = "processors"


@dataclass
class Lint:
    """Lint in a thread, beside the tests, which a finding ends."""

    tests: subprocess.Popen
    checks: Mapping[str, Sequence[str]]
    failed: str = ""
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for name, command in self.checks.items():
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                self.failed = name
                self.tests.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self.tests.wait(GRACE_S)
                self.tests.terminate()  # what a shell began in the background ignores SIGINT
                self.tests.wait()
                print(f"\n{done.stdout}{done.stderr}", flush=True)
                break

    def join(self) -> None:
        self._thread.join()


def main(arguments: list[str]) -> int:
    """Run a part; further arguments are pytest's."""
    part, *rest = arguments
    if part == PROCESSORS:
        return run_processors(rest)
    tests, with_lint = PARTS[part]
    return run(f"make {part}", ["-m", tests, *rest], LINT if with_lint else {})


def run_processors(rest: Sequence[str]) -> int:
    """Run all tests for one processor, and for each other one the files with tests that asked for
    it: what nothing asks for changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        asking = Path(folder) / "asking"
        asking.touch()
        options = ["-m", "not sweep", *rest, "--processor"]
        ran = [run(f"make processors: {DEFAULT}", [*options, DEFAULT], {}, {ASKING: str(asking)})]
        files = sorted(set(asking.read_text().splitlines()))
    for name in FEATURES:
        if name != DEFAULT and files:
            what = f"make processors: {name}, the {len(files)} files that ask for it"
            ran.append(run(what, [*options, name, *files], {}))
    return max(ran)


def run(
    name: str,
    options: Sequence[str],
    lint: Mapping[str, Sequence[str]],
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run pytest with options, beside lint; say how it went."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        known = {**os.environ, SUMMARY: str(summary), **(environment or {})}
        tests = subprocess.Popen([*PYTEST, *options], cwd=ROOT, env=known)
        beside = Lint(tests, lint)
        try:
            code = tests.wait()
        except KeyboardInterrupt:  # pytest has it, too, and says where it was
            code = tests.wait()
        beside.join()
        found = json.loads(summary.read_text()) if summary.exists() else {}
    print(sentence(name, found, code, time.monotonic() - begin, beside.failed), flush=True)
    return 1 if beside.failed else code


def sentence(name: str, found: Mapping[str, dict], code: int, seconds: float, lint: str) -> str:
    """How it went, in one line.

    Parameters
    ----------
    name : what ran
    found : ``outcomes``, how many tests had each; ``skipped``, how many for each reason; empty
        where pytest did not come to its end
    code : pytest's exit code
    seconds : how long it took
    lint : which of its checks failed, if one did
    """
    minutes = f"in {int(seconds) // 60}:{int(seconds) % 60:02} minutes"
    if lint:
        return f"{name}: FAILED {minutes}: make {lint} found what stands above"
    outcomes, reasons = Counter(found.get("outcomes", {})), Counter(found.get("skipped", {}))
    wrong = outcomes["failed"] + outcomes["error"]
    counts = f"{outcomes['passed']:,} tests passed"
    if code:
        counts = f"FAILED: {wrong:,} tests failed, {outcomes['passed']:,} passed"
        if not wrong:
            counts = f"FAILED: pytest ended with {code}"
    skipped = ""
    if reasons:
        missing = " is not installed"
        each = ", ".join(
            f"{count} without {reason.removesuffix(missing)}"
            if reason.endswith(missing)
            else f"{count} because: {reason}"
            for reason, count in reasons.most_common()
        )
        skipped = f"; {sum(reasons.values())} were skipped: {each}"
    return f"{name}: {counts} {minutes}{skipped}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
