"""Loops and addresses against nested loops."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest
from vdla.hw.core.vector.loops import LOOPS, Addresses, Loops
from vdla.isa.encoding import VECTOR_LOOPS

from ..bench import SMALL
from ..simulation import simulate

Counter = tuple[int, ...]


def counters(extents: list[int]) -> list[Counter]:
    """The iterations in order."""
    return list(product(*(range(extent) for extent in extents)))


def advancing(counter: Counter, following: Counter | None) -> int:
    """The loop that goes on to the next iteration: the outermost whose index changes."""
    if following is None:
        return 0
    return 1 << min(k for k in LOOPS if counter[k] != following[k])


def random_extents(rng: random.Random) -> list[int]:
    return [rng.choice((1, 1, 2, 3)) for _ in LOOPS]


@pytest.mark.slow
def test_loops_as_nested_loops() -> None:
    """With pauses, and instructions back to back or apart."""
    rng = random.Random(1)
    loops = Loops(SMALL)

    async def start(ctx, extents: list[int], reduce: int) -> None:
        ctx.set(loops.start, 1)
        ctx.set(loops.reduce, reduce)
        for port, extent in zip(loops.extents, extents, strict=True):
            ctx.set(port, extent)
        assert ctx.get(loops.starts_at_end) == (max(extents) == 1)
        await ctx.tick()
        ctx.set(loops.start, 0)
        ctx.set(loops.moves, 0)
        ctx.set(loops.reduce, rng.randrange(VECTOR_LOOPS + 1))
        for port in loops.extents:
            ctx.set(port, rng.randrange(4))

    async def bench(ctx) -> None:
        for _ in range(150):
            extents, reduce = random_extents(rng), rng.randrange(VECTOR_LOOPS + 1)
            folded = LOOPS[VECTOR_LOOPS - reduce :]
            await start(ctx, extents, reduce)
            for counter, following in pairwise([*counters(extents), None]):
                assert counter is not None
                while rng.random() < 0.2:
                    await ctx.tick()
                assert ctx.get(loops.advances) == advancing(counter, following)
                assert ctx.get(loops.first) == all(counter[k] == 0 for k in folded)
                assert ctx.get(loops.done) == all(counter[k] == extents[k] - 1 for k in folded)
                ctx.set(loops.moves, 1)
                if following is not None:
                    at_end = all(
                        n == extent - 1 for n, extent in zip(following, extents, strict=True)
                    )
                    assert ctx.get(loops.next_at_end) == at_end
                if following is not None or rng.random() < 0.5:
                    await ctx.tick()
                    ctx.set(loops.moves, 0)

    simulate(loops, bench)


def test_addresses_are_affine() -> None:
    """The entry of every iteration, and that of the next for the loop that goes on to it."""
    rng = random.Random(2)
    addresses = Addresses("src0", SMALL)
    mask = (1 << len(addresses.entry)) - 1

    async def bench(ctx) -> None:
        for _ in range(150):
            extents, base = random_extents(rng), rng.randrange(1 << len(addresses.base))
            strides = [rng.randrange(1 << len(addresses.base)) for _ in LOOPS]

            def entry(counter: Counter, base: int = base, strides: list[int] = strides) -> int:
                return base + sum(n * s for n, s in zip(counter, strides, strict=True)) & mask

            ctx.set(addresses.start, 1)
            ctx.set(addresses.base, base)
            for port, stride in zip(addresses.strides, strides, strict=True):
                ctx.set(port, stride)
            await ctx.tick()
            ctx.set(addresses.start, 0)
            ctx.set(addresses.base, 0)
            for port in addresses.strides:
                ctx.set(port, 0)
            for counter, following in pairwise([*counters(extents), None]):
                assert counter is not None
                ctx.set(addresses.advances, advancing(counter, following))
                ctx.set(addresses.moves, 0)
                while rng.random() < 0.2:
                    await ctx.tick()
                assert ctx.get(addresses.entry) == entry(counter)
                if following is not None:
                    loop = advancing(counter, following).bit_length() - 1
                    assert ctx.get(addresses.after[loop]) == entry(following)
                    ctx.set(addresses.moves, 1)
                    await ctx.tick()
            ctx.set(addresses.moves, 0)

    simulate(addresses, bench)
