"""The pipeline: every field of a pass, in every stage."""

from __future__ import annotations

import random

import pytest
from vdla.hw.core.vector.stages import Pipeline, Stage
from vdla.isa.params import HwParams

from ..simulation import simulate
from .passes import CONFIGS, Stages, random_passes


@pytest.mark.slow
def test_passes_move_on_by_a_stage_a_cycle() -> None:
    params: HwParams = CONFIGS["two passes"]
    pipeline, stages = Pipeline(params), Stages(params)

    async def bench(ctx) -> None:
        for number, its in enumerate(random_passes(params, random.Random(1), 100)):
            for name, value in its.items():
                ctx.set(getattr(pipeline.issued, name), value)
            stages.issue(its)
            for stage in Stage:
                if stage <= number:
                    port = pipeline.stages[stage]
                    got = {name: int(ctx.get(getattr(port, name))) for name in its}
                    assert got == stages[stage], stage
            await ctx.tick()

    simulate(pipeline, bench)
