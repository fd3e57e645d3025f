"""Functional coverage: what single instructions and runs hit, merging and files, and programs that
are drawn towards holes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from vdla.cli import run_app
from vdla.isa.check import check
from vdla.isa.encoding import HEADER, Field
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Table, Vector
from vdla.isa.memory import MemoryParams
from vdla.isa.opcodes import Opcode, Unit, Units, opcodes
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program
from vdla.isa.vector_ops import VectorOp, operators
from vdla.pages.coverage import coverage_page
from vdla.sim.coverage import bins as bins_module
from vdla.sim.coverage import numbers
from vdla.sim.coverage.bins import GROUPS, bins
from vdla.sim.coverage.coverage import Coverage, load, merged
from vdla.sim.coverage.sample import _Hazards, sample, still
from vdla.sim.coverage.timeline import Moments, Timeline
from vdla.sim.coverage.unreachable import RULES, unreachable
from vdla.sim.model.core import simulate
from vdla.sim.rtl.driver import RtlSimulator
from vdla.sim.verify.campaign import named_program
from vdla.sim.verify.random_programs import random_program
from vdla.sim.verify.steered import steered_program

from ...mutants.plant import Mutant

#: The smallest legal buffers, whose RTL other tests build, too.
SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip
VTA = MemoryParams()


def run(program: Program, coverage: Coverage) -> None:
    dram = program.dram_image()
    coverage.sample(program, dram, simulate(program, dram.copy(), VTA, values=False))


def collected(params: HwParams, seeds: range) -> Coverage:
    coverage = Coverage(params)
    for seed in seeds:
        run(random_program(params, seed), coverage)
    return coverage


# ---- bins ----


@pytest.mark.parametrize("params", [SMALL, *PRESETS.values()])
def test_bins_are_distinct_and_rules_match_some(params: HwParams) -> None:
    groups = bins(params)
    assert list(groups) == list(GROUPS)
    for names in groups.values():
        assert names and len(set(names)) == len(names)
    assert {group for group, _ in unreachable(params)} <= set(groups)


def test_every_rule_is_needed() -> None:
    """Each names bins of some configuration, or it would say nothing."""
    roomy = replace(PRESETS["4x4"], bus_bits=256, max_burst_beats=128, batch=4)
    long = replace(SMALL, bus_bits=256, max_burst_beats=128)
    window = replace(SMALL, vector_window=2)
    known = (SMALL, HwParams(), roomy, long, window)
    reasons = {r for params in known for r in unreachable(params).values()}
    assert {rule.reason for rule in RULES} == reasons


def test_packed_weights_are_reached_where_there_are_some() -> None:
    packed = replace(PRESETS["8x8"], packed_weights=1)
    widened = ("pairs", "load memory=wgt widen=1")
    assert widened in unreachable(PRESETS["8x8"]) and widened not in unreachable(packed)
    assert ("pairs", "load memory=inp widen=1") in unreachable(packed)
    insn = Load(memory="wgt", base=0, dram_addr=0, x_size=2, y_size=2, y_stride=80, widen=1)
    assert {widened, ("dram", "load rows touch")} <= still(insn, packed)


def test_the_least_and_the_greatest_values() -> None:
    ends = bins_module.extremes(Opcode.LOAD, HwParams())
    assert ends["x_size"] == (1, 2048) and ends["y_size"] == (0, 2048)
    assert ends["pad_value"] == (-128, 127) and ends["pad_left"] == (0, 31)
    assert "base" not in ends and "dram_addr" not in ends and "memory" not in ends
    assert bins_module.extremes(Opcode.GEMM, SMALL)["uop_count"] == (1, 8)
    assert bins_module.extremes(Opcode.VECTOR, SMALL)["n3"] == (1, 1023)
    assert bins_module.extremes(Opcode.LOAD, SMALL)["pad_top"] == (0, 16)


def test_memories_follow_from_the_widths_of_fields() -> None:
    assert bins_module.indexed(Opcode.PARAM) == ("par",)
    assert bins_module.indexed(Opcode.GEMM) == ("inp", "wgt", "uop", "acc")
    assert bins_module.indexed(Opcode.VECTOR) == ("inp", "par", "acc", "tmp", "out")


def fresh_bins(params: HwParams) -> dict[str, tuple[str, ...]]:
    """As the tables are now."""
    return bins.__wrapped__(params)


def test_a_new_operator_adds_its_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fresh_bins(SMALL)
    new = VectorOp("xor", 8, "a ^ b", lambda k, a, b: k.xor(a, b))
    monkeypatch.setattr(bins_module, "operators", lambda _: (*operators(SMALL), new))
    codes = dict(bins_module.CODES)
    codes[Opcode.VECTOR, "op"] = codes[Opcode.VECTOR, "op"] | {"xor": 8}
    monkeypatch.setattr(bins_module, "CODES", codes)
    monkeypatch.setattr(bins_module, "choices", bins_module.choices.__wrapped__)
    after = fresh_bins(SMALL)
    added = {g: set(after[g]) - set(before[g]) for g in GROUPS}
    assert added["kinds"] == {"vector op=xor"} and added["numbers"] == {"vector xor wraps"}
    assert "vector op=xor post=tflite" in added["pairs"] and len(added["pairs"]) == 16
    assert sum(map(len, added.values())) == 18


def test_a_new_opcode_adds_its_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies within tmp: kinds, tokens, waits, entries and fields follow from its layout."""
    copy = type("Copy", (), {"name": "COPY", "unit": Unit.VECTOR})()
    before, layout = fresh_bins(SMALL), bins_module.layout

    def with_copy(opcode, params):
        if opcode is not copy:
            return layout(opcode, params)
        base = Field("base", params.index_bits("tmp"), "first entry")
        return (*HEADER, base, Field("length", 6, "entries"), Field("fill", 1, "or a constant"))

    monkeypatch.setattr(bins_module, "opcodes", lambda params: [*opcodes(params), copy])
    monkeypatch.setattr(bins_module, "layout", with_copy)
    after = fresh_bins(SMALL)
    added = {g: set(after[g]) - set(before[g]) for g in GROUPS}
    assert added["kinds"] == {"copy", "copy fill=0", "copy fill=1"}
    assert len(added["tokens"]) == 32 and "copy pop load+store" in added["tokens"]
    assert added["waits"] == {"copy for load", "copy for gemm", "copy for store"}
    assert added["entries"] == {
        f"copy {use} tmp {end}" for use in ("reads", "writes") for end in ("first", "last")
    }
    assert added["fields"] == {"copy length least", "copy length most"}


# ---- samples ----


@pytest.mark.parametrize("insn, hit, missed", [
    (Load(memory="inp", base=15, dram_addr=4096 - 4, x_size=1, pad_value=127),
     {("kinds", "load memory=inp"), ("entries", "load writes inp last"), ("padding", "sides none"),
      ("dram", "load ends at a page"), ("dram", "load begins inside a beat"),
      ("dram", "load burst of one beat"), ("fields", "load pad_value most")},
     {("entries", "load writes inp first"), ("dram", "load crosses a page"),
      ("fields", "load x_size most"), ("dram", "load ends inside a beat")}),
    (Load(memory="inp", base=0, dram_addr=4096 - 8, x_size=3, y_size=2, y_stride=8, pad_left=1),
     {("dram", "load crosses a page"), ("dram", "load rows overlap"), ("padding", "inp left"),
      ("padding", "sides left"), ("entries", "load writes inp first")},
     {("dram", "load rows apart"), ("padding", "sides none"), ("padding", "inp top")}),
    (Load(memory="wgt", base=0, dram_addr=0, x_size=8),
     {("dram", "load longest burst"), ("dram", "load cut at the longest burst"),
      ("dram", "load begins at a page"), ("entries", "load writes wgt last")},
     {("dram", "load crosses a page"), ("fields", "load x_size most")}),
    (Store(base=0, dram_addr=8, x_size=2, y_size=3, y_stride=8),
     {("dram", "store rows touch"), ("entries", "store reads out first")},
     {("entries", "store reads out last"), ("dram", "store rows apart")}),
    (Vector(op="mul", src0="inp", src1="imm", dst="tmp", reduce=1, imm=-(1 << 31),
            extents=(1, 1, 1, 1023), dst_base=7),
     {("pairs", "vector op=mul reduce=1"), ("fields", "vector n3 most"),
      ("fields", "vector imm least"), ("entries", "vector writes tmp last")},
     {("fields", "vector n2 most"), ("entries", "vector reads tmp last")}),
    (Param(par_base=1, lo=-128, hi=127),
     {("entries", "param reads par last"), ("fields", "param hi most")},
     {("entries", "param reads par first"), ("fields", "param hi least")}),
])  # fmt: skip
def test_an_instruction_by_itself(insn: Insn, hit: set, missed: set) -> None:
    found = still(insn, SMALL)
    known = {(group, name) for group, names in bins(SMALL).items() for name in names}
    assert hit <= found <= known and missed <= known and not missed & found


def of_run(insns: list[Insn], starts: list[int], ends: list[int]) -> set[tuple[str, str]]:
    """What a run with these moments hits."""
    program = Program(SMALL, tuple(insns), {0: bytes(4096)}, {}, 8192)
    return set(sample(program, program.dram_image(), Moments(starts, ends, {})))


FILL = Load(memory="inp", base=0, dram_addr=0, x_size=4, push=Units.VECTOR)
READ = Vector(op="add", src0="inp", src1="imm", dst="out", src0_base=3, pop=Units.LOAD)


def test_a_hazard_and_a_wait() -> None:
    at_once = of_run([FILL, READ], [0, 21], [20, 40])
    assert {("hazards", "raw inp: load, vector"), ("hazards", "raw inp: load, vector, at once"),
            ("waits", "vector for load"), ("overlap", "load"), ("overlap", "vector"),
            ("tokens", "vector pop load"), ("tokens", "load push vector")} <= at_once  # fmt: skip
    assert ("overlap", "load+vector") not in at_once
    later = of_run([FILL, READ], [0, 22], [20, 40])
    assert ("hazards", "raw inp: load, vector") in later
    assert ("hazards", "raw inp: load, vector, at once") not in later
    assert ("waits", "vector for load") not in later
    apart = of_run([FILL, replace(READ, src0_base=4)], [0, 21], [20, 40])
    assert ("hazards", "raw inp: load, vector") not in apart


def test_what_is_in_flight_together() -> None:
    second = replace(FILL, base=3)
    together = of_run([FILL, second], [0, 20], [20, 30])
    assert {("hazards", "waw inp: load, load, in flight"), ("overlap", "two of load"),
            ("overlap", "the most of load")} <= together  # fmt: skip
    after = of_run([FILL, second], [0, 21], [20, 30])
    assert ("hazards", "waw inp: load, load") in after
    assert not {("hazards", "waw inp: load, load, in flight"), ("overlap", "two of load")} & after


def test_what_has_not_ended_is_not_counted() -> None:
    found = of_run([FILL, READ], [0, 21], [20, -1])
    assert ("kinds", "load") in found and ("kinds", "vector") not in found


NUMBERS = Load(memory="inp", base=0, dram_addr=0, x_size=1, y_size=0, pad_top=2, pad_value=100)


@pytest.mark.parametrize("insn, hit", [
    (Vector(op="add", src0="inp", src1="imm", dst="out", imm=27), set()),
    (Vector(op="add", src0="inp", src1="imm", dst="out", imm=28),
     {"vector saturates at the greatest"}),
    (Vector(op="sub", src0="inp", src1="imm", dst="out", imm=228), set()),
    (Vector(op="sub", src0="inp", src1="imm", dst="out", imm=229),
     {"vector saturates at the least"}),
    (Vector(op="add", src0="inp", src1="imm", dst="tmp", imm=(1 << 31) - 101), set()),
    (Vector(op="add", src0="inp", src1="imm", dst="tmp", imm=(1 << 31) - 100),
     {"vector add wraps"}),
    (Vector(op="mul", src0="inp", src1="imm", dst="tmp", imm=1 << 25), {"vector mul wraps"}),
    (Vector(op="shl", src0="inp", src1="imm", dst="tmp", imm=24), set()),
    (Vector(op="shl", src0="inp", src1="imm", dst="tmp", imm=25), {"vector shl wraps"}),
    (Vector(op="max", src0="inp", src1="imm", dst="out", post="even"),
     {"vector even: inside the clamp"}),
])  # fmt: skip
def test_numbers(insn: Insn, hit: set[str]) -> None:
    found = of_run([NUMBERS, insn], [0, 10], [9, 20])
    assert {bin_name for group, bin_name in found if group == "numbers"} == hit


@pytest.mark.parametrize("asked, place", [
    (-129, "below -128"), (-128, "from -128 to -1"), (-1, "from -128 to -1"),
    (0, "from 0 to 127"), (127, "from 0 to 127"), (128, "above 127"),
])  # fmt: skip
def test_what_the_table_is_asked_for(asked: int, place: str) -> None:
    params = replace(SMALL, par_depth=19, vector_table=1)
    insns = (
        Load(memory="inp", base=0, dram_addr=0, x_size=1, y_size=0, pad_top=1, pad_value=0),
        Vector(op="add", src0="inp", src1="imm", dst="tmp", imm=asked), Table(par_base=0),
        Vector(op="table", src0="tmp", src1="imm", dst="out"),
    )  # fmt: skip
    program = Program(params, insns, {0: bytes(4096)}, {}, 8192)
    found = sample(program, program.dram_image(), Moments([0] * 4, [9] * 4, {}))
    bins_hit = {n for group, n in found if group == "numbers" and "looks up" in n}
    assert bins_hit == {f"vector table looks up {place}"}
    difference = replace(insns[-1], op="table_diff", imm=1)
    params = replace(SMALL, par_depth=35, vector_table=2)
    asking = replace(insns[1], imm=1 - asked)
    program = Program(params, (insns[0], asking, insns[2], difference), {0: bytes(4096)}, {}, 8192)
    found = sample(program, program.dram_image(), Moments([0] * 4, [9] * 4, {}))
    bins_hit = {n for group, n in found if group == "numbers" and "looks up" in n}
    assert bins_hit == {f"vector table_diff looks up {place}"}


@pytest.mark.parametrize("left_out", range(3))
def test_what_windows_leave_out(left_out: int) -> None:
    """Its results count as those of other operators: 40 * 2 saturates where several are added."""
    params = replace(SMALL, vector_window=3)
    insns = (
        Load(memory="inp", base=0, dram_addr=0, x_size=1, y_size=0, pad_top=3, pad_value=40),
        Load(memory="par", base=0, dram_addr=0, x_size=1, y_size=0, pad_top=1, pad_value=1),
        Vector(op="window", src0="inp", src1="par", dst="out", imm=left_out, extents=(1, 1, 1, 3),
               src0_strides=(0, 0, 0, 1), dst_strides=(0, 0, 0, 1)),
    )  # fmt: skip
    program = Program(params, insns, {0: bytes(4096)}, {}, 8192)
    moments = Moments([0] * 3, [9] * 3, {})
    found = {n for group, n in sample(program, program.dram_image(), moments) if group == "numbers"}
    expected = {f"vector window leaves out {left_out}"}
    assert found == expected
    heavy = replace(insns[1], pad_value=2)
    program = Program(params, (insns[0], heavy, insns[2]), {0: bytes(4096)}, {}, 8192)
    found = {n for group, n in sample(program, program.dram_image(), moments) if group == "numbers"}
    assert ("vector saturates at the greatest" in found) is (left_out > 0)


def test_the_largest_product() -> None:
    """Of parameters whose multiplier is the least number, and of one that is one more."""
    least = -(1 << 31)
    for multiplier, hit in ((least, True), (least + 1, False)):
        rows = np.zeros((3, SMALL.block), "<i4")
        rows[1] = multiplier
        insns = (
            Load(memory="par", base=0, dram_addr=0, x_size=3), Param(par_base=0),
            Vector(op="min", src0="inp", src1="imm", dst="out", post="even", imm=least),
        )  # fmt: skip
        program = Program(SMALL, insns, {0: rows.tobytes()}, {}, 4096)
        found = sample(program, program.dram_image(), Moments([0] * 3, [9] * 3, {}))
        assert (("numbers", "vector even: least times least") in found) is hit


@pytest.mark.parametrize("passes, extents, reduce, hit", [
    (1, (1, 1, 1, 4), 0, {1}), (1, (1, 1, 2, 5), 1, {1, 2, 3, 4, 5}), (1, (1, 1, 1, 5), 1, set()),
    (4, (1, 1, 2, 9), 1, {1, 2, 3, 4}),
])  # fmt: skip
def test_distances_in_the_vector_unit(
    passes: int, extents: tuple[int, ...], reduce: int, hit: set[int]
) -> None:
    params = replace(SMALL, vector_passes=passes)
    insn = Vector(op="add", src0="tmp", src1="imm", dst="tmp", extents=extents, reduce=reduce)
    program = Program(params, (insn,), {0: bytes(4096)}, {}, 8192)
    found = sample(program, program.dram_image(), Moments([0], [100], {}))
    got = {name for group, name in found if group == "distances"}
    assert got == {f"vector reads tmp after {n}" for n in hit}


SATURATES = Vector(op="add", src0="inp", src1="imm", dst="out", imm=27)


@pytest.mark.parametrize("function, old, new, seen_by", [
    (_Hazards._of, "start == end + 1", "start == end", lambda: test_a_hazard_and_a_wait()),
    (_Hazards._of, "start <= end", "start < end", lambda: test_what_is_in_flight_together()),
    (_Hazards.sample, "self.written[access.memory][access.entries] = index", "pass",
     lambda: test_a_hazard_and_a_wait()),
    (Timeline.waits, "starts[index] - 1", "starts[index]", lambda: test_a_hazard_and_a_wait()),
    (Timeline._in_flight, "ends[index] + 1]", "ends[index]]",
     lambda: test_what_is_in_flight_together()),
    (numbers._vector, "result > INT8_MAX", "result >= INT8_MAX",
     lambda: test_numbers(SATURATES, set())),
    (Coverage.merge, "self.hits.update(other.hits)", "self.hits = other.hits",
     lambda: test_merging_is_sampling_both()),
])  # fmt: skip
@pytest.mark.fast(1)
def test_bugs_of_the_collector_are_seen(
    function: Callable, old: str, new: str, seen_by: Callable[[], None]
) -> None:
    seen_by()
    with (
        Mutant(old, "coverage", function, old, new, lambda: None).plant(),
        pytest.raises(AssertionError),
    ):
        seen_by()


# ---- both simulators ----


@pytest.mark.more
@pytest.mark.slow
def test_the_rtl_and_the_model_give_the_same() -> None:
    """Of a random and a steered program; and another run in time gives other bins."""
    rtl, of_rtl, of_sim = RtlSimulator(SMALL), Coverage(SMALL), Coverage(SMALL)
    wanted = [("tokens", "gemm pop vector+store"), ("dram", "store rows overlap")]
    for program in (random_program(SMALL, 3), steered_program(SMALL, 4, wanted)):
        dram = program.dram_image()
        of_rtl.sample(program, dram, rtl.run(program, dram.copy(), VTA))
        timing = simulate(program, dram.copy(), VTA)
        of_sim.sample(program, dram, timing)
        late = replace(timing, ends=[end + 1 for end in timing.ends])
        assert sample(program, dram, late) != sample(program, dram, timing)
    assert of_rtl.hits == of_sim.hits
    groups = {group for group, _ in of_sim.hits}
    assert groups == set(GROUPS)


@pytest.mark.slow
def test_nothing_unreachable_is_reached() -> None:
    assert not collected(SMALL, range(15)).surprises()


def test_a_wrong_rule_is_seen() -> None:
    coverage = Coverage(SMALL)
    coverage.hits["stalls", "gemm stalled"] = 1
    assert coverage.surprises() == [("stalls", "gemm stalled")]


# ---- merging, files ----


@pytest.mark.slow
def test_merging_is_sampling_both() -> None:
    one, other = collected(SMALL, range(3)), collected(SMALL, range(3, 6))
    both = collected(SMALL, range(6))
    assert both.holes() != one.holes()
    one.merge(other)
    assert one.hits == both.hits and one.holes() == both.holes()
    reached = len(both.reachable()) - len(both.holes())
    assert both.fraction() == pytest.approx(reached / len(both.reachable()))
    with pytest.raises(VdlaError, match="coverage: expected one of configuration"):
        one.merge(Coverage(HwParams()))


def test_files(tmp_path: Path) -> None:
    path, other = tmp_path / "c.json", Coverage(HwParams())
    coverage = collected(SMALL, range(2))
    coverage.ran("verify", "sim", 0, 2)
    coverage.save(path)
    other.save(path)
    read = Coverage.of_file(path, SMALL)
    assert read.hits == coverage.hits and read.runs == coverage.runs
    run(random_program(SMALL, 9), read)
    read.save(path)
    assert [c.params for c in load(path)] == [HwParams(), SMALL]
    assert Coverage.of_file(path, SMALL).hits == read.hits != coverage.hits
    (one,) = [c for c in merged([*load(path), *load(path)]) if c.params == SMALL]
    assert one.hits["kinds", "load"] == 2 * read.hits["kinds", "load"]
    assert not Coverage.of_file(tmp_path / "none.json", SMALL).hits


@pytest.mark.parametrize("text, message", [
    ("no JSON", "expected a file of vdla cosim or verify --coverage"),
    ("[]", "expected a file of vdla cosim or verify --coverage"),
    ('{"format": "vdla coverage 0"}', "expected 'vdla coverage 1', got 'vdla coverage 0'"),
])  # fmt: skip
def test_what_is_no_file_of_ours(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.json").write_text(text)
    assert run_app(["coverage", str(tmp_path / "c.json")]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_bins_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    Coverage(SMALL).save(path)
    text = path.read_text().replace('"gemm sum wraps"', '"gemm sum is odd"')
    path.write_text(text)
    with pytest.raises(VdlaError, match="expected bins of this version, got numbers: 'gemm sum is"):
        load(path)


def test_the_command_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, html = tmp_path / "c.json", tmp_path / "c.html"
    coverage = collected(SMALL, range(2))
    coverage.ran("verify", "sim", 0, 2)
    coverage.save(path)
    assert run_app(["coverage", str(path), "--html", str(html)]) == 0
    assert "functional coverage of" in capsys.readouterr().out
    text = html.read_text()
    assert text == coverage_page([coverage])
    hole = coverage.holes()[0][1]
    assert f"<td>{hole}</td>" in text
    assert "sums are forwarded: an iteration never waits" in text
    assert run_app(["coverage", str(path), str(path), "--json", str(tmp_path / "r.json")]) == 0
    (report,) = json.loads((tmp_path / "r.json").read_text())["configurations"]
    assert report["reached"] == len(coverage.reachable()) - len(coverage.holes())
    assert report["groups"]["tokens"]["reachable"] == 80 and len(report["runs"]) == 2


# ---- towards holes ----


@pytest.mark.slow
@pytest.mark.parametrize("bin_", [
    ("fields", "load y_size most"), ("fields", "vector n1 most"), ("fields", "gemm uop_count most"),
    ("entries", "gemm reads uop last"), ("hazards", "raw dram: store, load"),
    ("dram", "store rows overlap"), ("padding", "uop left"), ("numbers", "vector sub wraps"),
    ("numbers", "vector tflite: least times least"), ("tokens", "gemm pop load+vector+store"),
    ("overlap", "the most of load"),
    ("distances", "gemm adds after 8"), ("distances", "vector reads tmp after 16"),
])  # fmt: skip
def test_a_steered_program_hits_what_is_wanted(bin_: tuple[str, str]) -> None:
    """Within four programs, of which random ones have none; and it is legal and free of races."""
    coverage = Coverage(SMALL)
    for seed in range(4):
        program = steered_program(SMALL, seed, [bin_])
        assert program == steered_program(SMALL, seed, [bin_])
        assert not [f for f in check(program) if f.kind not in ("uninitialised", "tokens")]
        run(program, coverage)
        if coverage.hits[bin_]:
            return
    raise AssertionError(f"{bin_} was not hit")


@pytest.mark.slow
def test_sums_beyond_32_bits() -> None:
    coverage, wanted = Coverage(SMALL), [("numbers", "gemm sum wraps")]
    run(steered_program(SMALL, 0, wanted, 12), coverage)
    assert coverage.hits["numbers", "gemm sum wraps"]


@pytest.mark.more
@pytest.mark.slow
def test_verify_fills_holes(tmp_path: Path) -> None:
    """On the RTL: random programs as ever, then others, which close most holes."""
    file, report_file = tmp_path / "c.json", tmp_path / "r.json"
    toml = tmp_path / "small.toml"
    toml.write_text("".join(f"{knob} = {value}\n" for knob, value in asdict(SMALL).items()))
    words = ["verify", "--programs", "4", "--hw", str(toml), "--coverage", str(file)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vdla.sim.verify.campaign.STEERED_PROGRAMS", 8)
        assert run_app([*words, "--json", str(report_file)]) == 0
    report = json.loads(report_file.read_text())
    assert report["programs"] == 4 and report["steered_programs"] == 8
    programs = [random_program(SMALL, seed) for seed in range(4)]
    cycles = sum(simulate(p, p.dram_image(), VTA, values=False).cycles for p in programs)
    assert report["cycles"] == cycles
    before = len(collected(SMALL, range(4)).holes())
    assert len(Coverage.of_file(file, SMALL).holes()) < before / 2
    assert report["coverage"]["reached"] / report["coverage"]["reachable"] > 0.8


def test_a_divergence_names_its_program() -> None:
    named = {"program": 7, "wanted": [["kinds", "store"]]}
    assert named_program(SMALL, named) == steered_program(SMALL, 7, [("kinds", "store")])
    assert named_program(SMALL, {"program": 7, "wanted": []}) == random_program(SMALL, 7)
    assert np.any(named_program(SMALL, named).dram_image())
    assert isinstance(named_program(SMALL, named).insns[-1], Gemm | Load | Store | Vector | Param)
