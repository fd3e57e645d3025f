"""The long checks one after the other: ``make sweeps``, or ``python -m tests.sweeps NAME ...`` for
some of them.

Each is a target of the Makefile. What passed is remembered for the commit on which it passed and is
not run again there, unless ``--again`` says so; after an interruption the next call goes on. Of a
tree with uncommitted changes nothing is remembered, because the next call may find other changes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
#: Targets of the Makefile, in the order in which they run.
SWEEPS = (
    "more", "programs", "lattice", "verify", "processors", "mutants", "cosim", "campaign",
    "schedules", "fuzz", "operators", "gates", "board", "figures", "generate", "lines", "options",
    "docs-code", "docs-site", "test-pages", "gpu-emulated", "test-torch", "test-doors",
)  # fmt: skip
FOLDER = Path(".vdla") / "sweeps"


@dataclass(frozen=True)
class Tree:
    """What is checked: a commit, and whether there are changes that it lacks."""

    commit: str
    dirty: bool

    @property
    def label(self) -> str:
        """Name of the folder of its results."""
        return self.commit + ("-dirty" if self.dirty else "")


@dataclass(frozen=True)
class Outcome:
    """How one sweep ended.

    Attributes
    ----------
    result : ``passed``, ``failed``, or ``changed`` if the tree was another one at the end
    begun : local time, ISO 8601
    minutes : how long it took
    tree : the label of the tree that it began with
    """

    result: str
    begun: str
    minutes: float
    tree: str


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run what has not passed on this commit; 0 if all of it passed, 1 if not, 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweeps", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SWEEPS)}")
    parser.add_argument("--again", action="store_true", help="also what passed on this commit")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in SWEEPS:
            print(f"NAME: expected one of {', '.join(SWEEPS)}, got {name!r}", file=sys.stderr)
            return 2
    chosen = [name for name in SWEEPS if name in (options.names or SWEEPS)]
    ended: dict[str, Outcome] = {}
    try:
        for name in chosen:
            ended[name] = _sweep(name, root, options.again)
    except KeyboardInterrupt:
        print("interrupted; the next call goes on from here", file=sys.stderr)
    _show({**_remembered(root), **ended})
    return 0 if all(name in ended and ended[name].result == "passed" for name in chosen) else 1


def _sweep(name: str, root: Path, again: bool) -> Outcome:
    """Run one sweep, unless it has passed on this commit."""
    tree = read_tree(root)
    folder = root / FOLDER / tree.label
    state, output = folder / "state.json", folder / f"{name}.txt"
    before = _read(state).get(name)
    if before is not None and before.result == "passed" and not tree.dirty and not again:
        print(f"{name}: passed on this commit before")
        return before
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{name}: runs, output in {output.relative_to(root)}", flush=True)
    begun, start = datetime.now().isoformat(timespec="seconds"), time.monotonic()
    # Nothing of a make around this one, nor a smaller FUZZ: what is remembered ran in full.
    around = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "FUZZ")
    environment = {key: value for key, value in os.environ.items() if key not in around}
    with output.open("w") as file:
        done = subprocess.run(
            ["make", name], cwd=root, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    result = "failed" if done.returncode else "passed"
    if read_tree(root) != tree:
        result = "changed"
    minutes = round((time.monotonic() - start) / 60, 2)
    outcome = Outcome(result, begun, minutes, tree.label)
    outcomes = _read(state) | {name: outcome}
    text = json.dumps({key: asdict(value) for key, value in outcomes.items()}, indent=2) + "\n"
    state.write_text(text)
    print(f"{name}: {result} in {minutes:.1f} minutes", flush=True)
    return outcome


def read_tree(root: Path) -> Tree:
    """The commit that is checked out, and whether files differ from it or are not tracked."""
    commit, status = (
        subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True)
        for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    )
    return Tree(commit.stdout.strip(), bool(status.stdout.strip()))


def _read(state: Path) -> dict[str, Outcome]:
    """How the sweeps ended that ran on one tree; none of them where there is no such file."""
    outcomes = json.loads(state.read_text()) if state.exists() else {}
    return {name: Outcome(**fields) for name, fields in outcomes.items()}


def _remembered(root: Path) -> dict[str, Outcome]:
    """How each sweep ended last, on whatever tree."""
    last: dict[str, Outcome] = {}
    for state in (root / FOLDER).glob("*/state.json"):
        for name, outcome in _read(state).items():
            if name not in last or outcome.begun > last[name].begun:
                last[name] = outcome
    return last


def _show(outcomes: dict[str, Outcome]) -> None:
    """All sweeps in a table: how each ended last, when, on which commit, in how many minutes."""
    table = Table(title="how the sweeps ended last", title_justify="left")
    for column in ("sweep", "result", "begun", "commit", "minutes"):
        table.add_column(column, justify="right" if column == "minutes" else "left")
    for name in SWEEPS:
        if (outcome := outcomes.get(name)) is None:
            table.add_row(name, "never run")
            continue
        commit, dirty = outcome.tree[:10], " and changes" * outcome.tree.endswith("-dirty")
        begun = outcome.begun.replace("T", " ")
        table.add_row(name, outcome.result, begun, commit + dirty, f"{outcome.minutes:.1f}")
    wide = None if sys.stdout.isatty() else 120  # files have no width to fit
    Console(highlight=False, width=wide).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
