"""Beats to entries: several entries in a beat, several beats in an entry."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from vdla.hw.core.load.beats import Collector, Splitter
from vdla.isa.params import HwParams

from ..bench import SMALL
from ..simulation import simulate

BUSES = {bits: replace(SMALL, bus_bits=bits, max_burst_beats=16) for bits in (64, 128, 256)}


def powers(limit: int) -> list[int]:
    """Sizes of entries of which there are several in a beat."""
    return [1 << k for k in range((limit - 1).bit_length())]


@pytest.mark.slow
@pytest.mark.parametrize("params", BUSES.values(), ids=BUSES)
def test_a_beat_is_taken_apart(params: HwParams) -> None:
    """Rows that begin and end anywhere in a beat give their entries in order, a cycle for each
    place in a beat, whether it is the row's or not.
    """
    rng, bus = random.Random(3), params.bus_bytes
    splitter = Splitter(params)

    async def row(ctx, size: int, offset: int, count: int) -> list[int]:
        """Send the beats of a row of ``count`` entries; returns those that came out."""
        found: list[int] = []
        beats = -(-(offset + count * size) // bus)
        data = [rng.getrandbits(8 * bus) for _ in range(beats)]
        ctx.set(splitter.offset, offset)
        for number, beat in enumerate(data):
            while rng.random() < 0.3:
                await ctx.tick()
            for place in range(bus // size):
                ctx.set(splitter.arrives, place == 0)
                # Behind its cycle a beat need not stand.
                ctx.set(splitter.beat, beat if place == 0 else rng.getrandbits(8 * bus))
                ctx.set(splitter.beyond, len(found) == count)
                assert ctx.get(splitter.holds) == (place != 0)
                assert ctx.get(splitter.last) == (place == bus // size - 1)
                position = number * bus + place * size
                inside = offset <= position < offset + count * size
                assert ctx.get(splitter.inside) == inside
                if inside:
                    mask = (1 << 8 * size) - 1
                    assert ctx.get(splitter.data) & mask == beat >> 8 * place * size & mask
                    found.append(position)
                ctx.set(splitter.entered, inside)
                ctx.set(splitter.row_over, (number, place) == (beats - 1, bus // size - 1))
                await ctx.tick()
                for name in ("arrives", "entered", "row_over"):
                    ctx.set(getattr(splitter, name), 0)
        return found

    async def bench(ctx):
        for _ in range(40):
            size = rng.choice(powers(bus))
            ctx.set(splitter.start, 1)
            ctx.set(splitter.entry_bytes, size)
            await ctx.tick()
            ctx.set(splitter.start, 0)
            for _ in range(3):
                offset = rng.randrange(0, bus, size)
                count = rng.randrange(1, 12)
                assert len(await row(ctx, size, offset, count)) == count

    simulate(splitter, bench)


@pytest.mark.fast(1)
@pytest.mark.parametrize("params", BUSES.values(), ids=BUSES)
def test_beats_are_counted_and_the_first_is_kept(params: HwParams) -> None:
    rng, bus = random.Random(4), params.bus_bits
    collector = Collector(replace(params, block_in=16, block_out=16))  # weights of 256 bytes
    most = 1 << len(collector.number)

    async def bench(ctx):
        for _ in range(40):
            count = rng.choice((1, 2, rng.randint(1, most)))
            ctx.set(collector.start, 1)
            ctx.set(collector.beats, {"wide": count > 1, "more_beats": count - 1})
            await ctx.tick()
            ctx.set(collector.start, 0)
            for _ in range(3):
                beats = [rng.getrandbits(bus) for _ in range(count)]
                for number, beat in enumerate(beats):
                    while rng.random() < 0.4:
                        ctx.set(collector.beat, rng.getrandbits(bus))
                        await ctx.tick()
                    assert ctx.get(collector.number) == number
                    assert ctx.get(collector.at_first) == (number == 0)
                    assert ctx.get(collector.at_last) == (number == count - 1)
                    if number:
                        assert ctx.get(collector.first) == beats[0]
                    ctx.set(collector.beat, beat)
                    ctx.set(collector.arrives, 1)
                    await ctx.tick()
                    ctx.set(collector.arrives, 0)

    simulate(collector, bench)
