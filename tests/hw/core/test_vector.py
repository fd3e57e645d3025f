"""Vector unit: values against the reference, cycles against the timing contract, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from vdla.hw.core.vector import Vector as VectorUnit
from vdla.hw.core.vector.kits import A, B, FirstKit
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Insn, Param, Table, Vector, validate
from vdla.isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES, Units
from vdla.isa.params import HwParams
from vdla.isa.reference import State
from vdla.isa.status import Status
from vdla.isa.timing import PARAM_ITERATIONS, VECTOR_DEPTH
from vdla.isa.vector_ops import POST_OPS, operators

from .bench import (
    BATCHED,
    FIRST_INDEX,
    SMALL,
    Run,
    bench_of,
    check_tokens,
    check_values,
    expected_start,
    poke,
    random_state,
)

MASKS = [Units(mask) for mask in range(16) if not Units(mask) & Units.VECTOR]
MULTIPLIERS = [1 << 30, (1 << 31) - 1, 1518500250, -(1 << 31), 3, 0, -1]
IMMEDIATES = [0, 1, -1, 5, 31, 32, 33, -(1 << 31), (1 << 31) - 1, 77777]
SHIFTS = [0, 1, 30, 31, 32, 33, 38, 47, 62, 63, -1, -7, -31, 64, 5]


def random_vector(params: HwParams, rng: np.random.Generator) -> Vector:
    """A legal vector instruction; indices are kept in range by trying."""

    def strides(limit: int) -> tuple[int, int, int, int]:
        return tuple(int(n) for n in rng.choice([0, 0, 1, 2, 4], 4) % limit)

    while True:
        ops = operators(params)
        op = ops[int(rng.integers(len(ops)))]
        reduce = int(rng.integers(0, 5)) if op.term else 0
        dst = strides(4)
        insn = Vector(
            pop=MASKS[int(rng.integers(8))],
            push=MASKS[int(rng.integers(8))],
            op=op.name,
            post=POST_OPS[int(rng.integers(len(POST_OPS)))].name,
            reduce=reduce,
            src0=SRC0_MEMORIES[int(rng.integers(3))],
            src1=SRC1_MEMORIES[int(rng.integers(3))],
            dst=DST_MEMORIES[int(rng.integers(2))],
            imm=int(rng.choice([0, 1, 2] if op.slides else IMMEDIATES)),
            extents=tuple(int(n) for n in rng.integers(1, 4, 4)),
            src0_base=int(rng.integers(0, 6)),
            src0_strides=strides(5),
            src1_base=int(rng.integers(0, 6)),
            src1_strides=strides(5),
            dst_base=int(rng.integers(0, 4)),
            dst_strides=(*dst[: 4 - reduce], *[0] * reduce),
        )
        try:
            validate(insn, params)
        except VdlaError:
            continue
        return insn


def random_param(params: HwParams, rng: np.random.Generator) -> Param:
    """A PARAM with any zero point and clamp."""
    lo, hi = sorted(int(n) for n in rng.integers(-128, 128, 2))
    return Param(
        pop=MASKS[int(rng.integers(8))],
        push=MASKS[int(rng.integers(8))],
        par_base=int(rng.integers(0, params.par_depth - 2)),
        zero_point=int(rng.integers(-128, 128)),
        lo=lo,
        hi=hi,
    )


def random_table(params: HwParams, rng: np.random.Generator) -> Table:
    """A TABLE of any entries of par."""
    last = params.par_depth - params.table_entries
    return Table(pop=MASKS[int(rng.integers(8))], par_base=int(rng.integers(0, last + 1)))


def random_case(params: HwParams, seed: int, count: int) -> tuple[list[Insn], State]:
    """Vector and PARAM instructions over memories with requantisation parameters among them."""
    rng = np.random.default_rng(seed)
    state = random_state(params, rng)
    for row in range(0, params.par_depth - 1, 2):
        state.par[row] = rng.choice(MULTIPLIERS, params.block)
        state.par[row + 1] = rng.choice(SHIFTS, params.block)
    state.acc[: params.acc_depth // 2] >>= 8
    make = [random_vector, random_vector, random_param]
    if params.vector_table:
        make.append(random_table)
    insns = [make[int(rng.integers(len(make)))](params, rng) for _ in range(count - 1)]
    # Each of its iterations reads what the one before writes.
    chain = Vector(op="add", src0="tmp", src1="imm", imm=3, dst="tmp", extents=(1, 1, 1, 3))
    insns.insert(int(rng.integers(count)), chain)
    return insns, state


def issues(
    params: HwParams, insn: Insn, start: int, written: dict[int, int]
) -> tuple[list[int], int]:
    """Cycles in which passes issue, and how many cycles they waited for tmp.

    ``written``: per tmp entry the cycle of the last pass that writes it; updated.
    """
    passes = params.vector_passes
    if isinstance(insn, Param):
        return [start + 1 + k for k in range(passes * PARAM_ITERATIONS)], 0
    if isinstance(insn, Table):
        return [start + 1 + k for k in range(passes * TABLE_ITERATIONS[params.vector_table])], 0
    t, stalls, cycles = start, 0, []
    for counter in np.ndindex(insn.extents):

        def entry(name: str, counter: tuple[int, ...] = counter) -> int:
            steps = zip(counter, getattr(insn, f"{name}_strides"), strict=True)
            return getattr(insn, f"{name}_base") + sum(n * s for n, s in steps)

        earliest = t + 1
        for name in ("src0", "src1"):
            if getattr(insn, name) == "tmp" and entry(name) in written:
                earliest = max(earliest, written[entry(name)] + VECTOR_DEPTH + 1)
        stalls += earliest - t - 1
        cycles += range(earliest, earliest + passes)
        t = cycles[-1]
        folded = range(4 - insn.reduce, 4)
        left_out = insn.imm if insn.op == "window" else 0
        whole = not left_out or counter[3 - insn.reduce] >= left_out
        if insn.dst == "tmp" and whole and all(counter[k] == insn.extents[k] - 1 for k in folded):
            written[entry("dst") - left_out * insn.dst_strides[3 - insn.reduce]] = t
    return cycles, stalls


def check_cycles(run: Run, insns: list[Insn], params: HwParams = SMALL) -> int:
    """Starts, issues and ends as docs/timing.md says; returns the cycles spent on the interlock."""
    starts, ends = run.strobes("start"), run.strobes("end")
    ready, busy, stalls, written = 0, set(), 0, {}
    for insn, start, end in zip(insns, starts, ends, strict=True):
        assert start == expected_start(run, insn, ready)
        issued, waited = issues(params, insn, start, written)
        stalls += waited
        busy |= {start, *issued}
        ready = issued[-1]
        assert end == ready + VECTOR_DEPTH
    assert set(run.strobes("busy")) == busy
    assert len(run.strobes("stalled")) == stalls
    assert not set(run.strobes("stalled")) & {t for t in busy if t not in starts}
    return stalls


#: Iterations that TABLE issues, by the bytes of a value.
TABLE_ITERATIONS = {1: 65, 2: 129}
PASSES = {
    "batch1": SMALL,
    "batch2": BATCHED,
    "two passes": replace(SMALL, vector_passes=2),
    "four passes": replace(SMALL, vector_passes=4),
    "a batch each": replace(BATCHED, vector_passes=2),
    "half a batch each": replace(BATCHED, vector_passes=4),
    "table": replace(SMALL, par_depth=24, vector_table=1),
    "table, two passes": replace(SMALL, par_depth=24, vector_passes=2, vector_table=1),
    "window": replace(SMALL, vector_window=3),
    "window of four, two passes": replace(BATCHED, vector_passes=2, vector_window=4),
    "table of int16": replace(SMALL, par_depth=40, vector_table=2),
    "table of int16, two passes": replace(SMALL, par_depth=40, vector_passes=2, vector_table=2),
}
#: Those that also run where nothing holds them up.
NEVER_STALLED = ("batch1", "a batch each", "table of int16, two passes")


@pytest.mark.short(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed", "count"),
    [*((name, 0, 40) for name in PASSES), *((name, 1, 20) for name in NEVER_STALLED)],
)
def test_random_instructions(name: str, seed: int, count: int) -> None:
    """With stalls of the neighbours (seed 0) and without."""
    params = PASSES[name]
    insns, state = random_case(params, seed, count)
    run = bench_of(VectorUnit, params).run(insns, state, seed, stalls=seed == 0)
    stalls = check_cycles(run, insns, params)
    check_tokens(run, insns)
    check_values(run, insns, state)
    assert stalls >= 2 * VECTOR_DEPTH


@pytest.mark.fast(1)
@pytest.mark.parametrize("post", [post.name for post in POST_OPS])
def test_parameters_change_between_neighbours(post: str) -> None:
    """PARAM before, between and after vectors, back to back: no bubble, no value too early."""
    rng = np.random.default_rng(3)
    state = random_state(SMALL, rng)
    state.par[0::3], state.par[1::3], state.par[2::3] = 100, 1 << 30, 38
    state.par[3:6] = [[-5], [(1 << 31) - 1], [35]]
    state.par[6:9] = [[7], [1 << 29], [-3]]
    state.acc[:] = rng.integers(-(1 << 20), 1 << 20, state.acc.shape)
    vector = Vector(op="add", src0="acc", src1="imm", dst="out", post=post, extents=(1, 1, 1, 2),
                    src0_strides=(0, 0, 0, 1), dst_strides=(0, 0, 0, 1))  # fmt: skip
    insns: list[Insn] = []
    for k in range(9):
        insns.append(Param(par_base=3 * (k % 3), zero_point=k, lo=-100 + k, hi=100 - k))
        insns.append(replace(vector, src0_base=k, dst_base=2 * k))
    run = bench_of(VectorUnit, SMALL).run(insns, state, stalls=False)
    check_cycles(run, insns)
    check_values(run, insns, state)


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("passes", "value_bytes", "op"),
    [(1, 1, "table"), (2, 1, "table"), (1, 2, "table"), (1, 2, "table_diff"), (2, 2, "table_diff")],
)
def test_the_table_changes_between_neighbours(passes: int, value_bytes: int, op: str) -> None:
    """TABLE between vectors that look up, back to back: those before get the values of the old
    table, those behind all 256 of the new one, the last word included.
    """
    params = replace(SMALL, inp_depth=64, par_depth=51, tmp_depth=192, out_depth=192,
                     vector_passes=passes, vector_table=value_bytes)  # fmt: skip
    state = random_state(params, np.random.default_rng(3))
    state.inp.reshape(-1)[:] = np.arange(255, -1, -1).astype(np.uint8).view(np.int8)
    # All of int16 is seen in tmp.
    dst = "out" if value_bytes == 1 else "tmp"
    look_up = Vector(op=op, src0="inp", src1="imm", dst=dst, extents=(1, 1, 1, 64),
                     src0_strides=(0, 0, 0, 1), dst_strides=(0, 0, 0, 1))  # fmt: skip
    insns: list[Insn] = [
        Table(par_base=0), look_up, Table(par_base=19), replace(look_up, dst_base=64),
        Table(par_base=1), replace(look_up, dst_base=128),
    ]  # fmt: skip
    run = bench_of(VectorUnit, params).run(insns, state, stalls=False)
    check_cycles(run, insns, params)
    check_values(run, insns, state)
    assert len({state.memory(dst)[n : n + 64].tobytes() for n in (0, 64, 128)}) == 3


EDGES = [0, 1, -1, 2, -2, 3, -3, 5, 127, -128, (1 << 30), (1 << 31) - 1, -(1 << 31), 12345, -777]


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize("post", ["even", "tflite"])
def test_rounding_at_the_edges(post: str) -> None:
    """Ties, signs, saturation: every edge value with every multiplier and shift, int32 results
    kept.
    """
    scales = list(product((1 << 30, -(1 << 31), 1518500250), SHIFTS))
    rows = 15 * len(scales)
    params = replace(SMALL, par_depth=3 * len(scales), tmp_depth=rows, out_depth=rows)
    state = random_state(params, np.random.default_rng(0))
    state.acc[:15, 0, :] = np.array(EDGES)[:, None]
    insns: list[Insn] = []
    for k, (multiplier, shift) in enumerate(scales):
        state.par[3 * k : 3 * k + 3] = [[0], [multiplier], [shift]]
        insns.append(Param(par_base=3 * k))
        insns += [
            Vector(op="add", src0="acc", src1="imm", dst=dst, post=post, extents=(1, 1, 1, 15),
                   src0_strides=(0, 0, 0, 1), dst_base=15 * k, dst_strides=(0, 0, 0, 1))
            for dst in DST_MEMORIES
        ]  # fmt: skip
    run = bench_of(VectorUnit, params).run(insns, state, stalls=False)
    check_values(run, insns, state)


@pytest.mark.slow
@pytest.mark.parametrize("dst", DST_MEMORIES)
def test_without_post_operation(dst: str) -> None:
    """tmp keeps all 32 bits; out saturates."""
    params = replace(SMALL, tmp_depth=16)
    state = random_state(params, np.random.default_rng(0))
    state.acc[:15, 0, :] = np.array(EDGES)[:, None]
    insn = Vector(op="add", src0="acc", src1="imm", dst=dst, extents=(1, 1, 1, 15),
                  src0_strides=(0, 0, 0, 1), dst_strides=(0, 0, 0, 1))  # fmt: skip
    run = bench_of(VectorUnit, params).run([insn], state, stalls=False)
    check_values(run, [insn], state)
    values = state.memory(dst)[:15, 0, 0]
    low, high = (-128, 127) if dst == "out" else (-(1 << 31), (1 << 31) - 1)
    assert values.min() == low and values.max() == high


@pytest.mark.slow
def test_interlock_waits_for_exactly_the_pipeline() -> None:
    """One vector that reads what the one before writes issues VECTOR_DEPTH + 1 cycles later."""
    state = random_state(SMALL, np.random.default_rng(0))
    write = Vector(op="add", src0="acc", src1="imm", dst="tmp", dst_base=4)
    read = Vector(op="add", src0="acc", src1="tmp", src1_base=4, dst="out")
    run = bench_of(VectorUnit, SMALL).run([write, read], state, stalls=False)
    assert run.strobes("start") == [0, 1]
    assert run.strobes("end") == [1 + VECTOR_DEPTH, 1 + VECTOR_DEPTH + 1 + VECTOR_DEPTH]
    assert len(run.strobes("stalled")) == VECTOR_DEPTH
    check_values(run, [write, read], state)


LEGAL = Vector(op="add", src0="acc", src1="imm", dst="tmp")
LEGAL_PARAM = Param(par_base=0)
REFUSALS = {
    "empty loop": (LEGAL, {"n2": 0}, Status.ILLEGAL),
    "unknown operator": (LEGAL, {"op": 15}, Status.ILLEGAL),
    "unknown post-operation": (LEGAL, {"post": 3}, Status.ILLEGAL),
    "unknown src0": (LEGAL, {"src0": 3}, Status.ILLEGAL),
    "unknown src1": (LEGAL, {"src1": 3}, Status.ILLEGAL),
    "five folded loops": (LEGAL, {"reduce": 5}, Status.ILLEGAL),
    "sub does not reduce": (LEGAL, {"op": 3, "reduce": 1}, Status.ILLEGAL),
    "waits for itself": (LEGAL, {"pop": 4}, Status.ILLEGAL),
    "gives to itself": (LEGAL, {"push": 4}, Status.ILLEGAL),
    "bits above the layout": (LEGAL, {"above": 1}, Status.ILLEGAL),
    "src0 out of range": (LEGAL, {"src0_base": 20}, Status.ADDRESS),
    "src0 stride out of range": (LEGAL, {"n3": 3, "src0_s3": 10}, Status.ADDRESS),
    "src1 out of range": (LEGAL, {"src1": 2, "src1_base": 10}, Status.ADDRESS),
    "dst out of range": (LEGAL, {"n1": 2, "dst_s1": 10}, Status.ADDRESS),
    "param gives to itself": (LEGAL_PARAM, {"push": 4}, Status.ILLEGAL),
    "param with bits above the layout": (LEGAL_PARAM, {"above": 1 << 9}, Status.ILLEGAL),
    "param out of range": (LEGAL_PARAM, {"par_base": 10}, Status.ADDRESS),
}


@pytest.mark.slow
@pytest.mark.parametrize(("insn", "changes", "status"), [
    (Table(par_base=0), {"par_base": 17}, Status.ADDRESS),
    (Table(par_base=0), {"push": 4}, Status.ILLEGAL),
    (Table(par_base=0), {"above": 1 << 9}, Status.ILLEGAL),
    (LEGAL, {"op": 14}, Status.ILLEGAL),
])  # fmt: skip
def test_refuses_with_a_table(insn: Insn, changes: dict[str, int], status: Status) -> None:
    params = replace(SMALL, par_depth=32, vector_table=1)
    state = random_state(params, np.random.default_rng(0))
    legal = Table(par_base=16)
    run = bench_of(VectorUnit, params).run(
        [legal, poke(insn, params, **changes)], state, stalls=False
    )
    last = run.cycles[-1]
    assert (last.error, last.error_index) == (status, FIRST_INDEX + 1)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [
    {"imm": 3}, {"imm": -1}, {"imm": 2, "n2": 2}, {"imm": 1 << 20}, {"reduce": 4, "dst_s2": 0},
], ids=str)  # fmt: skip
def test_refuses_a_window(changes: dict[str, int]) -> None:
    """One that leaves out more results than it has sums before the last, or than there are in a
    row, and one without a loop to slide along."""
    params = replace(SMALL, vector_window=3)
    state = random_state(params, np.random.default_rng(0))
    legal = Vector(op="window", src0="inp", src1="par", dst="out", reduce=1, imm=2,
                   extents=(1, 1, 4, 2), dst_strides=(0, 0, 1, 0))  # fmt: skip
    run = bench_of(VectorUnit, params).run(
        [legal, poke(legal, params, **changes)], state, stalls=False
    )
    last = run.cycles[-1]
    assert (last.error, last.error_index) == (Status.ILLEGAL, FIRST_INDEX + 1)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 2])
def test_a_window_slides_along_rows(passes: int) -> None:
    """A depthwise convolution of two rows of an image, against its definition: rows follow each
    other without a gap, and nothing of one comes into the next."""
    params = replace(SMALL, inp_depth=32, out_depth=16, vector_passes=passes, vector_window=3)
    state = random_state(params, np.random.default_rng(5))
    image, kernel = state.inp.reshape(4, 8, -1), state.par[:3].view(np.int8).reshape(3, -1, 4)
    image[...] >>= 5
    kernel[...] >>= 5
    insn = Vector(op="window", src0="inp", src1="par", dst="out", reduce=1, imm=2,
                  extents=(1, 2, 8, 3), src0_strides=(0, 8, 1, 8), src1_strides=(0, 0, 0, 1),
                  dst_strides=(0, 6, 1, 0))  # fmt: skip
    expected = sum(
        image[ky : ky + 2, kx : kx + 6].astype(int) * kernel[ky, :, kx]
        for ky in range(3) for kx in range(3)
    )  # fmt: skip
    run = bench_of(VectorUnit, params).run([insn], state, stalls=False)
    check_cycles(run, [insn], params)
    check_values(run, [insn], state)
    assert (state.out[:12].reshape(2, 6, -1) == np.clip(expected, -128, 127)).all()
    assert len(run.strobes("busy")) == 1 + passes * 2 * 8 * 3


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case: str) -> None:
    """The status and the index of the instruction at fault are reported."""
    legal, changes, status = REFUSALS[case]
    state = random_state(SMALL, np.random.default_rng(0))
    words = [legal, poke(legal, SMALL, **changes), legal]
    run = bench_of(VectorUnit, SMALL).run(words, state, stalls=False)
    last = run.cycles[-1]
    assert (last.error, last.error_index) == (status, FIRST_INDEX + 1)
    assert run.strobes("error") == [len(run.cycles) - 1]


@pytest.mark.slow
def test_indices_at_the_edge_are_legal() -> None:
    state = random_state(SMALL, np.random.default_rng(0))
    insns = [
        Vector(op="max", src0="tmp", src0_base=9, src1="tmp", src1_base=9, dst="out", dst_base=23),
        Vector(op="max", src0="inp", src0_base=23, src1="par", src1_base=11, dst="tmp", dst_base=9),
        Param(par_base=9),
    ]
    run = bench_of(VectorUnit, SMALL).run(insns, state, stalls=False)
    check_values(run, insns, state)


def test_an_operator_of_two_steps_is_not_made_of_legs() -> None:
    """There is one comparison, one shift and one product, all of the two operands."""
    kit = FirstKit()
    with pytest.raises(ValueError, match="operator of one step"):
        kit.max(kit.mul(A, B), B)
