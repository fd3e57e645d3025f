"""Passes of iterations at random, and the pipeline that they go down, for the benches."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from vdla.hw.core.vector.stages import FLAGS, Stage, Tag, iteration_signature
from vdla.isa.opcodes import SRC0_MEMORIES, SRC1_MEMORIES
from vdla.isa.params import HwParams
from vdla.isa.vector_ops import operators

from ..bench import BATCHED, SMALL

Pass = dict[str, int]

CONFIGS = {
    "a pass": SMALL,
    "two passes": replace(SMALL, vector_passes=2),
    "with a table": replace(SMALL, vector_table=1, par_depth=32),
    "with a window": replace(SMALL, vector_window=3, vector_passes=2),
    "with a table of int16": replace(SMALL, vector_table=2, par_depth=40),
    "half a batch in each of four": replace(BATCHED, vector_passes=4),
}


def random_pass(params: HwParams, rng: random.Random, part: int) -> Pass:
    """A pass with fields that an iteration can have."""
    tags = [tag for tag in Tag if tag is not Tag.TABLE or params.vector_table]
    tag = rng.choice((Tag.DATA, Tag.DATA, *tags))
    op = rng.choice(operators(params))
    parameter = tag != Tag.DATA
    first = parameter or op.term is None or rng.random() < 0.5
    done = parameter or op.term is None or rng.random() < 0.5
    requantized = not parameter and rng.random() < 0.6
    tmp = done and not parameter and rng.random() < 0.5
    return {
        "valid": 1, "live": int(done), "part": part, "tag": int(tag), "first": int(first),
        "op": op.code, "by_power": int(op.name == "shl"), "requantized": int(requantized),
        "tflite": int(requantized and rng.random() < 0.5),
        "src0": 0 if parameter else 1 << rng.randrange(len(SRC0_MEMORIES)),
        "src1": 1 << rng.randrange(len(SRC1_MEMORIES)), "imm": rng.randrange(-(1 << 31), 1 << 31),
        "tmp": int(tmp), "out": int(done and not parameter and not tmp),
        "dst": rng.randrange(params.out_depth), "last": rng.randrange(2), "push": rng.randrange(16),
    }  # fmt: skip


def random_passes(params: HwParams, rng: random.Random, count: int) -> Iterator[Pass]:
    """Passes, one a cycle, part after part; among them cycles without one, whose other fields are
    anything.
    """
    part = 0
    for _ in range(count):
        its = random_pass(params, rng, part)
        if rng.random() < 0.25:
            its |= dict.fromkeys(FLAGS, 0)
        else:
            part = (part + 1) % params.vector_passes
        yield its


class Stages:
    """What is in each stage, moved on by the bench."""

    def __init__(self, params: HwParams) -> None:
        nothing = dict.fromkeys(iteration_signature(params).members, 0)
        self._passes = deque([nothing] * len(Stage), maxlen=len(Stage))

    def issue(self, its: Pass) -> None:
        """Moves all passes on by a stage."""
        self._passes.appendleft(its)

    def __getitem__(self, stage: int) -> Pass:
        return self._passes[stage]

    def show(self, ctx, ports) -> None:
        """Sets the port of each stage, an array of ``stages.iteration_signature``."""
        for its, port in zip(self._passes, ports, strict=True):
            for name, value in its.items():
                ctx.set(getattr(port, name), value)
