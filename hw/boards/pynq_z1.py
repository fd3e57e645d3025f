"""PYNQ-Z1, the board of the TVM paper: the core behind the AXI ports of its processors. Yosys
counts what it takes; ``vdla fpga export`` has the rest for Xilinx' tools.
"""

from __future__ import annotations

from pathlib import Path

from ...isa.params import PRESETS, HwParams
from ..core.verilog import to_verilog
from ..fpga.devices import XC7Z020, Board
from .axi_ip import AxiCore

PART = "xc7z020clg400-1"
FREQ_MHZ = 100.0
_XDC = f"""\
# Out of context: the system that the core is put into drives the clock.
create_clock -name aclk -period {1000 / FREQ_MHZ:.3f} [get_ports aclk]
"""


def design(params: HwParams, _freq_mhz: float) -> AxiCore:
    """The top level; the system around it makes the clock."""
    return AxiCore(params, XC7Z020.technology(params))


BOARD = Board(
    name="pynq-z1",
    doc="PYNQ-Z1 with an XC7Z020, counted by yosys only",
    device=XC7Z020,
    hw=PRESETS["ecp5-85f"],  # the one for the ECP5 fits here, too; the default has too much memory
    freq_mhz=FREQ_MHZ,
    design=design,
    constraints=_XDC,
)


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
    """The Verilog of the core with AXI ports, which :func:`export` writes."""
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
        (directory / name).write_text(text, "utf-8")
    return [directory / name for name in texts]
