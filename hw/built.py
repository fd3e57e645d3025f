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
    mhz : the clock that the design has: what was asked for
    fmax_mhz : the highest clock that nextpnr gives it after routing
    lut, ff, dsp, bram : what it takes of the device
    design_sha256 : digest of the Verilog without comments and lines of the source
    bitstream_sha256 : digest of the bitstream
    """

    board: str
    memory: str
    config_hash: str
    mhz: float
    fmax_mhz: float
    lut: int
    ff: int
    dsp: int
    bram: int
    design_sha256: str
    bitstream_sha256: str


BUILT = (
    Built(
        "ulx3s-85f", "ulx3s", "b26169b8", 60.0, 62.51, 33_731, 17_578, 144, 152,
        "065f07fdcc9abd6c88fbae94e4c458359198636dddc23405928a94511ea1e5fd",
        "9bf969216ae59f7892bae9209a5c7ae80fe4403016ed30a47b688776277ad8d4",
    ),
    Built(
        "ulx3s-85f", "ulx3s", "7034c3b0", 54.0, 54.66, 56_649, 24_820, 156, 206,
        "9f49092f819cd19e92ebf355299fb94964fd5968058db764792b44048edd23fe",
        "13b27cca5f5205fbf9341fcf9d7f7c2f22419b59521af38d33e309cab3862108",
    ),
)  # fmt: skip


def find_built(params: HwParams, memory: MemoryParams) -> Built | None:
    """The design of a configuration on a board with this memory; None where none was routed."""
    for built in BUILT:
        if MEMORY_PRESETS[built.memory] == memory and built.config_hash == params.hash:
            return built
    return None
