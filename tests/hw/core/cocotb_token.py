"""Token bank under Verilator: counters in Python, random masks."""

from __future__ import annotations

import random
from itertools import permutations

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import reset

UNITS = range(4)


@cocotb.test()
async def counts_like_the_model(dut) -> None:
    rng = random.Random(2)
    await reset(dut, *(f"{port}__{unit}" for port in ("push", "pop") for unit in UNITS))
    count = dict.fromkeys(permutations(UNITS, 2), 0)
    cancelled = 0
    for _ in range(3000):
        push = {pair: rng.random() < 0.4 and n < 15 for pair, n in count.items()}
        pop = {pair: n > 0 and rng.random() < 0.4 for pair, n in count.items()}
        for unit in UNITS:
            getattr(dut, f"push__{unit}").value = sum(
                1 << other for other in UNITS if push.get((unit, other))
            )
            getattr(dut, f"pop__{unit}").value = sum(
                1 << other for other in UNITS if pop.get((other, unit))
            )
        await RisingEdge(dut.clk)
        assert not dut.overflow.value
        for (giver, taker), n in count.items():
            available = int(getattr(dut, f"available__{taker}").value)
            assert available >> giver & 1 == (n > 0)
        for pair in count:
            cancelled += push[pair] and pop[pair]
            count[pair] += push[pair] - pop[pair]
    assert cancelled > 100
