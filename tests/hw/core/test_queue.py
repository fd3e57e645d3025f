"""Queue: order, registered level, both ends stalling at random."""

from __future__ import annotations

import random

import pytest
from amaranth.sim import Simulator
from vdla.cosim import StreamMonitor
from vdla.hw.core.queue import Queue


@pytest.mark.fast(1)
@pytest.mark.parametrize("depth", [1, 2, 3, 16])
@pytest.mark.parametrize("fill", [0.3, 0.9])
def test_order_and_registered_level(depth: int, fill: float) -> None:
    """Against a model of the contract: visible one cycle later, refilled one cycle later."""
    queue = Queue(32, depth)
    rng = random.Random(depth)
    inlet, outlet = StreamMonitor("i"), StreamMonitor("o")
    sent: list[int] = []

    async def bench(ctx):
        held: list[int] = []
        offered = None
        for _ in range(400):
            if offered is None and rng.random() < fill:
                offered = rng.getrandbits(32)
            ctx.set(queue.i.valid, offered is not None)
            ctx.set(queue.i.payload, offered or 0)
            ctx.set(queue.o.ready, rng.random() < 1 - fill / 2)
            assert ctx.get(queue.level) == len(held)
            assert ctx.get(queue.i.ready) == (len(held) < depth)
            assert ctx.get(queue.o.valid) == bool(held)
            if held:
                assert ctx.get(queue.o.payload) == held[0]
            for monitor, port in ((inlet, queue.i), (outlet, queue.o)):
                monitor.sample(ctx.get(port.valid), ctx.get(port.ready), ctx.get(port.payload))
            take = held and ctx.get(queue.o.ready)
            put = offered is not None and len(held) < depth
            if take:
                held.pop(0)
            if put:
                held.append(offered)
                sent.append(offered)
                offered = None
            await ctx.tick()

    simulator = Simulator(queue)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert inlet.payloads == sent
    assert outlet.payloads == sent[: len(outlet.payloads)]
    assert len(outlet.payloads) > 50
