"""The RTL simulation: how the core stops, with which instruction; the cache of built libraries."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vdla.isa.encoding import layout, layout_bits, pack
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Uop, Vector, encode_uop, field_values
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.opcodes import LOADABLE, Opcode, Unit, Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.status import Status
from vdla.isa.timing import STORE_BURSTS
from vdla.runtime.cache import LOCKS
from vdla.runtime.result import SimResult
from vdla.sim.model.core import simulate
from vdla.sim.rtl import driver as rtl_module
from vdla.sim.rtl import toolchain
from vdla.sim.rtl.driver import RtlSimulator, build_library
from vdla.sim.verify.campaign import compare
from vdla.sim.verify.random_programs import random_program

#: Small, with depths that are no powers of two, so that indices beyond them can be encoded.
PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=20, wgt_depth=9, acc_depth=10, uop_depth=12, par_depth=5,
    tmp_depth=9, out_depth=11, max_burst_beats=8, queue_depth=3, fetch_depth=4,
    loads_in_flight=2, stores_in_flight=2, token_bits=4,
)  # fmt: skip
VTA = MEMORY_PRESETS["vta"]
MAX_CYCLES = 20_000
PROGRAM_ADDR, DRAM_BYTES = 1 << 15, 1 << 16
#: The faulty instruction stands between these.
BEFORE, AFTER = (Param(par_base=0), Param(par_base=1)), (Param(par_base=2),)
INDEX = len(BEFORE)

LOAD = Load(memory="inp", base=0, dram_addr=0, x_size=2)
GEMM = Gemm(uop_begin=0, uop_count=1)
VECTOR = Vector(op="add", src0="acc", src1="imm", dst="tmp")
STORE = Store(base=0, dram_addr=0, x_size=2)


@pytest.fixture(scope="module")
def rtl() -> RtlSimulator:
    return RtlSimulator(PARAMS)


def _program(*insns: Insn, image: dict[int, bytes] | None = None) -> Program:
    meta = {"dram_bytes": DRAM_BYTES}
    return Program(PARAMS, insns, image or {}, meta, PROGRAM_ADDR)


def _word(insn: Insn) -> int:
    """Encoded, legal or not."""
    return pack(layout(insn.opcode, PARAMS), field_values(insn))


def _run_word(rtl: RtlSimulator, word: int, image: dict[int, bytes] | None = None) -> SimResult:
    """Run a program in whose middle stands ``word``."""
    program = _program(*BEFORE, LOAD, *AFTER, image=image)
    dram = program.dram_image()
    where = PROGRAM_ADDR + INDEX * PARAMS.insn_bytes
    raw = word.to_bytes(PARAMS.insn_bytes, "little")
    dram[where : where + PARAMS.insn_bytes] = np.frombuffer(raw, np.uint8)
    return rtl.run(program, dram, VTA, MAX_CYCLES)


# ---- runs that end well


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize(
    "memory",
    [
        MemoryParams(64, 1, 1, 1, 1),
        MemoryParams(64, 37, 9, 2, 3),
        MemoryParams(64, 5, 60, 3, 2),
        MemoryParams(64, 400, 1, 32, 1),
    ],
    ids=str,
)
def test_odd_memories_change_no_byte_and_no_cycle_differs(rtl: RtlSimulator, memory: MemoryParams):
    for seed in range(3):
        program = random_program(PARAMS, 900 + seed)
        found = compare(
            program, program.dram_image(), memory, lambda p, d, m: rtl.run(p, d, m, 500_000)
        )
        assert found["first_divergence"] is None
        assert not found["byte_mismatches"] and not found["cycle_mismatches"]


@pytest.mark.more
@pytest.mark.slow
def test_writes_that_wait_for_their_response():
    """However many a memory takes, the store unit keeps no more of them unanswered."""
    params = replace(PARAMS, out_depth=64)
    rtl, rows = RtlSimulator(params), 50
    insns = tuple(Store(base=0, dram_addr=0, x_size=1, y_size=rows) for _ in range(2))
    program = Program(params, insns, {}, {"dram_bytes": DRAM_BYTES}, PROGRAM_ADDR)
    cycles = {}
    for unanswered in (STORE_BURSTS - 1, STORE_BURSTS, STORE_BURSTS + 1, 256):
        memory = MemoryParams(PARAMS.bus_bits, 16, 900, unanswered)
        hardware = rtl.run(program, program.dram_image(), memory)
        model = simulate(program, program.dram_image(), memory)
        assert (hardware.cycles, hardware.ends) == (model.cycles, model.ends)
        cycles[unanswered] = model.cycles
    assert cycles[STORE_BURSTS - 1] > cycles[STORE_BURSTS] == cycles[256]


@pytest.mark.slow
def test_every_cycle_has_a_cause(rtl: RtlSimulator):
    program = random_program(PARAMS, 950)
    result = rtl.run(program, program.dram_image(), VTA, MAX_CYCLES)
    assert result.status == Status.DONE and result.error_index is None and result.report == ""
    for unit, causes in result.counters.items():
        assert sum(causes.values()) == result.cycles, unit


def test_runs_do_not_know_of_each_other(rtl: RtlSimulator):
    program = random_program(PARAMS, 951)
    first, second = (rtl.run(program, program.dram_image(), VTA, MAX_CYCLES) for _ in range(2))
    assert (first.starts, first.ends, first.cycles) == (second.starts, second.ends, second.cycles)
    for name, contents in first.scratchpads.items():
        assert np.array_equal(contents, second.scratchpads[name]), name


def test_an_empty_program_is_done_at_once(rtl: RtlSimulator):
    result = rtl.run(_program(), _program().dram_image(), VTA, MAX_CYCLES)
    assert result.status == Status.DONE and result.cycles < 4


# ---- a program that does not fit


def test_a_program_of_another_configuration_does_not_run(rtl: RtlSimulator):
    other = replace(PARAMS, queue_depth=4)
    program = Program(other, (LOAD, STORE), {}, {"dram_bytes": DRAM_BYTES}, PROGRAM_ADDR)
    dram = program.dram_image()
    untouched = dram.copy()
    result = rtl.run(program, dram, VTA, MAX_CYCLES)
    assert result.status == Status.BAD_CONFIG and result.error_index is None
    assert result.cycles == 0 and result.starts == result.ends == [-1, -1]
    assert np.array_equal(dram, untouched)


def test_the_memory_must_have_the_width_of_the_bus(rtl: RtlSimulator):
    program = _program(LOAD)
    with pytest.raises(VdlaError, match=r"64 bits.*128"):
        rtl.run(program, program.dram_image(), MEMORY_PRESETS["wide"])


def test_a_run_is_cut_off(rtl: RtlSimulator):
    program = _program(LOAD)
    with pytest.raises(VdlaError, match="not ended after 10 cycles"):
        rtl.run(program, program.dram_image(), VTA, max_cycles=10)


# ---- undecodable


ILLEGAL = {
    "load x": replace(LOAD, x_size=0),
    "load z": replace(LOAD, z_size=0),
    "load rows": replace(LOAD, y_size=0),
    "load widen": replace(LOAD, widen=1),
    "gemm uops": replace(GEMM, uop_count=0),
    "gemm outer": replace(GEMM, outer=0),
    "gemm inner": replace(GEMM, inner=0),
    **{
        f"vector n{k}": replace(VECTOR, extents=tuple(int(i != k) for i in range(4)))
        for k in range(4)
    },
    "vector reduce 5": replace(VECTOR, reduce=5),
    "vector reduce sub": replace(VECTOR, op="sub", reduce=1),
    "store x": replace(STORE, x_size=0),
    "store y": replace(STORE, y_size=0),
    "store z": replace(STORE, z_size=0),
    **{
        f"own token {insn.unit.name} {mask}": replace(insn, **{mask: Units(1 << insn.unit)})
        for insn in (LOAD, GEMM, VECTOR, STORE)
        for mask in ("pop", "push")
    },
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_empty_extents_and_own_tokens_are_illegal(rtl: RtlSimulator, name: str):
    result = _run_word(rtl, _word(ILLEGAL[name]))
    assert (result.status, result.error_index) == (Status.ILLEGAL, INDEX)


def test_a_vector_code_that_names_nothing_is_illegal(rtl: RtlSimulator):
    spec = layout(Opcode.VECTOR, PARAMS)
    values = field_values(VECTOR)
    for field, code in (("op", 15), ("post", 3), ("src0", 3), ("src1", 3)):
        result = _run_word(rtl, pack(spec, values | {field: code}))
        assert (result.status, result.error_index) == (Status.ILLEGAL, INDEX), field


@pytest.mark.parametrize("code", [0, 6, 7])
def test_an_opcode_that_names_nothing_is_illegal(rtl: RtlSimulator, code: int):
    result = _run_word(rtl, code)
    assert (result.status, result.error_index) == (Status.ILLEGAL, INDEX)
    assert result.starts[INDEX:] == [-1, -1]


@pytest.mark.parametrize("insn", [LOAD, GEMM, VECTOR, Param(par_base=0), STORE], ids=repr)
def test_bits_beyond_the_fields_are_illegal(rtl: RtlSimulator, insn: Insn):
    bits = layout_bits(layout(insn.opcode, PARAMS))
    for position in (bits, PARAMS.insn_bytes * 8 - 1):
        if position < PARAMS.insn_bytes * 8:
            result = _run_word(rtl, _word(insn) | 1 << position)
            assert (result.status, result.error_index) == (Status.ILLEGAL, INDEX), position


# ---- indices beyond a memory


BEYOND = {
    **{
        f"load {name}": Load(memory=name, base=PARAMS.depth(name) - 1, dram_addr=0, x_size=2)
        for name in LOADABLE
    },
    "gemm uop": replace(GEMM, uop_begin=PARAMS.uop_depth - 1, uop_count=2),
    "gemm acc": replace(GEMM, outer=PARAMS.acc_depth + 1, acc_outer=1),
    "gemm inp": replace(GEMM, inner=5, inp_inner=5),
    "gemm wgt": replace(GEMM, outer=2, wgt_outer=5, inner=2, wgt_inner=4),
    "vector acc": replace(VECTOR, src0_base=PARAMS.acc_depth),
    "vector inp": replace(VECTOR, src0="inp", extents=(1, 1, 21, 1), src0_strides=(0, 0, 1, 0)),
    "vector tmp": replace(VECTOR, src0="tmp", src0_base=PARAMS.tmp_depth),
    "vector par": replace(VECTOR, src1="par", src1_base=PARAMS.par_depth),
    "vector tmp 1": replace(VECTOR, src1="tmp", extents=(2, 1, 1, 2), src1_strides=(8, 0, 0, 1)),
    "vector to tmp": replace(VECTOR, dst_base=PARAMS.tmp_depth),
    "vector to out": replace(VECTOR, dst="out", dst_base=PARAMS.out_depth),
    "param": Param(par_base=PARAMS.par_depth - 2),
    "store": replace(STORE, base=PARAMS.out_depth - 1),
}


@pytest.mark.parametrize("name", BEYOND)
def test_an_index_beyond_a_memory_stops_the_core(rtl: RtlSimulator, name: str):
    result = _run_word(rtl, _word(BEYOND[name]))
    assert (result.status, result.error_index) == (Status.ADDRESS, INDEX)


@pytest.mark.parametrize("name", BEYOND)
def test_the_last_index_of_a_memory_does_not(rtl: RtlSimulator, name: str):
    insn = BEYOND[name]
    match insn:
        case Load():
            insn = replace(insn, x_size=1)
        case Gemm(uop_begin=begin) if begin:
            insn = replace(insn, uop_count=1)
        case Gemm(inner=inner) if inner > 1:
            insn = replace(insn, inner=inner - 1, wgt_inner=0)
        case Gemm(outer=outer):
            insn = replace(insn, outer=outer - 1)
        case Vector(extents=extents) if max(extents) > 1:
            insn = replace(insn, extents=tuple(max(1, n - 1) for n in extents))
        case Vector():
            fields = {
                f: max(0, getattr(insn, f) - 1) for f in ("src0_base", "src1_base", "dst_base")
            }
            insn = replace(insn, **fields)
        case Param():
            insn = replace(insn, par_base=insn.par_base - 1)
        case Store():
            insn = replace(insn, x_size=1)
    result = _run_word(rtl, _word(insn))
    assert (result.status, result.error_index) == (Status.DONE, None)


@pytest.mark.parametrize("field", ["acc", "inp", "wgt"])
def test_an_index_beyond_a_memory_in_a_micro_op_stops_the_core(rtl: RtlSimulator, field: str):
    indices = {"acc": 0, "inp": 0, "wgt": 0} | {field: PARAMS.depth(field)}
    uops = encode_uop(Uop(acc=0, inp=0, wgt=0), PARAMS) + encode_uop(Uop(**indices), PARAMS)
    load = Load(memory="uop", base=0, dram_addr=0, x_size=2, push=Units.GEMM)
    program = _program(load, replace(GEMM, uop_count=2, pop=Units.LOAD), image={0: uops})
    result = rtl.run(program, program.dram_image(), VTA, MAX_CYCLES)
    assert (result.status, result.error_index) == (Status.ADDRESS, 1)


# ---- beyond DRAM


def test_a_load_beyond_dram_stops_the_core(rtl: RtlSimulator):
    inside = replace(LOAD, dram_addr=DRAM_BYTES - 8)
    beyond = replace(LOAD, dram_addr=DRAM_BYTES - 8, y_size=2, y_stride=8)
    program = _program(inside, inside, beyond, LOAD)
    result = rtl.run(program, program.dram_image(), VTA, MAX_CYCLES)
    assert (result.status, result.error_index) == (Status.BUS, 2)
    assert result.ends[1] >= 0 > result.ends[2]


def test_a_store_beyond_dram_stops_the_core(rtl: RtlSimulator):
    inside = replace(STORE, dram_addr=DRAM_BYTES - 8)
    program = _program(inside, replace(inside, dram_addr=DRAM_BYTES), inside)
    result = rtl.run(program, program.dram_image(), VTA, MAX_CYCLES)
    assert (result.status, result.error_index) == (Status.BUS, 1)


def test_instructions_beyond_dram_stop_the_core(rtl: RtlSimulator):
    program = _program(*(LOAD,) * 9)
    there = program.dram_image()[: PROGRAM_ADDR + 5 * PARAMS.insn_bytes].copy()
    result = rtl.run(program, there, VTA, MAX_CYCLES)
    assert (result.status, result.error_index) == (Status.BUS, 5)


# ---- tokens


def test_a_token_too_many_stops_the_core(rtl: RtlSimulator):
    most = (1 << PARAMS.token_bits) - 1
    push = replace(GEMM, push=Units.STORE)
    fits = _program(*(push,) * most)
    assert rtl.run(fits, fits.dram_image(), VTA, MAX_CYCLES).status == Status.DONE
    program = _program(LOAD, *(push,) * (most + 1))
    result = rtl.run(program, program.dram_image(), VTA, MAX_CYCLES)
    assert (result.status, result.error_index) == (Status.TOKEN_OVERFLOW, most + 1)


DEADLOCKS = {
    "two units wait for each other": (
        Param(par_base=0),
        replace(LOAD, pop=Units.GEMM, push=Units.GEMM),
        replace(GEMM, pop=Units.LOAD, push=Units.LOAD),
    ),
    "nobody will push": (replace(STORE, pop=Units.VECTOR | Units.LOAD),),
    "the queue of a waiting unit is full": (
        LOAD,
        *(replace(GEMM, pop=Units.LOAD),) * (2 * PARAMS.queue_depth),
        replace(LOAD, push=Units.GEMM),
    ),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", DEADLOCKS)
def test_a_deadlock_is_reported_as_in_the_model(rtl: RtlSimulator, name: str):
    program = _program(*DEADLOCKS[name])
    result = rtl.run(program, program.dram_image(), VTA, MAX_CYCLES)
    model = simulate(program, program.dram_image(), VTA)
    assert result.status == model.status == Status.DEADLOCK
    assert result.error_index == model.error_index
    assert result.report == model.report != ""
    assert (result.starts, result.ends) == (model.starts, model.ends)


# ---- the cache


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and compilers that only write down what they were given."""
    monkeypatch.setenv("VDLA_CACHE", str(tmp_path / "cache"))
    done: list[str] = []

    def verilate(source: Path, _top: str, directory: Path) -> None:
        directory.mkdir()
        (directory / "core.cpp").write_text(source.read_text())

    def compile_shared(sources: list[Path], _includes: list[Path], output: Path) -> None:
        text = sources[-1].read_text()
        if "broken" in text:
            raise VdlaError("g++ failed")
        done.append(text)
        output.write_text(text)

    monkeypatch.setattr(toolchain, "verilate", verilate)
    monkeypatch.setattr(toolchain, "compile_shared", compile_shared)
    return done


def kept_files() -> list[str]:
    return [path.name for path in toolchain.cache_dir().iterdir() if path.name != LOCKS]


def test_a_library_is_built_once(builds: list[str]):
    first = build_library("module a;")
    assert build_library("module a;") == first and first.read_text() == "module a;"
    assert build_library("module b;") != first
    assert builds == ["module a;", "module b;"]


def test_other_tools_and_another_harness_build_anew(
    builds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paths = {build_library("module a;")}
    monkeypatch.setattr(toolchain, "versions", lambda: {"verilator": "0"})
    paths.add(build_library("module a;"))
    harness = tmp_path / "harness.cpp"
    harness.write_text("// other")
    monkeypatch.setattr(rtl_module, "HARNESS", harness)
    paths.add(build_library("module a;"))
    assert len(paths) == len(builds) == 3


def test_verilog_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is found by configuration, sources and tools, and made anew where it is damaged."""
    made: list[HwParams] = []

    def convert(params: HwParams) -> str:
        made.append(params)
        return f"module {params.hash}; // {len(made)}"

    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    monkeypatch.setattr("vdla.hw.core.verilog.core_verilog", convert)
    first = rtl_module.kept_verilog(PARAMS)
    assert rtl_module.kept_verilog(PARAMS) == first and made == [PARAMS]
    other = replace(PARAMS, queue_depth=PARAMS.queue_depth + 1)
    assert rtl_module.kept_verilog(other) != first and made == [PARAMS, other]
    monkeypatch.setattr("vdla.sim.rtl.kept.source_digest", lambda *rooms: "other sources")
    assert rtl_module.kept_verilog(PARAMS).endswith("// 3")
    monkeypatch.setattr(toolchain, "versions", lambda: {"amaranth": "0"})
    assert rtl_module.kept_verilog(PARAMS).endswith("// 4")
    for path in tmp_path.glob("*.v"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert rtl_module.kept_verilog(PARAMS).endswith("// 5")


def test_a_failed_build_leaves_nothing_behind(builds: list[str]):
    with pytest.raises(VdlaError, match="failed"):
        build_library("module broken;")
    assert builds == [] and kept_files() == []


def test_builds_at_once_do_not_disturb_each_other(
    builds: list[str], monkeypatch: pytest.MonkeyPatch
):
    """One is made, for which all wait."""
    compile_shared = toolchain.compile_shared

    def slowly(*arguments: Any) -> None:
        time.sleep(0.2)
        compile_shared(*arguments)

    monkeypatch.setattr(toolchain, "compile_shared", slowly)
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(build_library("module a;"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8 and len(set(paths)) == 1
    assert builds == ["module a;"], "the others wait for it"
    assert kept_files() == [paths[0].name]
    assert paths[0].read_text() == "module a;"


def test_every_unit_is_traced(rtl: RtlSimulator):
    program = random_program(PARAMS, 952)
    result = rtl.run(program, program.dram_image(), VTA, MAX_CYCLES)
    assert {insn.unit for insn in program.insns} == set(Unit)
    assert all(0 <= start < end for start, end in zip(result.starts, result.ends, strict=True))
