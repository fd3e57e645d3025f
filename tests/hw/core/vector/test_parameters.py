"""Parameters are captured from the pass that brings them, in the stage that uses them."""

from __future__ import annotations

import random

import pytest
from vdla.hw.core.vector.parameters import CAPTURES, CLAMP, Parameters
from vdla.hw.core.vector.stages import Tag
from vdla.isa.params import HwParams

from ..simulation import simulate
from .passes import CONFIGS, Stages, random_passes

#: At reset requantisation clamps to int8.
RESET = {"zero_point": 0, "lo": -128, "hi": 127}
STAGES = {"bias": "BIAS", "left": "SCALE", "multiplier": "MULTIPLY", "shift": "HIGH"}
TAGS = {"bias": Tag.BIAS, "left": Tag.SHIFT, "multiplier": Tag.MULTIPLIER, "shift": Tag.SHIFT}


def signed_byte(word: int, number: int) -> int:
    return ((word >> 8 * number) + 128) % 256 - 128


def test_every_parameter_comes_where_it_is_used() -> None:
    assert {capture.name: capture.stage.name for capture in CAPTURES} == STAGES
    assert {capture.name: capture.tag for capture in CAPTURES} == TAGS
    assert (CLAMP.stage.name, CLAMP.tag) == ("ROUND", Tag.CLAMP)


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_captures(params: HwParams) -> None:
    rng = random.Random(3)
    parameters, stages = Parameters(params), Stages(params)
    passes = params.vector_passes
    channels = [dict.fromkeys(STAGES, 0) for _ in range(params.block)]
    shared = dict(RESET)

    def check(ctx) -> None:
        for port, values in zip(parameters.channels, channels, strict=True):
            assert {name: ctx.get(getattr(port, name)) for name in values} == values
        zero, lo, hi = shared.values()
        derived = {"zero_less_lo": zero - lo, "zero_less_beyond": zero - (hi + 1)}
        for name, value in (shared | derived).items():
            assert ctx.get(getattr(parameters.shared, name)) == value, name

    async def bench(ctx) -> None:
        for its in random_passes(params, rng, 300):
            stages.issue(its)
            stages.show(ctx, parameters.stages)
            check(ctx)
            for lane, taps in enumerate(parameters.taps):
                for capture in (*CAPTURES, CLAMP):
                    value = rng.randrange(-(1 << 31), 1 << 31)
                    ctx.set(getattr(taps, capture.name), value)
                    there = stages[capture.stage]
                    if not there["valid"] or there["tag"] != capture.tag:
                        continue
                    if capture is not CLAMP:
                        channels[lane * passes + there["part"]][capture.name] = value
                    elif (lane, there["part"]) == (0, 0):
                        shared.update(
                            zip(RESET, (signed_byte(value, n) for n in range(3)), strict=True)
                        )
            await ctx.tick()

    simulate(parameters, bench)
    assert shared != RESET
