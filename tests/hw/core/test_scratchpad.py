"""Scratchpads: latency, old data on a collision."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from amaranth.sim import Simulator
from vdla.hw.core.scratchpad import Scratchpad, rows, written_parts
from vdla.isa.params import MEMORIES

from .bench import SMALL


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", MEMORIES)
def test_reads_see_writes_of_earlier_cycles(name: str) -> None:
    pad = Scratchpad(name, SMALL, 2)
    depth, bits = rows(name, SMALL)
    rng = random.Random(name)
    collisions = 0

    async def bench(ctx):
        nonlocal collisions
        model = [0] * depth
        shown = [0, 0]
        for t in range(300):
            row, data = rng.randrange(depth), rng.getrandbits(bits)
            enable = rng.choice((0, rng.randrange(1 << pad.parts), (1 << pad.parts) - 1))
            ctx.set(pad.write.addr, row)
            ctx.set(pad.write.data, data)
            ctx.set(pad.write.en, enable)
            for reader, port in enumerate(pad.read):
                assert ctx.get(port.data) == shown[reader] or t == 0
                address = rng.choice((row, rng.randrange(depth)))
                ctx.set(port.addr, address)
                shown[reader] = model[address]
                collisions += address == row and enable != 0
            for part in range(pad.parts):
                if enable >> part & 1:
                    mask = ((1 << bits // pad.parts) - 1) << part * (bits // pad.parts)
                    model[row] = model[row] & ~mask | data & mask
            await ctx.tick()

    simulator = Simulator(pad)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert collisions > 20


def test_rows() -> None:
    assert rows("uop", SMALL) == (16, SMALL.uop_bits)
    assert rows("wgt", SMALL) == (12, 128)
    assert rows("tmp", replace(SMALL, vector_passes=2)) == (20, 64)


def test_parts() -> None:
    """The load unit writes what a beat of 64 bits brings; others write whole entries."""
    parts = {name: written_parts(name, SMALL) for name in MEMORIES}
    assert parts == {"inp": 1, "wgt": 2, "uop": 1, "par": 2, "acc": 1, "tmp": 1, "out": 1}
