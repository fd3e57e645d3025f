"""``make lines``: line, branch and toggle coverage of ``hw/core`` by the programs of
``tests/cosim/bench_lines.py``, or ``python -m tests.campaign.lines F`` to keep it in a file, too.

Exits with 1 where less than 99 % of the lines are executed that programs can reach.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from vdla.cosim import Build, Design, LineCoverage, run_bench
from vdla.cosim.lines import KINDS
from vdla.cosim.runner import COVERAGE_FILE

from ..cosim.bench_lines import FAULTS
from ..cosim.configs import NARROW

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "tests" / "cosim" / "bench_lines.py"
GOAL = 0.99


def measure() -> LineCoverage:
    """All programs, on one build."""
    design, coverage = Design.core(NARROW, sources=True), LineCoverage()
    for fault in ("none", *FAULTS):
        with tempfile.TemporaryDirectory() as work:
            build = Build(fast=True, coverage=True)
            run_bench(design, BENCH, Path(work), ROOT, build, fault=fault)
            coverage.add(design.verilog, Path(work) / COVERAGE_FILE)
    return coverage


def main(names: list[str]) -> int:
    """Measure, and say what is missing."""
    coverage = measure()
    for name in names:
        coverage.save(Path(name))
    summary = coverage.summary("hw/core")
    for kind in KINDS:
        counts = summary[kind]
        print(f"{kind:7}{counts['reached']:8,} of {counts['points']:8,} {counts['fraction']:7.2%}")
    for kind in ("line", "branch"):
        for file, line, _, what in coverage.missing(kind, "hw/core"):
            print(f"never: {kind} {file}:{line}: {what}")
    return 0 if coverage.fraction("line", "hw/core") >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
