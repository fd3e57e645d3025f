"""Token bank against counters in Python: random pushes and pops, cancellation, overflow, clear."""

from __future__ import annotations

import random
from itertools import permutations

from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator
from vdla.hw.core.token import TokenBank
from vdla.isa.opcodes import Unit
from vdla.isa.params import HwParams

PARAMS = HwParams(token_bits=4)
FULL = 15


def run(bank: TokenBank, bench) -> None:
    """Simulate one bench."""
    simulator = Simulator(bank)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def drive(ctx, bank: TokenBank, push: dict, pop: dict) -> None:
    """Set the masks from one bit for each (giver, taker)."""
    for unit in Unit:
        ctx.set(bank.push[unit], sum(1 << other for other in Unit if push.get((unit, other))))
        ctx.set(bank.pop[unit], sum(1 << other for other in Unit if pop.get((other, unit))))


def test_counters_follow_the_contract() -> None:
    bank, reset = TokenBank(PARAMS), Signal()
    rng = random.Random(1)
    seen = {"overflow": 0, "cancel": 0, "full": 0, "clear": 0}

    async def bench(ctx):
        count = dict.fromkeys(permutations(Unit, 2), 0)
        lost = False  # in the cycle before
        for t in range(1500):
            eager = (t // 100) % 2  # alternately fill up and drain
            pop = {
                pair: n > 0 and rng.random() < (0.2 if eager else 0.6) for pair, n in count.items()
            }
            push = {pair: rng.random() < (0.6 if eager else 0.2) for pair in count}
            overflow = any(push[p] and not pop[p] and n == FULL for p, n in count.items())
            clear = lost or rng.random() < 0.005
            drive(ctx, bank, push, pop)
            ctx.set(reset, clear)
            for (giver, taker), n in count.items():
                assert ctx.get(bank.available[taker]) >> giver & 1 == (n > 0)
            for unit in Unit:
                assert ctx.get(bank.available[unit]) >> unit & 1 == 0
            assert ctx.get(bank.overflow) == lost
            seen["overflow"] += lost
            seen["clear"] += clear and not lost
            for pair in count:
                seen["cancel"] += push[pair] and pop[pair]
                count[pair] = 0 if clear else count[pair] + push[pair] - pop[pair]
                seen["full"] += count[pair] == FULL
            lost = overflow and not clear
            await ctx.tick()

    run(ResetInserter(reset)(bank), bench)
    assert all(seen.values()), seen


def test_overflow_needs_a_full_counter_that_is_not_popped() -> None:
    bank = TokenBank(PARAMS)
    pair = {(Unit.LOAD, Unit.GEMM): True}

    async def bench(ctx):
        drive(ctx, bank, pair, {})
        for _ in range(FULL):
            await ctx.tick()
            assert not ctx.get(bank.overflow)
        for push, pop in ((pair, pair), ({(Unit.GEMM, Unit.LOAD): True}, {})):
            drive(ctx, bank, push, pop)
            await ctx.tick()
            assert not ctx.get(bank.overflow)
        drive(ctx, bank, pair, {})
        await ctx.tick()
        assert ctx.get(bank.overflow)

    run(bank, bench)
