"""Burst cutter: random strided transfers against the bursts that they must become."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import RisingEdge
from vdla.cosim import StreamSink, parameter, reset, until
from vdla.hw.core.dma import PAGE_BYTES
from vdla.isa.encoding import DRAM_ADDR_BITS

from ..hw.core.bursts import bursts

FIELDS = ("addr", "row_bytes", "y_size", "z_size", "y_stride", "z_stride")


def random_transfer(rng: random.Random) -> dict[str, int]:
    """A transfer whose rows often begin inside a word and cross pages."""
    return {
        "addr": rng.choice((rng.getrandbits(30), PAGE_BYTES * rng.randrange(64) - 4)) & ~3,
        "row_bytes": 4 * rng.choice((1, rng.randrange(1, 16), rng.randrange(1, 3000))),
        "y_size": rng.choice((0, 1, rng.randrange(1, 6))),
        "z_size": rng.randrange(1, 4),
        "y_stride": 4 * rng.randrange(4000),
        "z_stride": 4 * rng.randrange(40_000),
    }


@cocotb.test()
async def cuts_at_rows_pages_and_the_longest_burst(dut) -> None:
    bus, longest = int(parameter("bus_bytes")), int(parameter("longest"))
    rng = random.Random(3)
    await reset(dut, "start", "o__ready", *FIELDS)
    port = StreamSink(dut, "o", rng)
    seen: list[tuple[int, ...]] = []

    async def collect() -> None:
        while True:
            await RisingEdge(dut.clk)
            if dut.o__valid.value and dut.o__ready.value:
                burst = int(dut.o__payload.value)
                flags = (int(getattr(dut, n).value) for n in ("row_start", "row_offset", "last"))
                mask = (1 << DRAM_ADDR_BITS) - 1
                seen.append((burst & mask, burst >> DRAM_ADDR_BITS, *flags))

    cocotb.start_soon(collect())
    cocotb.start_soon(port.accept())
    for _ in range(60):
        transfer = random_transfer(rng)
        wanted = bursts(**transfer, bus_bytes=bus, longest=longest)
        seen.clear()
        for name in FIELDS:
            getattr(dut, name).value = transfer[name]
        dut.start.value = 1
        await RisingEdge(dut.clk)
        dut.start.value = 0
        for name in FIELDS:  # the inputs count in the cycle of `start` only
            getattr(dut, name).value = rng.getrandbits(len(getattr(dut, name)))
        await until(
            dut, lambda want=wanted: len(seen) >= len(want), 40_000, "the bursts of a transfer"
        )
        for _ in range(2):
            await RisingEdge(dut.clk)
            assert not dut.o__valid.value, "a burst behind the last one"
        assert seen == wanted
