"""The core as a directory for Xilinx' tools, made without them: Verilog with AXI ports,
constraints, and a script that packages it as IP.
"""

from __future__ import annotations

from pathlib import Path

from ...isa.params import HwParams
from ..core.verilog import to_verilog
from .pynq_z1 import BOARD, PART

NAME = "vdla_axi"
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

Nothing in this directory has been run through the vendor's tools.
"""


def ip_verilog(params: HwParams) -> str:
    """The core with AXI ports, as the directory has it."""
    return to_verilog(BOARD.design(params, BOARD.freq_mhz), NAME)


def export(params: HwParams, directory: Path) -> list[Path]:
    """Write the directory; returns its files."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        f"{NAME}.v": ip_verilog(params),
        f"{NAME}.xdc": BOARD.constraints,
        "package_ip.tcl": _TCL.format(part=PART, name=NAME),
        "README.md": _README.format(part=PART, name=NAME, hash=params.hash, bus=params.bus_bits),
    }
    for name, text in texts.items():
        (directory / name).write_text(text)
    return [directory / name for name in texts]
