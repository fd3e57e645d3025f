"""``make lattice``: more of anything never costs: walks from presets to larger machines, at whose
steps no network may take more cycles::

    python -m tests.lattice [NETWORK ...] [--machines 16x16,8x8] [--steps 3] [--seed 0]

A table has each step: what is doubled, cycles before and after, and an exception where the larger
machine is a slower one for a reason. Exit 1 where more costs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from vdla.bench.networks import is_named
from vdla.isa.params import PRESETS

from .designs import Step, result_of, walk

#: Networks that are compiled in seconds, or a minute.
USUAL = ("dqn", "dcgan", "mobilenet_v3", "regnety_002", "bert", "vit_tiny")


def main(arguments: Iterable[str] | None = None) -> int:
    """Walk, and compare; 0 if more never costs, 1 if it does, 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.lattice")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=USUAL)
    parser.add_argument("--machines", default="16x16,8x8", help="presets from which walks begin")
    parser.add_argument("--steps", type=int, default=3, help="of each walk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for the rows of the table")
    options = parser.parse_args(None if arguments is None else list(arguments))
    machines = options.machines.split(",")
    unknown = [name for name in options.networks if not is_named(name)]
    unknown += [name for name in machines if name not in PRESETS]
    if unknown:
        print(f"expected networks, layers or presets of VDLA, got {unknown[0]!r}", file=sys.stderr)
        return 2
    table = Table("network", "from", "twice as much of", "cycles before", "after", "more", "")
    rows, found = [], 0
    for network in options.networks:
        for machine in machines:
            chance = random.Random(f"{options.seed} {network} {machine}")
            for step in walk(network, machine, options.steps, chance):
                row = _row(step, machine)
                rows.append(row)
                found += step.is_finding
                cells = [f"{row[name]:,}" for name in ("before", "after")]
                said = "MORE COSTS" if step.is_finding else step.exception
                table.add_row(network, machine, step.knobs, *cells, f"{step.growth:+.2%}", said)
                print(*cells, f"{step.growth:+.2%}", network, machine, step.knobs, said, flush=True)
    Console(width=140).print(table)
    print(f"{len(rows)} steps; more costs in {found} of them")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if found else 0


def _row(step: Step, machine: str) -> dict:
    less, more = (result_of(step.network, design) for design in (step.less, step.more))
    return {
        "network": step.network, "machine": machine, "doubled": step.knobs,
        "hw": step.more.hw.to_dict(), "memory": asdict(step.more.memory),
        "before": less.cycles, "after": more.cycles, "exception": step.exception,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
