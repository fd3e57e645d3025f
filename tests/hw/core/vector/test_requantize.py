"""The post-operation of a lane against the reference, pass after pass."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest
from vdla.hw.core.technology import Technology
from vdla.hw.core.vector.parameters import CAPTURES, CLAMP
from vdla.hw.core.vector.requantize import STAGES, Requantizer
from vdla.hw.core.vector.stages import Stage
from vdla.isa.params import HwParams
from vdla.isa.vector_ops import requantize_even, requantize_tflite

from ..simulation import simulate
from .passes import CONFIGS

MULTIPLIERS = (1 << 30, (1 << 31) - 1, 1518500250, -(1 << 31), 3, 0, -1)
SHIFTS = (0, 1, 30, 31, 32, 33, 38, 47, 62, 63, -1, -7, -31, 64, 5)
RESULTS = (0, 1, -1, 3, -3, 127, 128, -128, -129, 1 << 30, (1 << 31) - 1, -(1 << 31))
ROUNDINGS = {"even": requantize_even, "tflite": requantize_tflite}
DEPTH = Stage.WRITE - Stage.BIAS


class Result(NamedTuple):
    """What comes from the reduction in a cycle, and what becomes of it."""

    value: int
    post: str
    out: bool
    live: bool
    part: int


class Setting(NamedTuple):
    """Parameters of the channel of each pass, and of all."""

    channels: list[dict[str, int]]
    zero_point: int
    lo: int
    hi: int


def random_setting(rng: random.Random, passes: int) -> Setting:
    channels = []
    for _ in range(passes):
        shift = rng.choice(SHIFTS)
        channels.append({
            "bias": rng.choice((0, 5, -777, rng.randrange(-(1 << 31), 1 << 31))), "left": shift,
            "multiplier": rng.choice(MULTIPLIERS), "shift": shift,
        })  # fmt: skip
    lo, hi = sorted(rng.randrange(-128, 128) for _ in range(2))
    return Setting(channels, rng.randrange(-128, 128), lo, hi)


def random_results(rng: random.Random, passes: int, count: int) -> list[Result]:
    return [
        Result(
            rng.choice((*RESULTS, rng.randrange(-(1 << 31), 1 << 31), rng.randrange(-999, 999))),
            rng.choice(("none", *ROUNDINGS)), rng.random() < 0.5, rng.random() < 0.8, n % passes,
        )
        for n in range(count)
    ]  # fmt: skip


def expected(result: Result, setting: Setting) -> int:
    """What is written, as in ``isa/reference.py``."""
    if result.post == "none":
        return max(-128, min(127, result.value)) if result.out else result.value
    its = {name: np.array([n], np.int32) for name, n in setting.channels[result.part].items()}
    total = (np.array([result.value]) + its["bias"]).astype(np.int32)
    rounded = ROUNDINGS[result.post](total, its["multiplier"], its["shift"])[0]
    return int(np.clip(rounded + setting.zero_point, setting.lo, setting.hi))


class Bench:
    """A requantizer whose controls and parameters the bench gives it."""

    def __init__(self, params: HwParams, technology: Technology) -> None:
        self.params, self.rng = params, random.Random(7)
        self.requantizer = Requantizer(params, technology)
        self.checked = 0

    def set_up(self, ctx, setting: Setting) -> None:
        zero, lo, hi = setting.zero_point, setting.lo, setting.hi
        shared = {
            "zero_point": zero, "lo": lo, "hi": hi, "zero_less_lo": zero - lo,
            "zero_less_beyond": zero - (hi + 1),
        }  # fmt: skip
        for name, value in shared.items():
            ctx.set(getattr(self.requantizer.shared, name), value)
        for port, its in zip(self.requantizer.channels, setting.channels, strict=True):
            for name, value in its.items():
                ctx.set(getattr(port, name), value)

    def tell(self, ctx, stage: Stage, result: Result, setting: Setting) -> None:
        told = getattr(self.requantizer.told, stage.name.lower())
        requantized = result.post != "none"
        facts = {
            "live": result.live, "part": result.part, "requantized": requantized,
            "tflite": result.post == "tflite", "saturates": requantized or result.out,
            "low": setting.lo if requantized else -128, "top": setting.hi if requantized else 127,
        }  # fmt: skip
        for name in told.signature.members:
            ctx.set(getattr(told, name), int(facts[name]))

    def check_taps(self, ctx, at: dict[Stage, Result]) -> None:
        """A value that is not requantised is where parameters are captured, in its low bits."""
        for capture in (*CAPTURES, CLAMP):
            its = at.get(capture.stage)
            if its is not None and its.live and its.post == "none":
                assert ctx.get(getattr(self.requantizer.taps, capture.name)) == its.value

    async def run(self, ctx) -> None:
        for _ in range(25):
            setting = random_setting(self.rng, self.params.vector_passes)
            self.set_up(ctx, setting)
            results = random_results(self.rng, self.params.vector_passes, 40)
            for cycle in range(len(results) + DEPTH):
                at = {
                    stage: results[cycle - n]
                    for n, stage in enumerate((*STAGES, Stage.WRITE))
                    if 0 <= cycle - n < len(results)
                }
                for stage in STAGES:
                    if stage in at:
                        self.tell(ctx, stage, at[stage], setting)
                if Stage.BIAS in at:
                    ctx.set(self.requantizer.result, at[Stage.BIAS].value)
                self.check_taps(ctx, at)
                done = at.get(Stage.WRITE)
                if done is not None and done.live:
                    assert ctx.get(self.requantizer.written) == expected(done, setting), done
                    self.checked += 1
                await ctx.tick()


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("name", "enables"), [*((name, True) for name in CONFIGS), (next(iter(CONFIGS)), False)]
)
def test_results(name: str, enables: bool) -> None:
    """With clock enables of the multipliers' registers, and without."""
    bench = Bench(CONFIGS[name], Technology(enables=enables))
    simulate(bench.requantizer, bench.run)
    assert bench.checked > 500
