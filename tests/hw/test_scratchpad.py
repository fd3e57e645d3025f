"""Scratchpads: latency, old data on a collision."""

from __future__ import annotations

import random

import pytest
from amaranth.sim import Simulator
from vdla.hw.scratchpad import Scratchpad, entry_bits
from vdla.isa.params import MEMORIES

from .bench import SMALL


@pytest.mark.parametrize("name", MEMORIES)
def test_reads_see_writes_of_earlier_cycles(name: str) -> None:
    pad = Scratchpad(name, SMALL, 2)
    bits, depth = entry_bits(name, SMALL), SMALL.depth(name)
    rng = random.Random(name)
    collisions = 0

    async def bench(ctx):
        nonlocal collisions
        model = [0] * depth
        shown = [0, 0]
        for t in range(300):
            row, data, enable = rng.randrange(depth), rng.getrandbits(bits), rng.random() < 0.7
            ctx.set(pad.write.addr, row)
            ctx.set(pad.write.data, data)
            ctx.set(pad.write.en, enable)
            for reader, port in enumerate(pad.read):
                assert ctx.get(port.data) == shown[reader] or t == 0
                address = rng.choice((row, rng.randrange(depth)))
                ctx.set(port.addr, address)
                shown[reader] = model[address]
                collisions += address == row and enable
            if enable:
                model[row] = data
            await ctx.tick()

    simulator = Simulator(pad)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert collisions > 20


def test_widths() -> None:
    assert entry_bits("uop", SMALL) == SMALL.uop_bits
    assert entry_bits("wgt", SMALL) == 128
