"""Tensor core: values against the reference, cycles against the timing contract, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.hw.core.gemm import Gemm as GemmUnit
from vdla.isa.encoding import pack
from vdla.isa.insn import Gemm, Uop, encode_uop, uop_layout
from vdla.isa.opcodes import Units
from vdla.isa.params import HwParams
from vdla.isa.reference import State
from vdla.isa.status import Status
from vdla.isa.timing import GEMM_DEPTH

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

MASKS = [Units(mask) for mask in range(16) if not Units(mask) & Units.GEMM]


def set_uop(state: State, row: int, uop: Uop) -> None:
    """Put a micro-op into the scratchpad."""
    data = np.frombuffer(encode_uop(uop, state.params), np.uint8)
    state.uop[row] = data


def random_case(params: HwParams, seed: int, count: int) -> tuple[list[Gemm], State]:
    """Instructions whose indices stay in range, with accumulators that repeat at every distance."""
    rng = np.random.default_rng(seed)
    state = random_state(params, rng)
    limits = {name: params.depth(name) for name in ("acc", "inp", "wgt")}
    for row in range(params.uop_depth):
        near = int(rng.integers(1, 4))
        set_uop(
            state,
            row,
            Uop(
                acc=int(rng.integers(0, near)),
                inp=int(rng.integers(0, limits["inp"] // 2)),
                wgt=int(rng.integers(0, limits["wgt"] // 2)),
                first=int(rng.integers(0, 2)),
            ),
        )
    insns = []
    for _ in range(count):
        outer, inner = (int(n) for n in rng.integers(1, 4, 2))
        begin = int(rng.integers(0, params.uop_depth - 1))
        strides = {}
        for name, limit in limits.items():
            room = (limit - 1) - (limit // 2 - 1 if name != "acc" else 2)
            for loop, extent in (("outer", outer), ("inner", inner)):
                most = room // max(1, 2 * (extent - 1))
                strides[f"{name}_{loop}"] = int(rng.integers(0, most, endpoint=True))
        insns.append(
            Gemm(
                pop=MASKS[int(rng.integers(8))],
                push=MASKS[int(rng.integers(8))],
                uop_begin=begin,
                uop_count=int(rng.integers(1, min(6, params.uop_depth - begin) + 1)),
                outer=outer,
                inner=inner,
                init=int(rng.integers(0, 2)),
                **strides,
            )
        )
    return insns, state


def check_cycles(run: Run, insns: list[Gemm]) -> None:
    """Starts and ends as docs/timing.md says, and a cause for every cycle."""
    starts, ends = run.strobes("start"), run.strobes("end")
    ready, busy = 0, set()
    for insn, start, end in zip(insns, starts, ends, strict=True):
        assert start == expected_start(run, insn, ready)
        assert end == start + insn.iterations + GEMM_DEPTH
        ready = start + insn.iterations
        busy |= set(range(start, ready + 1))
    assert set(run.strobes("busy")) == busy


@pytest.mark.fast(1)
@pytest.mark.parametrize("params", [SMALL, BATCHED], ids=["batch1", "batch2"])
@pytest.mark.parametrize("seed", range(4))
def test_random_instructions(params: HwParams, seed: int) -> None:
    insns, state = random_case(params, seed, 25)
    run = bench_of(GemmUnit, params).run(insns, state, seed, stalls=seed % 2 == 0)
    check_cycles(run, insns)
    check_tokens(run, insns)
    check_values(run, insns, state)


@pytest.mark.parametrize("distance", range(1, 7))
def test_accumulates_at_every_distance(distance: int) -> None:
    """Micro-ops that walk over ``distance`` accumulators: the pipeline must forward or re-read."""
    state = random_state(SMALL, np.random.default_rng(distance))
    for row in range(12):
        set_uop(state, row, Uop(acc=row % distance, inp=row, wgt=row % 8))
    insns = [Gemm(uop_begin=0, uop_count=12), Gemm(uop_begin=3, uop_count=5, inner=3)]
    run = bench_of(GemmUnit, SMALL).run(insns, state, stalls=False)
    check_cycles(run, insns)
    check_values(run, insns, state)


LEGAL = Gemm(uop_begin=0, uop_count=1)
REFUSALS = {
    "no micro-ops": ({"uop_count": 0}, Status.ILLEGAL),
    "outer 0": ({"outer": 0}, Status.ILLEGAL),
    "inner 0": ({"inner": 0}, Status.ILLEGAL),
    "waits for itself": ({"pop": 2}, Status.ILLEGAL),
    "gives to itself": ({"push": 2}, Status.ILLEGAL),
    "bits above the layout": ({"above": 4}, Status.ILLEGAL),
    "micro-ops beyond the memory": ({"uop_begin": 15, "uop_count": 2}, Status.ADDRESS),
    "acc out of range": ({"inner": 3, "acc_inner": 10}, Status.ADDRESS),
    "inp out of range": ({"outer": 2, "inp_outer": 24}, Status.ADDRESS),
    "wgt out of range": ({"outer": 2, "wgt_outer": 12}, Status.ADDRESS),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case: str) -> None:
    """The status and the index are reported, and the legal instruction before it is complete."""
    changes, status = REFUSALS[case]
    state = random_state(SMALL, np.random.default_rng(0))
    set_uop(state, 0, Uop(acc=0, inp=0, wgt=0))
    set_uop(state, 15, Uop(acc=0, inp=0, wgt=0))
    words = [LEGAL, poke(LEGAL, SMALL, **changes), LEGAL]
    run = bench_of(GemmUnit, SMALL).run(words, state, stalls=False)
    last = run.cycles[-1]
    assert (last.error, last.error_index) == (status, FIRST_INDEX + 1)
    assert run.strobes("error") == [len(run.cycles) - 1]


def test_indices_at_the_edge_are_legal() -> None:
    state = random_state(SMALL, np.random.default_rng(0))
    set_uop(state, 15, Uop(acc=19, inp=23, wgt=11))
    insns = [Gemm(uop_begin=15, uop_count=1), Gemm(uop_begin=15, uop_count=1, inner=2)]
    run = bench_of(GemmUnit, SMALL).run(insns, state, stalls=False)
    check_values(run, insns, state)


def test_fields_of_the_micro_op() -> None:
    """The scratchpad's word is the packed layout."""
    uop = Uop(acc=3, inp=5, wgt=7, first=1)
    packed = pack(uop_layout(SMALL), {"acc": 3, "inp": 5, "wgt": 7, "first": 1})
    assert int.from_bytes(encode_uop(uop, SMALL), "little") == packed
