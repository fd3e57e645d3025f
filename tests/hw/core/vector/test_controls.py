"""The controls of lanes against the operators' table, from shared registers and from their own."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from vdla.hw.core.technology import Technology
from vdla.hw.core.vector.controls import FIELDS, FIELDS_OF_FEW, Controls, source_legs
from vdla.hw.core.vector.kits import (  # fmt: skip
    A,
    B,
    Choices,
    FirstKit,
    Leg,
    Parts,
    Source,
    When,
    merge_choices,
    operator_choices,
)
from vdla.hw.core.vector.stages import Stage, Tag
from vdla.isa.opcodes import SRC0_MEMORIES, SRC1_MEMORIES
from vdla.isa.params import HwParams
from vdla.isa.vector_ops import BY_CODE

from ..simulation import simulate
from .passes import CONFIGS, Pass, Stages, random_passes

SHARED = {"lo": -100, "hi": 90, "zero_point": 3}
MERGES = {
    "min": {Leg(Source.RESULT, When.LESS), Leg(Source.TERM, When.NOT_LESS)},
    "max": {Leg(Source.RESULT, When.NOT_LESS), Leg(Source.TERM, When.LESS)},
    "add": {Leg(Source.SUM)},
    "mul": {Leg(Source.SUM)},
    "table": {Leg(Source.SUM)},
    "table_diff": {Leg(Source.SUM)},
}


def parts_of(its: Pass) -> Parts:
    """The legs of the result of a pass."""
    kit = FirstKit()
    if its["tag"] != Tag.DATA:
        return kit.add(A, B)
    op = BY_CODE[its["op"]]
    if op.slides:
        return Parts(None)  # its result comes from the sums of the window
    parts = (op.first if its["first"] else op.term)(kit, A, B)
    return parts if isinstance(parts, Parts) else Parts(Leg(parts))


def chosen(bits: int, legs: Iterable) -> set:
    return {leg for number, leg in enumerate(legs) if bits >> number & 1}


def check_sources(bits: int, codes: int, part: int, memories: tuple[str, ...], params: HwParams):
    """The leg of the one memory, and of the pass if the memory is read whole."""
    its = {memories[code] for code in range(len(memories)) if codes >> code & 1}
    got = chosen(bits, source_legs(memories, params))
    whole = its & {"acc", "inp", "par"}
    assert got == {(memory, part if memory in whole else 0) for memory in its}


def check_parts(ctx, told, its: Pass, choices: dict[str, Choices]) -> None:
    for name, legs in choices.items():
        leg = getattr(parts_of(its), name)
        got = chosen(int(ctx.get(getattr(told, name))), legs)
        assert got == ({leg} if leg is not None else set()), name


def check_limits(ctx, told, its: Pass) -> None:
    limits = (SHARED["lo"], SHARED["hi"]) if its["requantized"] else (-128, 127)
    assert (ctx.get(told.low), ctx.get(told.top)) == limits
    assert ctx.get(told.saturates) == (its["requantized"] or its["out"])


@pytest.mark.slow
@pytest.mark.short(4)
@pytest.mark.parametrize("copies", [False, True], ids=["shared", "of their own"])
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_lanes_are_told(params: HwParams, copies: bool) -> None:
    controls, stages = Controls(params, Technology(copies=copies)), Stages(params)
    lane = controls.lane

    async def bench(ctx) -> None:
        for name, value in SHARED.items():
            ctx.set(getattr(controls.shared, name), value)
        for number, its in enumerate(random_passes(params, random.Random(2), 150)):
            stages.issue(its)
            stages.show(ctx, controls.stages)
            if number >= len(Stage):
                for stage, names in (*FIELDS.items(), *FIELDS_OF_FEW.items()):
                    told = getattr(lane, stage.name.lower())
                    got = {name: int(ctx.get(getattr(told, name))) for name in names}
                    assert got == {name: stages[stage][name] for name in names}, stage
                read, reduced = stages[Stage.READ], stages[Stage.REDUCE]
                for name, memories in (("src0", SRC0_MEMORIES), ("src1", SRC1_MEMORIES)):
                    bits = int(ctx.get(getattr(lane.read, name)))
                    check_sources(bits, read[name], read["part"], memories, params)
                if params.vector_table == 2:
                    differs = BY_CODE[stages[Stage.OPERATE]["op"]].name == "table_diff"
                    assert ctx.get(lane.operate.difference) == differs
                if params.vector_table:
                    part = parts_of(stages[Stage.ADD]).x
                    looks_up = part is not None and part.source is Source.TABLE
                    assert ctx.get(lane.add.looks_up) == looks_up
                if params.vector_window:
                    assert ctx.get(lane.add.moves) == stages[Stage.ADD]["first"]
                    number = reduced["imm"] % 256
                    bit = 1 << number if number < params.vector_window else 0
                    assert ctx.get(lane.reduce.sums) == bit
                check_parts(ctx, lane.operate, stages[Stage.OPERATE], operator_choices(params))
                merged = {Leg(Source.TERM)} if reduced["first"] else set()
                if BY_CODE[reduced["op"]].slides and reduced["tag"] == Tag.DATA:
                    merged |= {Leg(Source.WINDOW)}
                elif not reduced["first"]:
                    merged = MERGES[BY_CODE[reduced["op"]].name]
                assert chosen(int(ctx.get(lane.reduce.merge)), merge_choices(params)) == merged
                check_limits(ctx, lane.clamp, stages[Stage.CLAMP])
            await ctx.tick()

    simulate(controls, bench)
