"""Read arbiter: both clients at random; nothing lost or reordered, fetch wins."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import Scoreboard, StreamSink, StreamSource, reset, until
from vdla.hw.core.dma import FETCH_ID, LOAD_ID

BURST_BITS = 41


@cocotb.test()
async def merges_in_order_and_fetch_wins(dut) -> None:
    rng = random.Random(4)
    ports = ("fetch__valid", "fetch__payload", "load__valid", "load__payload", "o__ready")
    await reset(dut, *ports)
    clients = {FETCH_ID: StreamSource(dut, "fetch", rng), LOAD_ID: StreamSource(dut, "load", rng)}
    granted = StreamSink(dut, "o", rng)
    sent = {i: [rng.getrandbits(BURST_BITS) for _ in range(400)] for i in clients}

    async def priority() -> None:
        while True:
            await RisingEdge(dut.clk)
            if dut.fetch__valid.value:
                assert not dut.load__ready.value, "load was granted beside fetch"

    cocotb.start_soon(priority())
    cocotb.start_soon(granted.accept())
    for i, port in clients.items():
        cocotb.start_soon(port.send(sent[i]))
    await until(dut, lambda: len(granted.monitor.payloads) == 800, 20_000, "all requests")
    for i in clients:
        mask = (1 << BURST_BITS) - 1
        board = Scoreboard[int](f"requests of client {i}", hex)
        board.expect(sent[i])
        board.check(p & mask for p in granted.monitor.payloads if p >> BURST_BITS == i)
        board.finish()
