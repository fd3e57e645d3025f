"""What the flow needs to know of a board."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.lib.wiring import Component

from ...isa.errors import VdlaError
from ...isa.params import HwParams
from .devices import Device


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
    bus_bits : the only width that the memory's bus may have; None where any will do
    """

    name: str
    doc: str
    device: Device
    hw: HwParams
    freq_mhz: float
    design: Callable[[HwParams, float], Component]
    constraints: str
    bus_bits: int | None = None

    def check(self, params: HwParams) -> None:
        """Raise VdlaError for a configuration that the board has no design for."""
        if self.bus_bits not in (None, params.bus_bits):
            raise VdlaError(
                f"bus_bits: expected {self.bus_bits}, which the board {self.name} has, got"
                f" {params.bus_bits}"
            )
