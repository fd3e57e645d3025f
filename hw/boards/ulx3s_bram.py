"""ULX3S 85F without its SDRAM: all memory is block RAM. Small, quickly built, and its cycles are
those of simulation with ``hw/boards/block_ram.py``'s memory; ``make board`` builds it.
"""

from __future__ import annotations

from ...isa.params import HwParams
from ..fpga.devices import ECP5_85F, Board
from .block_ram import BlockRam
from .ulx3s import BUS_BITS, PINS, Ulx3s, constraints, system

MEMORY_BYTES = 64 << 10

#: The smallest block with just enough memory for the digits network.
SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=512, wgt_depth=256, acc_depth=256, uop_depth=128,
    par_depth=32, tmp_depth=64, out_depth=128, queue_depth=4, fetch_depth=4,
)  # fmt: skip


def design(params: HwParams, freq_mhz: float) -> Ulx3s:
    """The top level."""
    memory = BlockRam(params, MEMORY_BYTES)
    return Ulx3s(system(params, memory, freq_mhz), freq_mhz)


BOARD = Board(
    name="ulx3s-bram",
    doc="ULX3S with an ECP5-85F, 64 KiB of block RAM as memory",
    device=ECP5_85F,
    hw=SMALL,
    freq_mhz=25.0,
    design=design,
    constraints=constraints(PINS),
    bus_bits=BUS_BITS,
)
