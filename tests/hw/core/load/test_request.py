"""The requester: the bursts of every load, its descriptors, and what it refuses."""

from __future__ import annotations

import random

import pytest
from vdla.cosim import insn_word
from vdla.hw.core.load.request import Requester
from vdla.isa.insn import Load
from vdla.isa.opcodes import LOADABLE
from vdla.isa.params import HwParams
from vdla.isa.status import Status

from ..bench import poke
from ..bursts import bursts
from ..simulation import simulate
from .loads import CONFIGS, random_load


@pytest.mark.slow
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_bursts_and_descriptors(params: HwParams) -> None:
    rng = random.Random(8)
    requester = Requester(params)
    insns = [random_load(params, rng) for _ in range(50)]
    expected = [
        burst[:2]
        for insn in insns
        for burst in bursts(
            insn.dram_addr, insn.x_size * insn.dram_entry_bytes(params), insn.y_size, insn.z_size,
            insn.y_stride, insn.z_stride, params.bus_bytes, params.max_burst_beats,
        )
    ]  # fmt: skip
    requested: list[tuple[int, int]] = []
    described: list[int] = []

    async def instructions(ctx):
        unit = requester.unit
        ctx.set(unit.available, 15)
        for index, insn in enumerate(insns):
            ctx.set(unit.insn.payload, {"word": insn_word(insn, params), "index": index})
            ctx.set(unit.insn.valid, 1)
            await ctx.tick().until(unit.insn.ready)
            assert not ctx.get(unit.error)

    async def requests(ctx):
        port = requester.request
        while len(requested) < len(expected):
            ctx.set(port.ready, rng.random() < 0.7)
            _, _, valid, ready, burst = await ctx.tick().sample(
                port.valid, port.ready, port.payload
            )
            if valid and ready:
                requested.append((burst.addr, burst.beats))

    async def descriptors(ctx):
        port = requester.descriptor
        while len(described) < len(insns):
            ctx.set(port.ready, rng.random() < 0.7)
            _, _, valid, ready, payload = await ctx.tick().sample(
                port.valid, port.ready, port.payload
            )
            if valid and ready:
                assert payload.word == insn_word(insns[len(described)], params)
                described.append(payload.index)

    simulate(requester, instructions, requests, descriptors)
    assert requested == expected
    assert described == list(range(len(insns)))


LEGAL = Load(memory="inp", base=0, dram_addr=0, x_size=1)
REFUSED = {
    "no entries": {"x_size": 0},
    "no planes": {"z_size": 0},
    "no rows": {"y_size": 0},
    "widened, but not par": {"widen": 1},
    "packed weights, which it cannot unpack": {"widen": 1, "memory": LOADABLE.index("wgt")},
    "waits for itself": {"pop": 1},
    "gives to itself": {"push": 1},
    "bits above the layout": {"above": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str) -> None:
    params = CONFIGS["two in a beat"]
    requester = Requester(params)

    async def bench(ctx):
        unit = requester.unit
        ctx.set(unit.available, 15)
        ctx.set(requester.descriptor.ready, 1)
        word = poke(LEGAL, params, **REFUSED[case])
        ctx.set(unit.insn.payload, {"word": word, "index": 5})
        ctx.set(unit.insn.valid, 1)
        await ctx.tick()
        assert (ctx.get(unit.error), ctx.get(unit.error_index)) == (Status.ILLEGAL, 5)

    simulate(requester, bench)


@pytest.mark.slow
def test_refuses_to_widen_what_is_neither_par_nor_packed() -> None:
    """Each in a cycle of its own; the unit takes those that are legal."""
    params = CONFIGS["packed"]
    requester = Requester(params)

    async def bench(ctx):
        unit = requester.unit
        ctx.set(unit.available, 15)
        ctx.set(requester.descriptor.ready, 1)
        ctx.set(requester.request.ready, 1)
        for code, name in enumerate(LOADABLE):
            word = poke(LEGAL, params, widen=1, memory=code)
            ctx.set(unit.insn.payload, {"word": word, "index": code})
            ctx.set(unit.insn.valid, 1)
            await ctx.tick().until(unit.insn.ready)
            refused = Status.IDLE if name in ("par", "wgt") else Status.ILLEGAL
            assert ctx.get(unit.error) == refused
            ctx.set(unit.insn.valid, 0)
            await ctx.tick().repeat(9)

    simulate(requester, bench)


@pytest.mark.slow
def test_rows_of_padding_alone_are_legal_and_request_nothing() -> None:
    params = CONFIGS["two in a beat"]
    requester = Requester(params)

    async def bench(ctx):
        unit = requester.unit
        ctx.set(requester.descriptor.ready, 1)
        word = poke(LEGAL, params, y_size=0, pad_bottom=1)
        ctx.set(unit.insn.payload, {"word": word, "index": 5})
        ctx.set(unit.insn.valid, 1)
        await ctx.tick().until(unit.insn.ready)
        for _ in range(3):
            assert not ctx.get(unit.error) and not ctx.get(requester.request.valid)
            await ctx.tick()

    simulate(requester, bench)
