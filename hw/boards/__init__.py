"""Boards: one file each, one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from amaranth.lib.wiring import Component

from ...isa.errors import VdlaError
from ...isa.params import HwParams
from ..fpga.devices import Device


@dataclass(frozen=True)
class Board:
    """A board and the design for it.

    Attributes
    ----------
    name : for ``--board``
    doc : one line
    device : its FPGA
    hw : the configuration that is built unless another is given
    freq_mhz : the core's clock unless another is given
    design : makes the top level for a configuration and a clock in MHz; pins that go both ways are
        in its ``io_ports``
    constraints : the text of the LPF file, or for Xilinx the XDC file
    """

    name: str
    doc: str
    device: Device
    hw: HwParams
    freq_mhz: float
    design: Callable[[HwParams, float], Component]
    constraints: str


#: Name and module.
BOARDS = {"ulx3s-85f": "ulx3s_85f", "ulx3s-bram": "ulx3s_bram", "pynq-z1": "pynq_z1"}


def find_board(name: str) -> Board:
    """A board by name."""
    if name not in BOARDS:
        raise VdlaError(f"board: expected one of {', '.join(BOARDS)}, got {name!r}")
    return import_module(f"{__name__}.{BOARDS[name]}").BOARD
