"""The writer: entries beat by beat, padding, bytes that become elements of 32 bits."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest
from vdla.hw.core.load.writer import Writer
from vdla.isa.opcodes import LOADABLE, Units, widened
from vdla.isa.packed import unpack
from vdla.isa.params import HwParams
from vdla.isa.status import Status

from ..simulation import simulate
from .loads import CONFIGS


def word(entry: bytes, name: str, widen: bool, params: HwParams) -> int:
    """An entry as its scratchpad has it."""
    content = entry
    if widen and name == "par":
        content = np.frombuffer(entry, np.int8).astype("<i4").tobytes()
    elif widen:
        content = unpack(np.frombuffer(entry, np.uint8), params).tobytes()
    return int.from_bytes(content, "little")


class Bench:
    """Random entries into a writer, and what it makes of the memories."""

    def __init__(self, params: HwParams, seed: int) -> None:
        self.params, self.rng, self.writer = params, random.Random(seed), Writer(params)
        self.expected: dict[tuple[str, int], int] = {}
        self.memory: dict[tuple[str, int], int] = defaultdict(int)
        self.left = 150

    async def place(self, ctx) -> None:
        rng, placed = self.rng, self.writer.placed
        while self.left:
            code = rng.randrange(len(LOADABLE))
            name, params = LOADABLE[code], self.params
            widen = name in widened(params) and rng.random() < 0.5
            size = params.dram_entry_bytes(name, widen)
            entry, value = rng.randrange(self.params.depth(name)), rng.randrange(-128, 128)
            ctx.set(placed.target, {"memory": code, "widen": widen, "pad_value": value})
            ctx.set(placed.entry, entry)
            while rng.random() < 0.3:
                await self._cycle(ctx)
            pad = rng.random() < 0.4
            content = bytes([value & 255]) * size if pad else rng.randbytes(size)
            packed = widen and name == "wgt" and not pad
            if name == "wgt" and pad:
                content = bytes([value & 255]) * params.entry_bytes(name)
            await (self._cycle(ctx, pad=1, step=1) if pad else self._beats(ctx, content))
            bits = len(getattr(self.writer, name).data)
            its = word(content, name, packed or (widen and name == "par"), params)
            self.expected[name, entry] = its & ((1 << bits) - 1)
            self.left -= 1
        await self._cycle(ctx)

    async def _beats(self, ctx, content: bytes) -> None:
        bus = self.params.bus_bytes
        beats = [content[k : k + bus] for k in range(0, len(content), bus)]
        for number, beat in enumerate(beats):
            # What is behind a narrow entry is nobody's.
            whole = beat + self.rng.randbytes(bus - len(beat))
            data = int.from_bytes(whole, "little")
            step = number == len(beats) - 1
            await self._cycle(ctx, arrives=1, number=number, step=step, data=data)
            if number == 0:
                ctx.set(self.writer.placed.first, data)

    async def _cycle(self, ctx, data: int | None = None, **flags: int) -> None:
        placed = self.writer.placed
        for name in ("step", "pad", "arrives", "number"):
            ctx.set(getattr(placed, name), flags.get(name, 0))
        ctx.set(placed.data, self.rng.getrandbits(len(placed.data)) if data is None else data)
        await ctx.tick()

    async def write(self, ctx) -> None:
        """The memories: every enable writes its part of the entry."""
        while self.left:
            await ctx.tick()
            for name in LOADABLE:
                port = getattr(self.writer, name)
                part = len(port.data) // len(port.en)
                for n in range(len(port.en)):
                    if ctx.get(port.en) >> n & 1:
                        mask = ((1 << part) - 1) << n * part
                        where = name, ctx.get(port.addr)
                        self.memory[where] &= ~mask
                        self.memory[where] |= ctx.get(port.data) & mask


def test_packed_entries() -> None:
    """Of all memories, with padding."""
    bench = Bench(CONFIGS["packed"], 9)
    simulate(bench.writer, bench.place, bench.write)
    assert dict(bench.memory) == bench.expected


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_entries_of_every_memory(params: HwParams) -> None:
    bench = Bench(params, 7)
    simulate(bench.writer, bench.place, bench.write)
    assert {name for name, _ in bench.expected} == set(LOADABLE)
    assert dict(bench.memory) == bench.expected


def test_the_end_and_an_entry_beyond() -> None:
    """Tokens are given in the cycle after the last entry, and only then; so is an error."""
    params = CONFIGS["two in a beat"]
    writer = Writer(params)

    async def bench(ctx):
        target = {"memory": 0, "push": int(Units.GEMM), "index": 9}
        ctx.set(writer.placed.target, target)
        for entry, finished in ((params.inp_depth - 1, 0), (0, 1), (params.inp_depth, 0), (1, 0)):
            ctx.set(writer.placed.entry, entry)
            ctx.set(writer.placed.step, 1)
            ctx.set(writer.placed.finished, finished)
            await ctx.tick()
            assert ctx.get(writer.end) == finished
            assert ctx.get(writer.push) == (Units.GEMM if finished else 0)
            beyond = entry == params.inp_depth
            assert ctx.get(writer.error) == (Status.ADDRESS if beyond else Status.IDLE)
            assert not beyond or ctx.get(writer.error_index) == 9

    simulate(writer, bench)
