"""The model's values are the reference's, in every byte of every memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Table, Uop, Vector, encode_uop, validate
from vdla.isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program
from vdla.isa.reference import AddressError
from vdla.isa.reference import run as run_reference
from vdla.isa.vector_ops import POST_OPS, VECTOR_OPS
from vdla.sim.model.values import _kernels, run
from vdla.sim.verify.random_programs import random_program

SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip
#: No depth is a power of two, vectors of two rows, micro-ops of more than four bytes.
ODD = replace(
    PRESETS["8x8"], batch=2, inp_depth=3001, wgt_depth=1027, acc_depth=2049, tmp_depth=13,
    bus_bits=128,
)  # fmt: skip
CONFIGS = {"small": SMALL, "odd": ODD, "batch 4": replace(SMALL, batch=4),
           "table": replace(SMALL, batch=2, par_depth=32, vector_table=1),
           "table of int16": replace(SMALL, batch=2, par_depth=40, vector_table=2),
           "window": replace(SMALL, batch=2, vector_window=4),
           "packed": replace(ODD, packed_weights=1),
           "packed, 32 channels": replace(PRESETS["32x32"], packed_weights=1),
           **PRESETS}  # fmt: skip


def _assert_equal(program: Program, dram: np.ndarray) -> None:
    expected, got = dram.copy(), dram.copy()
    memories = run_reference(program, expected).scratchpads() | {"dram": expected}
    for name, contents in (run(program, got).scratchpads() | {"dram": got}).items():
        assert np.array_equal(contents, memories[name]), name


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", list(CONFIGS))
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(name: str, seed: int):
    program = random_program(CONFIGS[name], 7000 + seed)
    _assert_equal(program, program.dram_image())


#: Where roundings and saturation have their corners, and anything between.
NUMBERS = st.one_of(
    st.sampled_from([-(1 << 31), (1 << 31) - 1, 1 << 30, -1, 0, 1, 31, 32, 63, 64, -31]),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-600, 600),
)


@st.composite
def vector_programs(draw: st.DrawFn) -> tuple[Program, np.ndarray]:
    """Arbitrary numbers in par and tmp, then any VECTOR over them."""
    op = draw(st.sampled_from(VECTOR_OPS))
    reduce = draw(st.integers(0, 4 - op.slides)) if op.term is not None else 0
    extents = tuple(draw(st.integers(1, 3)) for _ in range(4))
    strides = st.tuples(*[st.integers(0, 1)] * 4)
    dst_strides = tuple(0 if i >= 4 - reduce else draw(st.integers(0, 1)) for i in range(4))
    params = replace(SMALL, inp_depth=16, acc_depth=16, par_depth=40, tmp_depth=16, out_depth=16,
                     vector_table=max(1, op.lut_bytes), vector_window=3)  # fmt: skip
    left_out = st.integers(0, min(3, extents[3 - reduce]) - 1)
    vector = Vector(
        op=op.name, src0=draw(st.sampled_from(SRC0_MEMORIES)),
        src1=draw(st.sampled_from(SRC1_MEMORIES)), dst=draw(st.sampled_from(DST_MEMORIES)),
        post=draw(st.sampled_from(POST_OPS)).name, reduce=reduce,
        imm=draw(left_out if op.slides else NUMBERS),
        extents=extents, src0_strides=draw(strides), src1_strides=draw(strides),
        dst_strides=dst_strides, src0_base=draw(st.integers(0, 7)),
        src1_base=draw(st.integers(0, 7)), dst_base=draw(st.integers(0, 7)),
    )  # fmt: skip
    low, high = sorted(draw(st.tuples(*[st.integers(-128, 127)] * 2)))
    insns: list[Insn] = [
        Load(memory="par", base=0, dram_addr=0, x_size=16),
        Load(memory="inp", base=0, dram_addr=64, x_size=16),
        # 0 + par, with par from its other end.
        *(Vector(op="add", src0="tmp", src1="par", dst="tmp", src0_base=i, dst_base=i,
                 src1_base=15 - i) for i in range(16)),
        Param(par_base=draw(st.integers(0, 13)), zero_point=draw(st.integers(-128, 127)), lo=low,
              hi=high),
        Table(par_base=draw(st.integers(0, 3))),
        vector,
    ]  # fmt: skip
    for insn in insns:
        validate(insn, params)
    program = Program(params, tuple(insns), {}, {"dram_bytes": 1 << 14}, 1 << 12)
    dram = program.dram_image()
    numbers = np.array(draw(st.lists(NUMBERS, min_size=64, max_size=64)), np.int32)
    dram[: numbers.nbytes] = numbers.view(np.uint8)
    return program, dram


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(vector_programs())
def test_any_vector_instruction(example: tuple[Program, np.ndarray]):
    _assert_equal(*example)


@pytest.mark.parametrize("post", [post.name for post in POST_OPS if post.rounding is not None])
def test_corners_of_requantisation(post: str):
    """Ties and extremes: every sum with every multiplier and shift."""
    params = PRESETS["32x32"]
    sums = [s * (1 << k) + d for k in (0, 1, 3, 6, 30, 31) for s in (-1, 1) for d in (-1, 0, 1)]
    sums = sorted({s for s in sums if -(1 << 31) <= s < 1 << 31})
    factors = [-(1 << 31), -(1 << 30), -3, 0, 1, 3, 1 << 30, (1 << 30) + 1, (1 << 31) - 1]
    pairs = np.array([(f, s) for f in factors for s in range(-32, 64)], np.int32)
    par = np.zeros((len(pairs) // params.block, 3, params.block), np.int32)
    par[:, 1], par[:, 2] = (pairs[:, i].reshape(-1, params.block) for i in (0, 1))
    insns: list[Insn] = [
        Vector(op="add", src0="tmp", src1="imm", dst="tmp", src0_base=127, dst_base=i, imm=s)
        for i, s in enumerate(sums)
    ]
    insns.append(Load(memory="par", base=0, dram_addr=1 << 20, x_size=3 * len(par)))
    for number in range(len(par)):
        insns += [
            Param(par_base=3 * number),
            Vector(op="add", src0="tmp", src1="imm", dst="out", post=post,
                   extents=(1, 1, 1, len(sums)), src0_strides=(0, 0, 0, 1),
                   dst_base=number * len(sums) % 300, dst_strides=(0, 0, 0, 1)),
            Store(base=number * len(sums) % 300, dram_addr=number << 12, x_size=len(sums)),
        ]  # fmt: skip
    program = Program(params, tuple(insns), {1 << 20: par.tobytes()}, {}, 1 << 21)
    _assert_equal(program, program.dram_image())


BEYOND = {
    "load": Load(memory="inp", base=0, dram_addr=0, x_size=4, y_size=3, y_stride=1 << 12),
    "store": Store(base=0, dram_addr=(1 << 13) - 12, x_size=4),
    "gemm": Gemm(uop_begin=0, uop_count=1, outer=2, acc_outer=6),
}


@pytest.mark.parametrize("name", list(BEYOND))
def test_what_leaves_a_memory_is_refused_as_by_the_reference(name: str):
    uop = encode_uop(Uop(acc=2, inp=1, wgt=0), SMALL)
    insns = (
        Load(memory="uop", base=0, dram_addr=0, x_size=1),
        Load(memory="inp", base=0, dram_addr=0, x_size=4),
        BEYOND[name],
        Load(memory="inp", base=8, dram_addr=0, x_size=4),
    )
    program = Program(SMALL, insns, {0: uop}, {"dram_bytes": 1 << 13}, 1 << 12)
    with pytest.raises(AddressError) as expected:
        run_reference(program, program.dram_image())
    with pytest.raises(AddressError) as got:
        run(program, program.dram_image())
    assert str(got.value) == str(expected.value)
    assert str(got.value).startswith("instruction 2: ")


def test_only_what_is_asked_for_is_executed():
    load = Load(memory="inp", base=0, dram_addr=0, x_size=1)
    insns = tuple(replace(load, base=base) for base in range(3))
    program = Program(SMALL, insns, {0: b"\1\2\3\4"}, {}, 1 << 12)
    state = run(program, program.dram_image(), np.array([2, 0]))
    assert state.inp[:3, 0].tolist() == [[1, 2, 3, 4], [0] * 4, [1, 2, 3, 4]]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch):
    """Kernels are made or loaded again with another cache."""

    def use(cache: Path) -> None:
        monkeypatch.setenv("VDLA_CACHE", str(cache))
        _kernels.cache_clear()

    yield use
    _kernels.cache_clear()


@pytest.mark.slow
def test_kernels_are_kept(tmp_path: Path, fresh) -> None:
    program = random_program(SMALL, 7100)
    fresh(tmp_path / "new")
    _assert_equal(program, program.dram_image())
    (kept,) = (tmp_path / "new").iterdir()
    written = kept.stat().st_mtime_ns
    fresh(tmp_path / "new")
    _assert_equal(program, program.dram_image())
    assert [f.stat().st_mtime_ns for f in (tmp_path / "new").iterdir()] == [written]


@pytest.mark.slow
def test_damaged_kernels_are_made_again(tmp_path: Path, fresh) -> None:
    program = random_program(SMALL, 7100)
    fresh(tmp_path / "new")
    _assert_equal(program, program.dram_image())
    (kept,) = (tmp_path / "new").iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:100] + b"?" + whole[101:]):
        kept.write_bytes(damaged)
        fresh(tmp_path / "new")
        _assert_equal(program, program.dram_image())
        assert kept.read_bytes() == whole


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path, fresh) -> None:
    (tmp_path / "file").touch()
    fresh(tmp_path / "file" / "cache")
    program = random_program(SMALL, 7100)
    _assert_equal(program, program.dram_image())
