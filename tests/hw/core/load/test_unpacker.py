"""The unpacker: every weight times every scale, wherever rows and beats begin."""

from __future__ import annotations

import random

import numpy as np
import pytest
from vdla.hw.core.load.unpacker import Unpacker
from vdla.isa.packed import unpack
from vdla.isa.params import HwParams

from ..simulation import simulate

#: Two rows of a tile in a beat, a row, half a row and two beats of scales, four rows.
CONFIGS = {
    f"{block}x{block}, {bits} bits": HwParams(
        block_in=block, block_out=block, bus_bits=bits, wgt_depth=64, packed_weights=1
    )
    for block, bits in ((8, 64), (16, 64), (32, 64), (8, 128))
}


@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_every_weight_times_every_scale(params: HwParams) -> None:
    """Beat after beat, and with pauses in which other numbers stand at the inputs."""
    rng, unpacker, bus = random.Random(4), Unpacker(params), params.bus_bytes
    seen = set()

    async def tile(ctx, raw: bytes) -> bytes:
        found = b""
        scales = params.packed_header_bytes // bus
        for number in range(len(raw) // bus):
            while rng.random() < 0.2:
                ctx.set(unpacker.data, rng.getrandbits(8 * bus))
                ctx.set(unpacker.number, number)
                await ctx.tick()
            beat = int.from_bytes(raw[number * bus : (number + 1) * bus], "little")
            ctx.set(unpacker.data, beat)
            ctx.set(unpacker.number, number)
            await ctx.tick()
            ctx.set(unpacker.written, beat)
            if number == 0:
                ctx.set(unpacker.first, beat)
            if number >= scales:
                found += ctx.get(unpacker.weights).to_bytes(2 * bus, "little")
        return found

    async def bench(ctx):
        while len(seen) < 256:
            raw = rng.randbytes(params.dram_entry_bytes("wgt", 1))
            expected = unpack(np.frombuffer(raw, np.uint8), params)
            assert await tile(ctx, raw) == expected.tobytes()
            halves = [byte >> shift & 15 for byte in raw for shift in (0, 4)]
            weights = halves[2 * params.packed_header_bytes :]
            seen.update((halves[n // params.block], weight) for n, weight in enumerate(weights))

    simulate(unpacker, bench)
