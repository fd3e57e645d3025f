"""``make programs``: whether the compiler still writes what it wrote, for networks on machines.

``programs.json`` has a digest of every accelerator program, how many programs a network is, how
many of its layers run on the host, and the cycles by the simulator; and digests of the code for the
CPU and of the kernels for GPUs. A change that only moves or renames leaves all of them as they are;
of one that is meant to make other programs this prints the cycles before and after::

    python -m tests.programs [NAME ...]     # those whose name contains a NAME
    python -m tests.programs --write        # what is there is right: write it down
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track
from rich.table import Table

from .cases import CASES, MACHINES, made

KNOWN = Path(__file__).with_name("programs.json")
_ERRORS = Console(stderr=True)


def main(arguments: Iterable[str] | None = None) -> int:
    """Compile the cases and compare them with :data:`KNOWN`; 1 if one differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help=f"write {KNOWN.name}")
    options = parser.parse_args(None if arguments is None else list(arguments))
    chosen = [c for c in CASES if not options.names or any(n in c for n in options.names)]
    if not chosen:
        print(f"NAME: expected part of one of {', '.join(CASES)}", file=sys.stderr)
        return 2
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    found: dict[str, dict] = {}
    with TemporaryDirectory() as cache:
        os.environ["VDLA_CACHE"] = cache  # nothing that was compiled before
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(os.cpu_count(), context) as pool:
            results = pool.map(made, chosen, chunksize=len(MACHINES))  # a network to one process
            results = track(results, "programs", len(chosen), console=_ERRORS)
            for name, result in zip(chosen, results, strict=True):
                found[name] = result
                if options.write:  # after each: all of them take an hour
                    _write(known | found)
    different = {name for name, result in found.items() if known.get(name) != result}
    _show(known, found, different)
    return 1 if different and not options.write else 0


def _write(results: Mapping[str, dict]) -> None:
    """Write down those of cases that there still are."""
    known = {name: results[name] for name in sorted(results) if name in CASES}
    KNOWN.write_text(json.dumps(known, indent=0) + "\n")


def _show(known: Mapping[str, dict], found: Mapping[str, dict], different: set[str]) -> None:
    """A table of what differs, and one line."""
    table = Table("case", "programs", "host layers", "cycles before", "now", "more")
    for name in sorted(different):
        before, now = known.get(name, {}), found[name]
        cells = [
            " -> ".join(str(r[key]) for r in (before, now) if key in r)
            for key in ("programs", "host layers")
        ]
        cycles = [f"{n:,}" if (n := result.get("cycles")) else "" for result in (before, now)]
        more = f"{now['cycles'] / before['cycles'] - 1:+.2%}" if all(cycles) else ""
        table.add_row(name, *cells, *cycles, more)
    if different:
        Console(width=120).print(table)
    print(f"{len(found) - len(different)} of {len(found)} are as they were")


if __name__ == "__main__":
    sys.exit(main())
