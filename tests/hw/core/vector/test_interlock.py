"""The interlock against a list of what is still to be written."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import NamedTuple

import pytest
from vdla.hw.core.vector.interlock import SOURCES, Interlock
from vdla.isa.encoding import VECTOR_LOOPS
from vdla.isa.timing import VECTOR_DEPTH

from ..bench import SMALL
from ..simulation import simulate

ENTRIES = 6


class Access(NamedTuple):
    """An access of tmp, or none."""

    valid: int
    entry: int


class Iteration(NamedTuple):
    """An iteration: what it reads and writes, and the loop that goes on to it, None for the first
    of an instruction.
    """

    reads: list[Access]
    writes: Access
    loop: int | None


NOTHING = Access(0, 0)


def random_access(rng: random.Random, probability: float) -> Access:
    return Access(int(rng.random() < probability), rng.randrange(ENTRIES))


def random_iteration(rng: random.Random) -> Iteration:
    return Iteration(
        [random_access(rng, 0.4) for _ in SOURCES],
        random_access(rng, 0.4),
        rng.choice((None, *range(VECTOR_LOOPS))),
    )


class Bench:
    """An interlock, and what was issued in the last cycles."""

    def __init__(self, passes: int, seed: int) -> None:
        self.interlock = Interlock(replace(SMALL, vector_passes=passes))
        self.passes, self.rng = passes, random.Random(seed)
        self.coming = [NOTHING] * VECTOR_DEPTH
        self.waited = 0

    def set_access(self, ctx, port, access: Access) -> None:
        ctx.set(port.valid, access.valid)
        ctx.set(port.entry, access.entry)

    def set_next(self, ctx, iteration: Iteration | None) -> None:
        """Set what comes after this cycle. The inputs of loops that do not go on are arbitrary."""
        loop = None if iteration is None else iteration.loop
        ctx.set(self.interlock.start, int(iteration is not None and loop is None))
        ctx.set(self.interlock.advances, 0 if loop is None else 1 << loop)
        sets = [self.interlock.starting, *self.interlock.following]
        chosen = 0 if loop is None else 1 + loop
        for number, ports in enumerate(sets):
            for n, port in enumerate(ports):
                said = iteration is not None and number == chosen
                access = iteration.reads[n] if said else random_access(self.rng, 0.5)
                self.set_access(ctx, port, access)

    async def cycle(self, ctx, issued: Access, ends: int) -> None:
        """A cycle in which a pass is issued, or nothing; what comes next is set before."""
        now = [issued, *self.coming]
        for port, access in zip(self.interlock.writes, now, strict=False):
            self.set_access(ctx, port, access)
        ctx.set(self.interlock.ends, ends)
        await ctx.tick()
        self.coming = now[:VECTOR_DEPTH]

    def waits(self, iteration: Iteration) -> bool:
        """Whether an entry that it reads is written in this cycle, or is to be."""
        return any(read.valid and Access(1, read.entry) in self.coming for read in iteration.reads)

    async def run(self, ctx) -> None:
        iterations = [random_iteration(self.rng) for _ in range(600)]
        self.set_next(ctx, iterations[0]._replace(loop=None))
        await self.cycle(ctx, NOTHING, 0)
        for iteration, following in zip(iterations, [*iterations[1:], None], strict=True):
            while ctx.get(self.interlock.hazard):
                assert self.waits(iteration)
                self.waited += 1
                self.set_next(ctx, iteration._replace(loop=self.rng.randrange(VECTOR_LOOPS)))
                await self.cycle(ctx, NOTHING, self.rng.randrange(2))
            assert not self.waits(iteration)
            for part in range(self.passes):
                last = part == self.passes - 1
                apart = last and following is not None and following.loop is None
                pause = apart and self.rng.random() < 0.5
                goes_on = last and not pause
                self.set_next(ctx, following if goes_on else None)
                if not last:
                    ctx.set(self.interlock.advances, 1 << self.rng.randrange(VECTOR_LOOPS))
                await self.cycle(ctx, iteration.writes, int(last))
                if not last:
                    assert not ctx.get(self.interlock.hazard)
                if pause:
                    self.set_next(ctx, following)
                    await self.cycle(ctx, NOTHING, self.rng.randrange(2))


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 2])
def test_waits_for_what_is_to_be_written_and_no_longer(passes: int) -> None:
    bench = Bench(passes, seed=3)
    simulate(bench.interlock, bench.run)
    assert bench.waited > 1000
