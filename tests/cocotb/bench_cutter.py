"""Burst cutter: random strided transfers against the bursts that they must become."""

from __future__ import annotations

import os
import random

import cocotb
from cocotb.triggers import RisingEdge
from vdla.hw.core.dma import PAGE_BYTES
from vdla.isa.encoding import DRAM_ADDR_BITS

from .streams import Port, reset, until

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


def expected(transfer: dict[str, int], bus: int, longest: int) -> list[tuple[int, ...]]:
    """(address, beats, first of its row, offset of the row, last of all) of every burst."""
    bursts = []
    for z in range(transfer["z_size"]):
        for y in range(transfer["y_size"]):
            row = transfer["addr"] + y * transfer["y_stride"] + z * transfer["z_stride"]
            row %= 1 << DRAM_ADDR_BITS
            address, end = row // bus * bus, row + transfer["row_bytes"]
            while address < end:
                page = (address // PAGE_BYTES + 1) * PAGE_BYTES
                stop = min(page, address + longest * bus, -(-end // bus) * bus)
                bursts.append((address, (stop - address) // bus, address <= row, row % bus, 0))
                address = stop
    if bursts:
        bursts[-1] = (*bursts[-1][:4], 1)
    return bursts


@cocotb.test()
async def cuts_at_rows_pages_and_the_longest_burst(dut) -> None:
    bus, longest = int(os.environ["BENCH_BUS_BYTES"]), int(os.environ["BENCH_LONGEST"])
    rng = random.Random(3)
    await reset(dut, "start", "o__ready", *FIELDS)
    port = Port(dut, "o", rng)
    seen: list[tuple[int, ...]] = []

    async def collect() -> None:
        while True:
            await RisingEdge(dut.clk)
            if dut.o__valid.value and dut.o__ready.value:
                burst = int(dut.o__payload.value)
                flags = (int(getattr(dut, n).value) for n in ("row_start", "row_offset", "last"))
                seen.append((burst & 0xFFFF_FFFF, burst >> DRAM_ADDR_BITS, *flags))

    cocotb.start_soon(collect())
    cocotb.start_soon(port.accept())
    for _ in range(60):
        transfer = random_transfer(rng)
        bursts = expected(transfer, bus, longest)
        seen.clear()
        for name in FIELDS:
            getattr(dut, name).value = transfer[name]
        dut.start.value = 1
        await RisingEdge(dut.clk)
        dut.start.value = 0
        for name in FIELDS:  # the inputs count in the cycle of `start` only
            getattr(dut, name).value = rng.getrandbits(len(getattr(dut, name)))
        await until(
            dut, lambda want=bursts: len(seen) >= len(want), 40_000, "the bursts of a transfer"
        )
        for _ in range(2):
            await RisingEdge(dut.clk)
            assert not dut.o__valid.value, "a burst behind the last one"
        assert seen == bursts
