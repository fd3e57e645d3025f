"""Seeded bugs, each of which a check must catch: ``make mutants``, or ``python -m tests.mutants
NAME ...`` for those whose name or place contains a NAME. With ``--cosim`` those of the RTL, under
``vdla cosim``: ``make cosim``.

A check that cannot fail proves nothing. Every mutant is a bug of the kind that hardware and
compilers have, planted in a function while its check runs, never in a file. A mutant survives
where the check that ought to see it sees nothing; then this script exits with 1.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from vdla.compiler.targets.common import cache as kept
from vdla.sim.rtl import toolchain

from .board import BOARD
from .checker import CHECKER
from .compiler import COMPILER
from .cosim import COSIM, UNSEEN
from .explore import EXPLORE
from .frontends import FRONTENDS
from .plant import Mutant
from .rtl import RTL
from .sim import SIM
from .tune import TUNE

MUTANTS: tuple[Mutant, ...] = (*RTL, *BOARD, *SIM, *COMPILER, *FRONTENDS, *TUNE, *EXPLORE, *CHECKER)
COSIM_OPTION = "--cosim"

_compile = toolchain.compile_shared


def compile_quickly(sources: list[Path], includes: list[Path], output: Path, *flags: str) -> None:
    """The same shared library, not optimised: it runs for a few thousand cycles."""
    _compile(sources, includes, output, *flags, "-O0")


def main() -> int:
    """Run the checks without a bug, then every mutant; 0 if each is caught, 2 for a wrong NAME."""
    names = [name for name in sys.argv[1:] if name != COSIM_OPTION] or [""]
    under_cosim = COSIM_OPTION in sys.argv
    mutants, unseen = (COSIM, UNSEEN) if under_cosim else (MUTANTS, {})
    chosen = [m for m in mutants if any(name in m.name or name in m.place for name in names)]
    if not chosen:
        print(f"NAME: expected part of a mutant's name or place, got {names!r}", file=sys.stderr)
        return 2
    with (
        TemporaryDirectory() as cache,
        patch.dict(os.environ, VDLA_CACHE=cache),
        patch.object(toolchain, "compile_shared", compile_quickly),
        patch.object(kept, "KEPT_FROM_S", math.inf),  # what is kept knows no bugs of the compiler
    ):
        # Before any mutant is planted: so the true RTL is the true one.
        for check in dict.fromkeys(mutant.check for mutant in chosen):
            if (found := check()) is not None:
                print(f"{check} fails without a bug: {found}", file=sys.stderr)
                return 1
        caught = [(mutant.name, _caught(mutant)) for mutant in chosen]
    survived = {name for name, by in caught if not by}
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutants caught")
    if not under_cosim:
        counts = Counter(by for _, by in caught if by)
        print(", ".join(f"{count} by {by}" for by, count in sorted(counts.items())))
    for name in survived & set(unseen):
        print(f"  not to be seen: {name}: {unseen[name]}")
    return 0 if survived <= set(unseen) else 1


def _caught(mutant: Mutant) -> str:
    """By which of `make test` and `make more` a mutant is seen, if its check sees it; as a line of
    the table, too."""
    begun = time.perf_counter()
    with mutant.plant():
        found = mutant.check()
    by = "make test" if found and found.startswith("make test: ") else "make more"
    verdict = "SURVIVED" if found is None else by
    seconds = time.perf_counter() - begun
    print(f"{mutant.place:12}{mutant.name:44}{verdict:10}{seconds:6.1f} s  {found or ''}"[:200],
          flush=True)  # fmt: skip
    return "" if found is None else by


if __name__ == "__main__":
    sys.exit(main())
