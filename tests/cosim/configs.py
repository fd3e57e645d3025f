"""Small configurations: quick to build, and on both sides of the bus width."""

from __future__ import annotations

from dataclasses import replace

from vdla.isa.params import HwParams

#: Two entries of `inp` and `out` in a beat, two beats in a weight tile.
NARROW = HwParams(
    block_in=4, block_out=4, inp_depth=48, wgt_depth=24, acc_depth=40, uop_depth=32, par_depth=16,
    tmp_depth=24, out_depth=40, max_burst_beats=16, queue_depth=4, fetch_depth=4,
    loads_in_flight=2, stores_in_flight=2, token_bits=6,
)  # fmt: skip
#: Two beats in an entry of `inp` and `out`.
WIDE = replace(NARROW, batch=4)
#: With a table and with sliding windows.
FEATURES = replace(NARROW, par_depth=32, vector_table=1, vector_window=3)
CONFIGS = {"narrow": NARROW, "wide": WIDE, "features": FEATURES}
