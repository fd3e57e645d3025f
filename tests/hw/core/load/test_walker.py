"""The walker against three nested loops."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from vdla.hw.core.load.walker import Walker
from vdla.isa.insn import Load
from vdla.isa.params import HwParams

from ..simulation import simulate
from .loads import CONFIGS, random_load


class Place(NamedTuple):
    """What the walker must say of an entry."""

    entry: int
    pad_row: bool
    before: bool
    beyond: bool
    at_last: bool
    last_row: bool
    offset: int


def places(insn: Load, params: HwParams) -> Iterator[Place]:
    """The entries of a transfer, in order."""
    entry = insn.base
    for z in range(insn.z_size):
        for y in range(insn.rows):
            data = min(max(y - insn.pad_top, 0), insn.y_size)  # rows of data above this one
            offset = insn.dram_addr + z * insn.z_stride + data * insn.y_stride
            for x in range(insn.row_entries):
                yield Place(
                    entry, not insn.pad_top <= y < insn.pad_top + insn.y_size,
                    x < insn.pad_left, x >= insn.pad_left + insn.x_size,
                    x == insn.row_entries - 1, (z, y) == (insn.z_size - 1, insn.rows - 1),
                    offset % params.bus_bytes,
                )  # fmt: skip
                entry += 1


def box(insn: Load, params: HwParams) -> dict[str, int]:
    """What the decoder makes of an instruction for the walker."""
    bus = params.bus_bytes
    return {
        "base": insn.base, "pad_left": insn.pad_left, "pad_top": insn.pad_top,
        "data_end": insn.pad_left + insn.x_size, "row_end": insn.row_entries,
        "y_size": insn.y_size, "z_size": insn.z_size,
        "data_rows_end": insn.pad_top + insn.y_size, "plane_end": insn.rows,
        "offset": insn.dram_addr % bus, "y_stride": insn.y_stride % bus,
        "z_stride": insn.z_stride % bus,
    }  # fmt: skip


@pytest.mark.fast(1)
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_entries_in_order(params: HwParams) -> None:
    """With pauses; the end of a row comes with its last entry, or some cycles later."""
    rng = random.Random(2)
    walker = Walker(params)

    async def walk(ctx, insn: Load) -> None:
        ctx.set(walker.start, 1)
        ctx.set(walker.box, box(insn, params))
        await ctx.tick()
        ctx.set(walker.start, 0)
        ctx.set(walker.box, dict.fromkeys(box(insn, params), 0))
        for place in places(insn, params):
            while rng.random() < 0.2:
                await ctx.tick()
            got = Place(*(int(ctx.get(getattr(walker, name))) for name in Place._fields))
            assert got == place and not ctx.get(walker.behind)
            late = place.at_last and rng.random() < 0.3
            ctx.set(walker.step, 1)
            ctx.set(walker.row_over, place.at_last and not late)
            await ctx.tick()
            ctx.set(walker.step, 0)
            if late:
                assert ctx.get(walker.behind) and not ctx.get(walker.at_last)
                ctx.set(walker.row_over, 1)
                await ctx.tick()
            ctx.set(walker.row_over, 0)

    async def bench(ctx):
        for _ in range(60):
            await walk(ctx, random_load(params, rng))

    simulate(walker, bench)
