"""``make verify``: random programs through reference, SimPy and RTL on every configuration of the
table, and the digits network on all targets; or ``python -m tests.campaign.verify NAME ...`` on
those whose name contains a NAME.

Exits with 1 where a byte or a cycle differs, the first difference then being told as ``vdla
verify`` tells it, and where a configuration's functional coverage is below COVERAGE_GOAL;
``--coverage F`` keeps it in a file for ``vdla coverage``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

from vdla.runtime.workers import Workers
from vdla.sim.coverage.coverage import Coverage
from vdla.sim.verify.campaign import DEVICE, verify_on

from .configurations import PLATFORMS, ROOMY, Platform
from .networks import differences

#: Of the bins that a configuration can reach.
COVERAGE_GOAL = 0.98
COUNTS = ("programs", "instructions", "cycles", "byte_mismatches", "cycle_mismatches")


def main() -> int:
    """Verify the configurations one after another; 0 if nothing differs."""
    options = _options()
    platforms = [p for p in PLATFORMS if any(name in p.name for name in options.names)]
    if not platforms:
        known = ", ".join(repr(p.name) for p in PLATFORMS)
        print(f"NAME: expected a part of {known}, got {options.names!r}", file=sys.stderr)
        return 2
    said = sys.stderr if str(options.json) == "-" else sys.stdout
    with closing(Workers(DEVICE, None, options.workers)) as workers:
        reports = [
            _verify(workers, p, options.programs, options.seed, said, options.coverage)
            for p in platforms
        ]
    total = {key: sum(report[key] for report in reports) for key in (*COUNTS, "wall_s")}
    print(_line("in all", total), file=said)
    if options.json is not None:
        text = json.dumps({"seed": options.seed, "configurations": reports}, indent=2) + "\n"
        print(text, end="") if str(options.json) == "-" else options.json.write_text(text)
    return 1 if any(map(_failed, reports)) else 0


def _failed(report: dict[str, Any]) -> bool:
    coverage = report["coverage"]
    uncovered = coverage["fraction"] < COVERAGE_GOAL or coverage["surprises"]
    return bool(report["first_divergence"] or report["network"]["wrong"] or uncovered)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.verify")
    parser.add_argument("names", nargs="*", default=[""], metavar="NAME")
    parser.add_argument("--programs", type=_positive, default=1000, help="per configuration")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--workers", type=_positive, default=2, help="processes that share them")
    parser.add_argument("--coverage", type=Path, metavar="F", help="keep functional coverage")
    parser.add_argument("--json", type=Path, metavar="FILE", help="'-': standard output")
    return parser.parse_args()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return int(text)


def _verify(
    workers: Workers, platform: Platform, programs: int, seed: int, said: TextIO, file: Path | None
) -> dict[str, Any]:
    """The report of one configuration, printed as a line."""
    begun = time.perf_counter()
    progress = _progress(platform.name) if sys.stderr.isatty() else None
    coverage = Coverage(platform.params)
    found = verify_on(workers, platform.params, platform.memory, programs, seed, progress, coverage)
    network = differences(platform) if platform in ROOMY else (0, [])
    if file is not None:
        coverage.save(file)
    report = {
        "name": platform.name, "params": platform.params.to_dict(),
        "memory": platform.memory.to_dict(), **found,
        "network": dict(zip(("cycles", "wrong"), network, strict=True)),
        "coverage": {"reachable": len(coverage.reachable()), "holes": coverage.holes(),
                     "fraction": coverage.fraction(), "surprises": coverage.surprises()},
        "wall_s": time.perf_counter() - begun,
    }  # fmt: skip
    print(_line(platform.name, report), file=said, flush=True)
    if (first := report["first_divergence"]) is not None:
        text = ", ".join(f"{key} {value}" for key, value in first.items())
        print(f"  first difference: {text}", file=said, flush=True)
    for hole in report["coverage"]["holes"]:
        print(f"  not covered: {': '.join(hole)}", file=said, flush=True)
    for wrong in report["network"]["wrong"]:
        print(f"  network: {wrong}", file=said, flush=True)
    return report


def _progress(name: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        print(f"\r{name}: {done}/{total}\r", end="", file=sys.stderr, flush=True)

    return show


def _line(name: str, report: dict[str, Any]) -> str:
    programs, instructions, cycles, wrong_bytes, wrong_cycles = (report[key] for key in COUNTS)
    network = f", network {report['network']['cycles']:,}" if "network" in report else ""
    covered = f", coverage {report['coverage']['fraction']:.1%}" if "coverage" in report else ""
    return (
        f"{name:32}{programs:7,} programs {instructions:9,} instructions {cycles:12,} cycles: "
        f"{wrong_bytes} bytes, {wrong_cycles} cycles differ{network}{covered} "
        f"{report['wall_s']:8.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
