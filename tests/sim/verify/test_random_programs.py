"""Random programs: legal, ordered, repeatable, and of every kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from vdla.isa.check import check
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Vector, validate
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.opcodes import DST_MEMORIES, LOADABLE, SRC0_MEMORIES, SRC1_MEMORIES, Opcode, Unit
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.reference import State, execute
from vdla.isa.status import Status
from vdla.isa.vector_ops import POST_OPS, VECTOR_OPS
from vdla.sim.model.core import simulate
from vdla.sim.verify.random_programs import random_program

SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip
TABLE = replace(PRESETS["4x4"], vector_table=2)
BYTES = replace(TABLE, vector_table=1)
ALL_FEATURES = replace(TABLE, vector_window=3)
PACKED = replace(PRESETS["8x8"], packed_weights=1)
CONFIGS = {
    "small": SMALL, "table of int16": TABLE, "table": BYTES, "window": ALL_FEATURES,
    "packed": PACKED, **PRESETS,
}  # fmt: skip
SEEDS = range(40)


def test_the_same_seed_gives_the_same_program():
    assert random_program(SMALL, 5) == random_program(SMALL, 5)
    assert random_program(SMALL, 5).insns != random_program(SMALL, 6).insns


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", list(CONFIGS))
def test_programs_are_legal_and_free_of_races(name: str):
    params = CONFIGS[name]
    for seed in SEEDS[:4]:
        program = random_program(params, seed)
        for insn in program.insns:
            validate(insn, params)
        wrong = [f for f in check(program) if f.kind not in ("uninitialised", "tokens")]
        assert not wrong, (seed, wrong[0])


def _features(insn: Insn, params: HwParams) -> set[str]:
    """What is notable about an instruction."""
    found = {insn.opcode.name}
    match insn:
        case Load():
            size = insn.dram_entry_bytes(params)
            found |= {f"load {insn.memory}", f"widen {insn.widen}", f"pad {insn.pad_value < 0}"}
            found |= {n for n in ("pad_top", "pad_bottom", "pad_left", "pad_right")
                      if getattr(insn, n)}  # fmt: skip
            found |= {f"load {n}" for n in ("y_size", "z_size") if getattr(insn, n) > 1}
            if not insn.y_size:
                found.add("padding only")
            if insn.x_size * size > params.max_burst_beats * params.bus_bytes:
                found.add("several bursts")
            if insn.dram_addr % 4096 + insn.x_size * size > 4096:
                found.add("page crossed")
            if insn.dram_addr % params.bus_bytes:
                found.add("unaligned load")
        case Store():
            found |= {f"store {n}" for n in ("y_size", "z_size") if getattr(insn, n) > 1}
            if insn.dram_addr % params.bus_bytes:
                found.add("unaligned store")
        case Gemm():
            found |= {f"init {insn.init}"}
            found |= {f"{m}_{loop}" for m in ("acc", "inp", "wgt") for loop in ("outer", "inner")
                      if getattr(insn, f"{m}_{loop}")}  # fmt: skip
            if insn.iterations > 1 and not (insn.acc_inner or insn.acc_outer):
                found.add("accumulation distance 1")
        case Vector():
            found |= {f"op {insn.op}", f"post {insn.post}", f"reduce {insn.reduce}"}
            found |= {f"src0 {insn.src0}", f"src1 {insn.src1}", f"dst {insn.dst}"}
            found |= {f"loop {i}" for i, n in enumerate(insn.extents) if n > 1}
        case Param():
            found |= {"clamp" for _ in range((insn.lo, insn.hi) != (-128, 127))}
    return found


@pytest.mark.slow
def test_programs_exercise_every_field():
    expected = {
        *(o.name for o in Opcode), *(f"load {m}" for m in LOADABLE), "widen 0", "widen 1",
        "pad True", "pad False", "pad_top", "pad_bottom", "pad_left", "pad_right", "load y_size",
        "load z_size", "padding only", "several bursts", "page crossed", "unaligned load",
        "unaligned store", "store y_size", "store z_size", "init 0", "init 1", "acc_outer",
        "acc_inner", "inp_outer", "inp_inner", "wgt_outer", "wgt_inner", "accumulation distance 1",
        *(f"op {op.name}" for op in VECTOR_OPS), *(f"post {p.name}" for p in POST_OPS),
        *(f"reduce {r}" for r in range(4)), *(f"src0 {m}" for m in SRC0_MEMORIES),
        *(f"src1 {m}" for m in SRC1_MEMORIES), *(f"dst {m}" for m in DST_MEMORIES),
        *(f"loop {i}" for i in range(4)), "clamp",
    }  # fmt: skip
    params = ALL_FEATURES
    seen = Counter(
        feature
        for seed in SEEDS
        for insn in random_program(params, seed).insns
        for feature in _features(insn, params)
    )
    assert not expected - set(seen), expected - set(seen)


def test_programs_load_packed_weights():
    """With padding, several rows, and as ever; where they are not packed, programs are what they
    were."""
    loads = {
        (n.widen, bool(n.pad_left), n.y_size > 1)
        for seed in SEEDS for n in random_program(PACKED, seed).insns
        if isinstance(n, Load) and n.memory == "wgt"
    }  # fmt: skip
    assert len(loads) == 8
    plain = random_program(PRESETS["8x8"], 3)
    assert not any(n.widen for n in plain.insns if isinstance(n, Load) and n.memory != "par")


@pytest.mark.slow
def test_units_overlap_and_stall_for_every_reason():
    memory = MEMORY_PRESETS["vta"]
    causes: Counter[str] = Counter()
    overlaps: set[tuple[Unit, Unit]] = set()
    for seed in SEEDS:
        program = random_program(HwParams(), seed)
        result = simulate(program, program.dram_image(), memory, values=False)
        assert result.status == Status.DONE
        for unit, counts in result.counters.items():
            causes.update({f"{unit} {cause}": n for cause, n in counts.items()})
        spans = list(zip(program.insns, result.starts, result.ends, strict=True))
        overlaps |= {
            (a.unit, b.unit)
            for a, first, last in spans
            for b, start, _ in spans
            if first < start < last
        }
    assert overlaps == {(a, b) for a in Unit for b in Unit}
    expected = {"load dma", "store dma", "vector hazard", "gemm token_load", "vector token_gemm",
                "store token_vector", "load token_gemm", "load token_vector", "gemm token_vector",
                "vector token_store", "vector token_load"}  # fmt: skip
    assert all(causes[name] for name in expected), {n for n in expected if not causes[n]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["16x16", "4x4"])
def test_most_instructions_change_something(name: str):
    """Programs that only move zeros would verify nothing."""
    changed: Counter[Opcode] = Counter()
    total: Counter[Opcode] = Counter()
    values: set[int] = set()
    for seed in SEEDS[:20]:
        program = random_program(PRESETS[name], seed)
        state = State(program.params, program.dram_image())
        for insn in program.insns:
            before = [state.memory(n).copy() for n in ("acc", "tmp", "out")]
            execute(insn, state)
            after = [state.memory(n) for n in ("acc", "tmp", "out")]
            total[insn.opcode] += 1
            changed[insn.opcode] += any((a != b).any() for a, b in zip(before, after, strict=True))
        values |= set(state.out.reshape(-1).tolist())
    assert changed[Opcode.GEMM] > 0.75 * total[Opcode.GEMM]
    assert changed[Opcode.VECTOR] > 0.75 * total[Opcode.VECTOR]
    assert len(values) > 100
