"""The sums of a lane's window against products of bytes, one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from vdla.hw.core.vector.window import Window

from ..bench import SMALL
from ..simulation import simulate


def signed(value: int, bits: int) -> int:
    """Two's complement."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


@pytest.mark.fast(1)
@pytest.mark.parametrize("passes", [1, 2, 4])
@pytest.mark.parametrize("products", [2, 3, 4])
def test_sums_of_every_pass(passes: int, products: int) -> None:
    """Iterations with pauses between passes: sums of a pass move on with its own iterations."""
    rng = random.Random(products)
    window = Window(replace(SMALL, vector_passes=passes, vector_window=products))
    sums = [[0] * products for _ in range(passes)]

    async def take(ctx, part: int, moves: bool) -> None:
        a, b = (rng.randrange(-(1 << 31), 1 << 31) for _ in range(2))
        ctx.set(window.a, a)
        ctx.set(window.b, b)
        ctx.set(window.operate.valid, 1)
        await ctx.tick()
        ctx.set(window.operate.valid, 0)
        ctx.set(window.add.valid, 1)
        ctx.set(window.add.moves, moves)
        await ctx.tick()
        ctx.set(window.add.valid, 0)
        kept = [0, *sums[part][:-1]] if moves else sums[part]
        sums[part] = [
            signed(kept[i] + signed(a, 8) * signed(b >> 8 * i, 8), 32) for i in range(products)
        ]
        for _ in range(rng.choice((0, 0, 1, 3))):
            await ctx.tick()

    async def bench(ctx) -> None:
        # What a window starts with does not count: the sums move out.
        for number in range(40):
            moves = number < products or rng.random() < 0.4
            for part in range(passes):
                await take(ctx, part, moves)
                if number < products:
                    continue
                for i in range(products):
                    ctx.set(window.reduce.sums, 1 << i)
                    assert signed(ctx.get(window.result), 32) == sums[part][i]

    simulate(window, bench)
