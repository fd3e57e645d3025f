"""Designs of a front, proved: their networks run in RTL in the cycles that the exploration says,
random programs agree in every byte and cycle, and nextpnr places them at a clock that they reach.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..bench.measure import Measurement, measure
from ..bench.networks import find_model
from ..hw.fpga import synthesis
from ..hw.fpga.devices import Board
from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..runtime.files import write_text
from ..sim.rtl.toolchain import setup_yosys
from ..sim.verify.campaign import verify
from .exploration import Exploration, Outcome

#: Random programs through reference, model and RTL for each design that is built.
PROGRAMS = 20
#: Clocks that are tried: the board's, then a part of what the one before has reached.
CLOCKS, SLOWER = 3, 0.95
_IN_RTL = "networks run in RTL, in the same cycles"

Progress = Callable[[str], None]


def run_in_rtl(
    exploration: Exploration, outcome: Outcome, progress: Progress
) -> dict[str, Measurement]:
    """The networks of an exact design in the model and in RTL, which agree in every byte of DRAM
    and in every instruction's start and end; by their file names.

    Raises VdlaError where they do not, and where the cycles are not those of the exploration.
    """
    params, memory = outcome.design.machine
    found, records = {}, exploration.ladder.records(outcome.design)
    for name, row in zip(exploration.spec.networks, outcome.rows, strict=True):
        progress(f"{params.hash}: {Path(name).name} in RTL")
        model = find_model(name, params.batch)
        run = measure(
            model, params, memory, ("rtl", "sim"), outcome.design.vthreads, records=records
        )
        if run.cycles != row["cycles"]:
            raise VdlaError(
                f"{Path(name).name} on {params.hash}: expected {row['cycles']:,} cycles in RTL, as"
                f" explored, got {run.cycles:,}; explore again without {exploration.results.path}"
            )
        found[Path(name).name] = run
    return found


def prove(exploration: Exploration, outcome: Outcome, progress: Progress) -> dict[str, Any]:
    """The ``proof`` of a report's design: ``rtl_cycles`` by network, and as ``text``.

    Raises VdlaError where the RTL has other cycles.
    """
    runs = run_in_rtl(exploration, outcome, progress)
    return {"rtl_cycles": {name: run.cycles for name, run in runs.items()}, "text": _IN_RTL}


def build(
    exploration: Exploration, outcome: Outcome, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Prove a design and place it. The folder gets ``design.toml``, each network's programs
    (``NETWORK_NUMBER.vdla``), what ``vdla fpga build`` leaves, and ``proof.json``.

    Returns what :func:`prove` does, with ``verify`` (as ``vdla verify --json``), ``fpga`` (as
    ``vdla fpga build --json``), ``missed`` (what kept it from a bitstream, a line for each) and
    ``folder``.

    Raises
    ------
    VdlaError
        Where RTL, model and reference do not agree.
    """
    params, memory = outcome.design.machine
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "design.toml", outcome.design.toml)
    runs = run_in_rtl(exploration, outcome, progress)
    for name, run in runs.items():
        for number, program in enumerate(run.compiled.programs, 1):
            program.save(folder / f"{Path(name).stem}_{number}.vdla")
    progress(f"{params.hash}: {PROGRAMS} random programs")
    verified = verify(params, memory, PROGRAMS)
    if verified["first_divergence"] is not None:
        raise VdlaError(
            f"{params.hash}: expected the same bytes and cycles in reference, model and RTL, got a"
            f" difference; see vdla verify --hw {folder / 'design.toml'}"
        )
    placed = place(exploration.ladder.board, params, folder, progress)
    proof = {
        "text": f"{_IN_RTL}; {PROGRAMS} random programs agree; {_in_words(placed, folder)}",
        "rtl_cycles": {name: run.cycles for name, run in runs.items()},
        "verify": verified,
        "fpga": placed.body,
        "missed": placed.missed,
        "folder": str(folder),
    }
    write_text(folder / "proof.json", json.dumps(proof, indent=2) + "\n")
    return proof


def place(board: Board, params: HwParams, folder: Path, progress: Progress) -> synthesis.Result:
    """A bitstream at the board's clock, or at a slower one that the design reaches; the last result
    where there is none.
    """
    setup_yosys()
    mhz = board.freq_mhz
    result = synthesis.build(board, params, folder, freq_mhz=mhz, progress=progress)
    for _ in range(CLOCKS - 1):
        routed = [rate for rate in result.body["fmax_mhz"] if rate is not None]
        reached = routed or result.body["placed_mhz"]
        if not result.missed or not reached:
            break
        mhz = float(int(SLOWER * max(reached)))
        result = synthesis.build(board, params, folder, freq_mhz=mhz, progress=progress)
    return result


def _in_words(placed: synthesis.Result, folder: Path) -> str:
    if placed.missed:
        return "no bitstream"
    return f"routed at {max(placed.body['fmax_mhz']):.1f} MHz, bitstream in {folder}"
