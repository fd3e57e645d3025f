"""The SDRAM controller against a chip that checks the protocol, in Amaranth's simulator."""

from __future__ import annotations

import random

import pytest
from amaranth.sim import Simulator
from vdla.cosim import SdramChip
from vdla.hw.boards.sdram import INIT_REFRESHES, Chip, Sdram
from vdla.isa.params import HwParams

PARAMS = HwParams.load("4x4")
#: Few columns, so that bursts cross rows; little to wait for at the start.
SMALL = Chip(row_bits=6, column_bits=5, init_us=2.0)
FREQ_MHZ = 50.0


async def write(ctx, axi, address: int, words: list[tuple[int, int]]) -> int:
    """A burst of (data, strobes); the response."""
    ctx.set(axi.awaddr, address)
    ctx.set(axi.awlen, len(words) - 1)
    ctx.set(axi.awvalid, 1)
    await ctx.tick().until(axi.awready)
    ctx.set(axi.awvalid, 0)
    for data, strobes in words:
        ctx.set(axi.wdata, data)
        ctx.set(axi.wstrb, strobes)
        ctx.set(axi.wvalid, 1)
        await ctx.tick().until(axi.wready)
        ctx.set(axi.wvalid, 0)
        if random.random() < 0.2:
            await ctx.tick().repeat(3)
    ctx.set(axi.bready, 1)
    (response,) = await ctx.tick().sample(axi.bresp).until(axi.bvalid)
    ctx.set(axi.bready, 0)
    return response


async def read(ctx, axi, address: int, count: int) -> tuple[list[int], int]:
    """The words of a burst, from a slow receiver, and the last response."""
    ctx.set(axi.araddr, address)
    ctx.set(axi.arlen, count - 1)
    ctx.set(axi.arvalid, 1)
    await ctx.tick().until(axi.arready)
    ctx.set(axi.arvalid, 0)
    words, response = [], 0
    for left in range(count, 0, -1):
        if random.random() < 0.1:
            await ctx.tick().repeat(random.randint(1, 30))
        ctx.set(axi.rready, 1)
        data, response, last = (
            await ctx.tick().sample(axi.rdata, axi.rresp, axi.rlast).until(axi.rvalid)
        )
        assert last == (left == 1)
        ctx.set(axi.rready, 0)
        words.append(data)
    return words, response


@pytest.mark.slow
@pytest.mark.parametrize("freq_mhz", [25.0, FREQ_MHZ])
def test_random_bursts(freq_mhz: float) -> None:
    random.seed(3)
    dut = Sdram(PARAMS, freq_mhz, SMALL)
    chip = SdramChip(SMALL, dut.cycles)
    size = SMALL.size_bytes
    memory = bytearray(size)

    async def pins(ctx) -> None:
        async for _, _, *values in ctx.tick().sample(
            dut.command, dut.bank, dut.address, dut.mask, dut.data_o, dut.data_oe
        ):
            ctx.set(dut.data_i, chip.cycle(*values))

    async def master(ctx) -> None:
        for _ in range(60):
            address = random.randrange(size // 8) * 8
            page_end = (address // 4096 + 1) * 4096
            count = random.randint(1, min(40, (min(page_end, size) - address) // 8))
            if random.random() < 0.5:
                words = [
                    (random.getrandbits(64), random.choice([255, 255, 0x0F, random.getrandbits(8)]))
                    for _ in range(count)
                ]
                assert await write(ctx, dut.axi, address, words) == 0
                for at, (data, strobes) in enumerate(words):
                    for k, byte in enumerate(data.to_bytes(8, "little")):
                        if strobes >> k & 1:
                            memory[address + 8 * at + k] = byte
            else:
                words, response = await read(ctx, dut.axi, address, count)
                assert response == 0
                got = b"".join(word.to_bytes(8, "little") for word in words)
                assert got == memory[address : address + 8 * count]
        assert (await read(ctx, dut.axi, size, 2))[1] == 2  # SLVERR
        assert await write(ctx, dut.axi, size, [(7, 255)]) == 2
        assert (await read(ctx, dut.axi, 0, 1))[0] == [int.from_bytes(memory[:8], "little")]

    simulator = Simulator(dut)
    simulator.add_clock(1e-6 / freq_mhz)
    simulator.add_process(pins)
    simulator.add_testbench(master)
    simulator.run()
    later = chip.refreshes[INIT_REFRESHES:]
    assert len(later) >= chip.now / dut.cycles(1000 * SMALL.refresh_us) - 2
