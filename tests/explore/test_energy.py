"""Counts of accesses against the entries that every instruction touches, and tables of energies."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.compiler.build import build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.explore.energy import NAMES, EnergyTable, disagreed_order, kendall
from vdla.explore.report import agreement
from vdla.hw.core.scratchpad import written_parts
from vdla.isa.encoding import VECTOR_LOOPS
from vdla.isa.errors import VdlaError
from vdla.isa.footprint import gemm_entries, vector_entries
from vdla.isa.insn import Gemm, Load, Param, Store, Vector
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import MEMORIES, PRESETS, HwParams
from vdla.report.bounds import dram_traffic, scratchpad_accesses
from vdla.sim.rtl.driver import RtlSimulator, Waves
from vdla.sim.verify.random_programs import random_program

from ..mutants.checks import MEMORY, PARAMS
from ..sim.verify.vcd import Vcd

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"
#: A row as a sweep measures it, of few accesses.
ROW = {
    "accesses": {
        name: {"read": 0, "written": 0}
        for name in ("inp", "wgt", "uop", "par", "acc", "tmp", "out")
    }
    | {"wgt": {"read": 10, "written": 2}, "acc": {"read": 3, "written": 1}},
    "dram": {"read_bytes": 30, "written_bytes": 12},
}


@pytest.mark.slow
def test_accesses_are_those_of_the_instructions() -> None:
    """Each step of each instruction, one by one."""
    params = PRESETS["8x8"]
    compiled = build(str(DIGITS), find_target("sim", Options(params, MEMORY_PRESETS["vta"], 2)))
    (program,) = compiled.programs
    read, written = dict.fromkeys(MEMORIES, 0), dict.fromkeys(MEMORIES, 0)
    zeros = {"acc": 0, "inp": 0, "wgt": 0}
    for insn in program.insns:
        match insn:
            case Load():
                written[insn.memory] += insn.entries
            case Store():
                read["out"] += insn.entries
            case Param():
                read["par"] += 3
            case Gemm():
                for name, entries in gemm_entries(insn, zeros).items():
                    read[name] += entries.size * insn.uop_count
                    written[name] += (entries.size * insn.uop_count) * (name == "acc")
                    steps = entries.size * insn.uop_count
                read["uop"] += steps
            case Vector():
                entries = vector_entries(insn)
                for name in ("src0", "src1"):
                    if getattr(insn, name) != "imm":
                        read[getattr(insn, name)] += entries[name].size
                group = 1
                for extent in insn.extents[VECTOR_LOOPS - insn.reduce :]:
                    group *= extent
                written[insn.dst] += entries["dst"].reshape(-1)[::group].size
    found = scratchpad_accesses(program.insns)
    assert {name: one["read"] for name, one in found.items()} == read
    assert {name: one["written"] for name, one in found.items()} == written
    assert any(isinstance(i, Vector) and i.reduce for i in program.insns)
    assert all(written[name] for name in ("inp", "wgt", "uop", "par", "acc", "out"))


@pytest.mark.more
@pytest.mark.slow
def test_counts_are_those_of_the_rtl(tmp_path: Path) -> None:
    """Each step, each write to a scratchpad and each byte of DRAM, counted at the RTL's ports."""
    rtl = RtlSimulator(PARAMS)
    program, waves = random_program(PARAMS, 3), tmp_path / "waves.vcd"
    result = rtl.run(program, program.dram_image(), MEMORY, waves=Waves(waves, 0, 1 << 20))
    # A write may be seen a few cycles after the instruction's end, but not after the core's.
    vcd, cycles = Vcd.read(waves), range(result.cycles)

    def ones(name: str) -> int:
        return sum(vcd.at(f"TOP.{name}", cycle).bit_count() for cycle in cycles)

    found = scratchpad_accesses(program.insns)
    for name in MEMORIES:
        # An entry is written part by part. Rows of tmp are parts of entries, too.
        parts = written_parts(name, PARAMS) * (PARAMS.vector_passes if name == "tmp" else 1)
        assert ones(f"vdla_core.{name}.write__en") == parts * found[name]["written"], name
    steps = ones("vdla_core.gemm.acc_write__en")
    assert steps == written_parts("acc", PARAMS) * found["wgt"]["read"] > 0
    moved, strobes, bursts, beats = dram_traffic(program), 0, 0, 0
    for cycle in cycles:
        names = ("wvalid", "wready", "wstrb", "rvalid", "rready", "rlast")
        at = {name: vcd.at(f"TOP.axi_{name}", cycle) for name in names}
        strobes += at["wstrb"].bit_count() * at["wvalid"] * at["wready"]
        beats += at["rvalid"] * at["rready"]
        bursts += at["rvalid"] * at["rready"] * at["rlast"]
    assert strobes == moved["written_bytes"] > 0
    # A burst may begin and end inside of a beat.
    more = beats * PARAMS.bus_bytes - moved["read_bytes"]
    assert 0 <= more < 2 * PARAMS.bus_bytes * bursts


def test_energy_by_hand() -> None:
    params = HwParams(block_in=8, block_out=8, wgt_depth=1024, acc_depth=512)
    found = EnergyTable.load("accelergy_40nm").picojoules(ROW, params)
    assert found["MACs"] == pytest.approx(0.56 * 10 * 64)
    assert found["DRAM"] == pytest.approx(42 * 100)
    assert found["wgt"] == pytest.approx(12 * 64 * (0.49 + 0.0251 * 64))
    # 16 KiB in 8 columns: 1.94 pJ and 0.1005 pJ a KiB, for a word of 4 bytes.
    assert found["acc"] == pytest.approx(4 * 8 * (1.94 + 0.1005 * 2))
    assert found["inp"] == 0


def test_the_published_points_of_a_fit() -> None:
    """0.156 pJ a bit in 8 KiB and 0.31 in 32 KiB."""
    memory = EnergyTable.load("horowitz_45nm").scratchpad
    for kib, pj_per_bit in ((8, 0.156), (32, 0.31)):
        params = HwParams(block_in=16, block_out=16, wgt_depth=4 * kib)
        found = memory.picojoules(1, "wgt", params)
        assert found == pytest.approx(8 * pj_per_bit, rel=1e-3)


def test_more_of_anything_takes_more() -> None:
    for name in NAMES:
        table, params = EnergyTable.load(name), PRESETS["8x8"]
        before = sum(table.picojoules(ROW, params).values())
        more = ROW | {"dram": {"read_bytes": 31, "written_bytes": 12}}
        assert sum(table.picojoules(more, params).values()) > before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mac_pj", "mac_joules", "expected name, technology,.*; see 'mac_joules'"),
        ("0.56", '"half"', "mac_pj: expected a float"),
        ("0.56", "-1.0", "mac_pj: expected a float of at least 0, got -1.0"),
        ("[accumulator]", "[others]", "accumulator: expected a table, got None"),
        ("mac_pj = 0.56", "mac_pj =", "expected TOML"),
    ],
)
def test_bad_tables_are_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    import vdla.explore.energy as module

    source = Path(module.__file__).parent / "energy_tables" / "accelergy_40nm.toml"
    path = tmp_path / "mine.toml"
    path.write_text(source.read_text())
    assert EnergyTable.load(str(path)) == EnergyTable.load("accelergy_40nm")
    path.write_text(source.read_text().replace(old, new))
    with pytest.raises(VdlaError, match=message):
        EnergyTable.load(str(path))


def test_orders_that_tables_agree_on() -> None:
    assert disagreed_order([[1, 2, 3], [10, 20, 30]]) == []
    assert kendall([[1, 2, 3], [10, 20, 30]]) == 1.0 and kendall([[1, 2], [2, 1]]) == -1.0
    # One pair of three is in another order for the third table.
    assert kendall([[1, 2, 3], [1, 2, 3], [1, 3, 2]]) == pytest.approx(1 / 3)
    assert kendall([[1, 1], [2, 1]]) == 0.0 and kendall([[1.0], [2.0]]) == 1.0
    assert disagreed_order([[1, 2, 3], [10, 30, 20]]) == [(1, 2)]
    assert disagreed_order([[1, 1], [2, 1]]) == [(0, 1)] and disagreed_order([[1.0], [2.0]]) == []
    told = "A and B agree on the order of 67 % of the pairs of designs on the front; not of 2 and 3"
    assert agreement(["A", "B"], 3, [[2, 3]]) == told
    assert agreement(["A"], 3, []) == "A put the designs on the front into the same order"
