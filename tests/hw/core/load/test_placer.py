"""The placer against the timing contract: what is placed, and in how many cycles."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from vdla.cosim import insn_word
from vdla.hw.core.load.placer import Placer
from vdla.isa.insn import Load
from vdla.isa.opcodes import LOADABLE
from vdla.isa.params import HwParams

from ..simulation import simulate
from .loads import CONFIGS, random_load

DRAM_BYTES = 1 << 15


class Placed(NamedTuple):
    """An entry that is finished: its bytes as the placer shows them, None for padding."""

    entry: int
    data: bytes | None


def entries(insn: Load, params: HwParams, dram: bytes) -> list[Placed]:
    """What a load places, from its definition."""
    size = insn.dram_entry_bytes(params)
    found = []
    for z in range(insn.z_size):
        for y in range(insn.rows):
            row = insn.dram_addr + z * insn.z_stride + (y - insn.pad_top) * insn.y_stride
            for x in range(insn.row_entries):
                inside = (
                    insn.pad_top <= y < insn.pad_top + insn.y_size
                    and insn.pad_left <= x < insn.pad_left + insn.x_size
                )
                start = row + (x - insn.pad_left) * size
                data = dram[start : start + size] if inside else None
                found.append(Placed(insn.base + len(found), data))
    return found


def rows(insn: Load, params: HwParams) -> list[tuple[int, int]]:
    """First and last bus word of every row that is read."""
    size, bus = insn.x_size * insn.dram_entry_bytes(params), params.bus_bytes
    starts = [
        insn.dram_addr + z * insn.z_stride + y * insn.y_stride
        for z in range(insn.z_size) for y in range(insn.y_size)
    ]  # fmt: skip
    return [(start // bus, (start + size - 1) // bus) for start in starts]


def cycles(insn: Load, params: HwParams) -> int:
    """Cycles that a load takes when no beat is missing (docs/timing.md)."""
    size, bus = insn.dram_entry_bytes(params), params.bus_bytes
    padding_rows = insn.z_size * (insn.pad_top + insn.pad_bottom) * insn.row_entries
    total = padding_rows
    for first, last in rows(insn, params):
        beats = (last - first + 1) * max(1, bus // size)
        # The first beat of an entry of several comes beside the padding left of it.
        beside = size > bus and insn.pad_left > 0
        total += insn.pad_left + beats - beside + insn.pad_right
    return total


class Bench:
    """A placer between descriptors, beats, and a record of what it places."""

    def __init__(self, params: HwParams, insns: list[Load], seed: int, stalls: bool) -> None:
        self.params, self.insns, self.stalls = params, insns, stalls
        self.placer, self.rng = Placer(params), random.Random(seed)
        self.dram = self.rng.randbytes(DRAM_BYTES)
        self.placed: list[list[Placed]] = [[]]
        self.working = [0]

    async def descriptors(self, ctx) -> None:
        port = self.placer.descriptor
        for index, insn in enumerate(self.insns):
            ctx.set(port.payload, {"word": insn_word(insn, self.params), "index": index})
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)

    async def beats(self, ctx) -> None:
        port, bus = self.placer.beat, self.params.bus_bytes
        for insn in self.insns:
            for first, last in rows(insn, self.params):
                for word in range(first, last + 1):
                    while self.stalls and self.rng.random() < 0.4:
                        await ctx.tick()
                    data = self.dram[word * bus : (word + 1) * bus]
                    ctx.set(port.payload, int.from_bytes(data, "little"))
                    ctx.set(port.valid, 1)
                    await ctx.tick().until(port.ready)
                    ctx.set(port.valid, 0)
                    ctx.set(port.payload, self.rng.getrandbits(8 * bus))

    async def record(self, ctx) -> None:
        placed = self.placer.placed
        beats: list[bytes] = []
        names = ("step", "pad", "arrives", "finished", "entry", "data", "first", "number")
        while len(self.placed) <= len(self.insns):
            values = ctx.tick().sample(
                self.placer.working, placed.target, *(getattr(placed, name) for name in names)
            )
            (
                *_,
                working,
                target,
                step,
                pad,
                arrives,
                finished,
                entry,
                data,
                first,
                number,
            ) = await values
            self.working[-1] += working
            insn = self.insns[len(self.placed) - 1]
            size, bus = insn.dram_entry_bytes(self.params), self.params.bus_bytes
            whole = data.to_bytes(bus, "little")
            if arrives and size > bus:
                assert number == len(beats) or not beats  # the first may have come before
                beats = [first.to_bytes(bus, "little")] if number == 1 and not beats else beats
                beats.append(whole)
            if step:
                assert target.index == len(self.placed) - 1 and target.push == int(insn.push)
                assert target.memory == LOADABLE.index(insn.memory)
                its = b"".join(beats) if size > bus else whole[:size]
                if size > bus and not pad:
                    assert first.to_bytes(bus, "little") == its[:bus]
                self.placed[-1].append(Placed(entry, None if pad else its))
                beats = beats if pad else []
            if finished:
                self.placed.append([])
                self.working.append(0)


@pytest.mark.slow
@pytest.mark.short(3)
@pytest.mark.parametrize("stalls", [False, True], ids=["beats always there", "beats missing"])
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_entries_and_cycles(params: HwParams, stalls: bool) -> None:
    rng = random.Random(5)
    insns = [random_load(params, rng) for _ in range(60)]
    bench = Bench(params, insns, 6, stalls)
    simulate(bench.placer, bench.descriptors, bench.beats, bench.record)
    for insn, placed, working in zip(insns, bench.placed, bench.working, strict=False):
        assert placed == entries(insn, params, bench.dram), insn
        if not stalls:
            assert working == cycles(insn, params), insn
