"""PYNQ-Z1, the board of the TVM paper: the core behind the AXI ports of its processors. Yosys
counts what it takes; ``vdla fpga export`` has the rest for Xilinx' tools.
"""

from __future__ import annotations

from ...isa.params import PRESETS, HwParams
from ..fpga.board import Board
from ..fpga.devices import XC7Z020
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
