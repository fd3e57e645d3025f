"""Random LOAD instructions, and what they mean, written down plainly."""

from __future__ import annotations

import random
from dataclasses import replace

from vdla.isa.errors import VdlaError
from vdla.isa.insn import Load, validate
from vdla.isa.opcodes import LOADABLE, Units, widened
from vdla.isa.params import HwParams

from ..bench import SMALL

#: A beat that holds two entries of inp, an entry of inp that takes two, widened entries that take
#: several, a wide bus; packed weights, with two rows of a tile in a beat, and with two beats of
#: scales.
CONFIGS = {
    "two in a beat": replace(SMALL, par_depth=40, uop_depth=40),
    "batch 4": replace(SMALL, batch=4, inp_depth=60),
    "32 channels": replace(SMALL, block_in=32, block_out=32),
    "bus 256": replace(SMALL, bus_bits=256, max_burst_beats=16, inp_depth=90, uop_depth=90),
    "packed": replace(SMALL, block_in=8, block_out=8, packed_weights=1),
    "packed, 32 channels": replace(SMALL, block_in=32, block_out=32, packed_weights=1),
}
MASKS = [Units(mask) for mask in range(16) if not Units(mask) & Units.LOAD]


def random_load(params: HwParams, rng: random.Random) -> Load:
    """A legal instruction with padding on some sides; addresses are in the first 4 KiB."""
    while True:
        memory = rng.choice(LOADABLE)
        insn = Load(
            pop=rng.choice(MASKS), push=rng.choice(MASKS), memory=memory,
            base=rng.randrange(params.depth(memory)), dram_addr=rng.randrange(2048),
            x_size=rng.choice((1, rng.randrange(1, 12))), y_size=rng.randrange(4),
            z_size=rng.choice((1, rng.randrange(1, 4))),
            y_stride=rng.randrange(400), z_stride=rng.randrange(1000),
            pad_top=rng.choice((0, 0, 1, 2)), pad_bottom=rng.choice((0, 0, 1, 2)),
            pad_left=rng.choice((0, 0, 1, 3)), pad_right=rng.choice((0, 0, 1, 3)),
            pad_value=rng.randrange(-128, 128),
            widen=int(memory in widened(params) and rng.random() < 0.5),
        )  # fmt: skip
        unit = min(insn.dram_entry_bytes(params), params.bus_bytes)
        places = ("dram_addr", "y_stride", "z_stride")
        insn = replace(insn, **{name: getattr(insn, name) // unit * unit for name in places})
        try:
            validate(insn, params)
        except VdlaError:
            continue
        return insn
