"""The reader of the flash in Amaranth's simulator, in front of a chip that is written from the
command's description in datasheets of serial flashes."""

from __future__ import annotations

import random

import pytest
from vdla.hw.soc.flash import Flash
from vdla.isa.soc import FLASH_READ

from ..core.simulation import simulate

pytestmark = pytest.mark.slow
#: Clocks of an ECP5's user before its pin shows them.
LOST_CLOCKS = 4


def chip(dut: Flash, content: bytes, commands: list[int]):
    """A process: the flash, which hears nothing of the first clocks."""

    async def run(ctx) -> None:
        pins, clocked, clocks, bits = dut.pins, 0, 0, []
        shown = iter(())
        async for _, _, select_n, clock, command in ctx.tick().sample(
            pins.select_n, pins.clock, pins.command
        ):
            rises, falls = clock and not clocked, clocked and not clock
            clocked = clock
            clocks += rises
            if select_n:
                bits, shown = [], iter(())
                continue
            if clocks <= LOST_CLOCKS:
                continue
            if rises and len(bits) < 32:
                bits.append(command)
                if len(bits) == 32:
                    commands.append(request := int("".join(map(str, bits)), 2))
                    stream = content[request & 0xFFFFFF :]
                    shown = (byte >> (7 - n) & 1 for byte in stream for n in range(8))
            elif falls and len(bits) == 32:
                ctx.set(pins.data, next(shown))

    return run


def test_words_from_addresses() -> None:
    """Taken at once and late; a new address while a word is under way, waits, or was never read."""
    dut, commands = Flash(), []
    content = random.Random(0).randbytes(600)

    async def bench(ctx) -> None:
        rng = random.Random(1)
        for address in (0, 4, 301, 8, 9, 100):
            ctx.set(dut.address, address)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            ctx.set(dut.address, 77)
            for number in range(rng.randrange(5)):
                while not ctx.get(dut.valid):
                    await ctx.tick()
                for _ in range(rng.choice((0, 0, 1, 2, 50))):
                    await ctx.tick()
                at = address + 4 * number
                assert ctx.get(dut.word) == int.from_bytes(content[at : at + 4], "little")
                ctx.set(dut.take, 1)
                await ctx.tick()
                ctx.set(dut.take, 0)
                assert not ctx.get(dut.valid)
            for _ in range(rng.randrange(100)):
                await ctx.tick()

    simulate(dut, bench, processes=(chip(dut, content, commands),), limit=6000)
    assert {request >> 24 for request in commands} == {FLASH_READ} and len(commands) >= 4
