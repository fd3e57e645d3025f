"""Configurations and memories on which the campaigns run, written once: every block and bus width,
one, two and four rows, depths that are no power of two, the shortest and the longest queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.params import PRESETS, HwParams

VTA, WIDE, SLOW, ULX3S = (MEMORY_PRESETS[name] for name in ("vta", "wide", "slow", "ulx3s"))


@dataclass(frozen=True)
class Platform:
    """A core with the memory behind it."""

    name: str
    params: HwParams
    memory: MemoryParams


#: The smallest legal buffers: everything waits for everything.
SMALLEST = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip
#: Depths that are no power of two.
ODD = {
    "inp_depth": 301, "wgt_depth": 77, "acc_depth": 131, "uop_depth": 99, "par_depth": 31,
    "tmp_depth": 41, "out_depth": 65,
}  # fmt: skip

PLATFORMS = (
    Platform("4x4 smallest, vta", SMALLEST, VTA),
    Platform("4x4 smallest, ulx3s", SMALLEST, ULX3S),
    Platform("4x4 odd, slow and narrow",
             HwParams(block_in=4, block_out=4, queue_depth=3, fetch_depth=2, loads_in_flight=1,
                      token_bits=6, vector_passes=4, **ODD),
             replace(SLOW, outstanding=1, cycles_per_beat=3)),
    Platform("4x4 odd, window, vta",
             HwParams(block_in=4, block_out=4, queue_depth=4, vector_window=3, **ODD), VTA),
    Platform("4x4 batch 2, table, wide",
             replace(PRESETS["4x4"], batch=2, bus_bits=128, vector_table=1), WIDE),
    Platform("4x4 batch 4, bus 256, instant",
             replace(PRESETS["4x4"], batch=4, bus_bits=256, max_burst_beats=128, queue_depth=256),
             MemoryParams(256, read_latency_cycles=1, write_latency_cycles=1)),
    Platform("8x8 odd, table of int16, vta",
             HwParams(block_in=8, block_out=8, queue_depth=5, vector_table=2, **ODD), VTA),
    Platform("8x8 batch 2, odd, wide",
             HwParams(batch=2, block_in=8, block_out=8, bus_bits=128, max_burst_beats=16,
                      queue_depth=3, fetch_depth=4, loads_in_flight=2, stores_in_flight=3,
                      vector_passes=4, **ODD),
             WIDE),
    Platform("8x8, bus 256, 2 outstanding",
             HwParams(block_in=8, block_out=8, wgt_depth=2048, acc_depth=1024, bus_bits=256,
                      fetch_depth=32),
             MemoryParams(256, read_latency_cycles=30, write_latency_cycles=7, outstanding=2)),
    Platform("8x8, ulx3s", PRESETS["8x8"], ULX3S),
    Platform("8x8 odd, packed weights, window, table of int16, vta",
             HwParams(block_in=8, block_out=8, queue_depth=4, loads_in_flight=3, vector_window=3,
                      vector_table=2, packed_weights=1, **ODD), VTA),
    Platform("16x16, vta", HwParams(), VTA),
    Platform("16x16, table of int16, slow",
             HwParams(loads_in_flight=16, stores_in_flight=16, fetch_depth=16, vector_passes=2,
                      vector_table=2),
             SLOW),
    Platform("16x16, window, table of int16, vta", HwParams(vector_window=3, vector_table=2), VTA),
    Platform("16x16, packed weights, window, table of int16, slow",
             replace(PRESETS["16x16"], packed_weights=1), SLOW),
    Platform("8x8 batch 2, window of 4, 2 passes, wide",
             HwParams(batch=2, block_in=8, block_out=8, bus_bits=128, vector_passes=2,
                      vector_window=4, **ODD), WIDE),
    Platform("16x16 batch 2, odd, wide", HwParams(batch=2, bus_bits=128, **ODD), WIDE),
    Platform("32x32, packed weights, slow", replace(PRESETS["32x32"], packed_weights=1), SLOW),
    Platform("32x32 batch 2, odd, table, bus 256",
             HwParams(batch=2, block_in=32, block_out=32, bus_bits=256, max_burst_beats=4,
                      queue_depth=7, loads_in_flight=3, stores_in_flight=1, vector_passes=2,
                      vector_table=1, **ODD),
             MemoryParams(256, read_latency_cycles=77, write_latency_cycles=19, cycles_per_beat=2)),
)  # fmt: skip

#: Those whose scratchpads hold a tile of the digits network's convolutions.
ROOMY = tuple(platform for platform in PLATFORMS if platform.params != SMALLEST)
