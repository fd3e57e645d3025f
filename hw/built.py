"""Designs of which ``vdla fpga build`` made a bitstream: their clocks turn cycles into time.

A clock belongs to one configuration on one board. Its time is known for the memory that this board
has, because cycles behind another memory are of a machine that nobody can build. A change of the
RTL needs another route; ``make board`` compares the Verilog with that of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..isa.memory import MEMORY_PRESETS, MemoryParams
from ..isa.params import HwParams


@dataclass(frozen=True)
class Built:
    """A design that was placed and routed.

    Attributes
    ----------
    board, memory : names, for ``--board`` and ``--memory``
    config_hash : of its ``HwParams``
    asked_mhz : the clock that was asked for, which the design has (its PLL, the host's link)
    mhz : the highest clock that nextpnr gives it after routing
    lut, ff, dsp, bram : what it takes of the device
    design_sha256 : digest of the Verilog without comments and lines of the source
    bitstream_sha256 : digest of the bitstream
    """

    board: str
    memory: str
    config_hash: str
    asked_mhz: float
    mhz: float
    lut: int
    ff: int
    dsp: int
    bram: int
    design_sha256: str
    bitstream_sha256: str


BUILT = (
    Built(
        "ulx3s-85f", "ulx3s", "b26169b8", 60.0, 60.59, 33_805, 17_566, 144, 152,
        "5808631c31ec64892c5e1ef0500f1203e88843cf4d8a146439b55464afbd1fc4",
        "b8ff4896b9dd4d6cd127fc2e76ee38b295fbed0b11c983aee8bdc4acdc0277b4",
    ),
)  # fmt: skip


def find_built(params: HwParams, memory: MemoryParams) -> Built | None:
    """The design of a configuration on a board with this memory; None where none was routed."""
    for built in BUILT:
        if MEMORY_PRESETS[built.memory] == memory and built.config_hash == params.hash:
            return built
    return None
