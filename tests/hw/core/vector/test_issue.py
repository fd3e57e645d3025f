"""The passes that instructions become, in order, and the entries that they read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from vdla.cosim import insn_word
from vdla.hw.core.vector.issue import Issue
from vdla.hw.core.vector.stages import Tag
from vdla.isa.insn import Param, Vector
from vdla.isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES, Units
from vdla.isa.params import HwParams
from vdla.isa.timing import VECTOR_DEPTH
from vdla.isa.vector_ops import BY_NAME, POST_BY_NAME

from ..bench import FIRST_INDEX
from ..simulation import simulate
from ..test_vector import random_param, random_vector
from .passes import CONFIGS

Pass = dict[str, int]


def entry(insn: Vector, operand: str, counter: Sequence[int]) -> int:
    steps = zip(counter, getattr(insn, f"{operand}_strides"), strict=True)
    return getattr(insn, f"{operand}_base") + sum(n * s for n, s in steps)


def iterations_of_vector(insn: Vector) -> Iterator[Pass]:
    """What an instruction's iterations are, from its definition."""
    folded = range(4 - insn.reduce, 4)
    for counter in product(*(range(extent) for extent in insn.extents)):
        done = all(counter[k] == insn.extents[k] - 1 for k in folded)
        moved, left_out = list(counter), insn.imm if insn.op == "window" else 0
        if left_out:
            moved[3 - insn.reduce] = max(0, counter[3 - insn.reduce] - left_out)
        written = done and (not left_out or counter[3 - insn.reduce] >= left_out)
        yield {
            "live": done, "tag": Tag.DATA, "first": all(counter[k] == 0 for k in folded),
            "op": BY_NAME[insn.op].code, "by_power": insn.op == "shl",
            "requantized": insn.post != "none", "tflite": POST_BY_NAME[insn.post].code == 2,
            "src0": 1 << SRC0_MEMORIES.index(insn.src0),
            "src1": 1 << SRC1_MEMORIES.index(insn.src1), "imm": insn.imm,
            "tmp": written and insn.dst == DST_MEMORIES[0],
            "out": written and insn.dst == DST_MEMORIES[1], "dst": entry(insn, "dst", moved),
            "entry of src0": entry(insn, "src0", counter),
            "entry of src1": entry(insn, "src1", counter),
        }  # fmt: skip


def iterations_of_param(insn: Param) -> Iterator[Pass]:
    """Three entries of par, then the limits and the zero point as an immediate."""
    limits = (insn.zero_point & 255) | (insn.lo & 255) << 8 | (insn.hi & 255) << 16
    for n, tag in enumerate((Tag.BIAS, Tag.MULTIPLIER, Tag.SHIFT, Tag.CLAMP)):
        its = {"live": 1, "tag": tag, "first": 1, "requantized": 0, "tflite": 0, "src0": 0,
               "tmp": 0, "out": 0}  # fmt: skip
        if tag == Tag.CLAMP:
            its |= {"src1": 1 << SRC1_MEMORIES.index("imm"), "imm": limits}
        else:
            its |= {"src1": 1 << SRC1_MEMORIES.index("par"), "entry of par": insn.par_base + n}
        yield its


def passes(insn: Vector | Param, params: HwParams) -> list[Pass]:
    its = iterations_of_vector(insn) if isinstance(insn, Vector) else iterations_of_param(insn)
    found = [
        iteration | {"part": part} for iteration in its for part in range(params.vector_passes)
    ]
    return [
        each | {"last": n == len(found) - 1, "push": int(insn.push)} for n, each in enumerate(found)
    ]


class Bench:
    """The front of the unit, behind a queue that is never empty."""

    def __init__(self, params: HwParams, seed: int, count: int) -> None:
        self.params, self.issue = params, Issue(params)
        numbers = np.random.default_rng(seed)
        make = random.Random(seed).choices((random_vector, random_param), (3, 1), k=count)
        self.insns = [function(params, numbers) for function in make]
        self.found: list[Pass] = []
        self.stalled = 0

    async def queue(self, ctx) -> None:
        port = self.issue.unit.insn
        ctx.set(self.issue.unit.available, int(Units.LOAD | Units.GEMM | Units.STORE))
        for index, insn in enumerate(self.insns):
            ctx.set(
                port.payload, {"word": insn_word(insn, self.params), "index": FIRST_INDEX + index}
            )
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
        ctx.set(port.valid, 0)

    def write(self, ctx, coming: list[tuple[int, int]]) -> None:
        for port, (valid, its) in zip(self.issue.writes, coming, strict=True):
            ctx.set(port.valid, valid)
            ctx.set(port.entry, its)

    def reads(self, ctx) -> set[tuple[int, int]]:
        """The accesses of tmp that the iteration would have to wait for."""
        its, found = self.issue.iteration, set()
        if ctx.get(its.src0) >> SRC0_MEMORIES.index("tmp") & 1:
            found.add((1, ctx.get(self.issue.src0)))
        if ctx.get(its.src1) >> SRC1_MEMORIES.index("tmp") & 1:
            found.add((1, ctx.get(self.issue.src1)))
        return found

    async def record(self, ctx) -> None:
        """Collects passes, and moves what they write on to the interlock."""
        its = self.issue.iteration
        entries = {"src0": self.issue.src0, "src1": self.issue.src1, "par": self.issue.par}
        expected = sum(len(passes(insn, self.params)) for insn in self.insns)
        coming = [(0, 0)] * VECTOR_DEPTH
        while len(self.found) < expected:
            valid, stalled = ctx.get(its.valid), ctx.get(self.issue.stalled)
            conflict = bool(self.reads(ctx) & set(coming))
            assert not stalled or conflict
            assert not (valid and conflict) or ctx.get(its.part) > 0
            coming = [(valid & ctx.get(its.tmp), ctx.get(its.dst)), *coming][:VECTOR_DEPTH]
            self.write(ctx, coming)
            assert not ctx.get(self.issue.unit.error)
            assert ctx.get(self.issue.busy) == (valid or ctx.get(self.issue.unit.start))
            assert not (stalled and valid)
            self.stalled += stalled
            if valid:
                self.found.append(
                    {name: int(ctx.get(getattr(its, name))) for name in its.signature.members}
                    | {f"entry of {name}": int(ctx.get(port)) for name, port in entries.items()}
                )
            await ctx.tick()


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_passes_in_order(params: HwParams) -> None:
    bench = Bench(params, 5, 50)
    simulate(bench.issue, bench.queue, bench.record)
    expected = [its for insn in bench.insns for its in passes(insn, params)]
    for got, its in zip(bench.found, expected, strict=True):
        assert {name: got[name] for name in its} == its
    assert bench.stalled > VECTOR_DEPTH
