"""Coverage of lines: Verilator's counts at the lines of the Amaranth source."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from vdla.cosim import Build, Design, LineCoverage, run_bench
from vdla.cosim.runner import COVERAGE_FILE
from vdla.isa.errors import VdlaError

pytestmark = pytest.mark.more


class Gate(wiring.Component):
    """Counts while it is open; nothing in the bench ever sets it back."""

    def __init__(self) -> None:
        super().__init__({"open": In(1), "back": In(1), "count": Out(4)})

    def elaborate(self, platform) -> Module:
        m = Module()
        with m.If(self.open):
            m.d.sync += self.count.eq(self.count + 1)
        with m.If(self.open & self.back):
            m.d.sync += self.count.eq(0)
        return m


BENCH = """
import cocotb
from cocotb.triggers import ClockCycles
from vdla.cosim import reset

@cocotb.test()
async def test(dut):
    await reset(dut, "open", "back")
    dut.open.value = 1
    await ClockCycles(dut.clk, 5)
    dut.open.value = 0
    await ClockCycles(dut.clk, 2)
"""


def line_of(text: str) -> int:
    """Where the gate says so."""
    lines, first = inspect.getsourcelines(Gate)
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.sweep
@pytest.mark.slow
def test_what_a_bench_has_not_executed(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    design = Design.component(Gate(), "vdla_gate", sources=True)
    run_bench(design, tmp_path / "bench.py", tmp_path, build=Build(True, coverage=True))
    coverage = LineCoverage()
    coverage.add(design.verilog, tmp_path / COVERAGE_FILE)
    here = "tests/cosim/test_lines.py"
    taken = coverage.of("branch", here)
    back = line_of("self.open & self.back")
    assert coverage.missing("branch") == [(here, back, "branch", "if")]
    assert coverage.missing("line") == [(here, back, "line", "if")]
    assert taken[here, back, "branch", "else"] > 0
    assert 0 < coverage.fraction("line") < 1
    never = {what for _, _, _, what in coverage.missing("toggle")}
    assert "back:0->1" in never and "count[3]:0->1" in never and "count[0]:0->1" not in never

    file = tmp_path / "lines.json"
    coverage.save(file)
    read = LineCoverage.load(file)
    assert read.points == coverage.points
    read.merge(coverage)
    assert read.points[here, back, "branch", "else"] == 2 * taken[here, back, "branch", "else"]
    assert read.missing("line") == coverage.missing("line")
    summary = read.summary("tests/cosim")
    assert summary["never"] == [f"{here}:{back}: if"]
    assert summary["branch"]["points"] == summary["branch"]["reached"] + 1


VERILOG = """\
module top(clk, a);
  (* src = "/elsewhere/mine.py:7" *)
  input a;
  wire \\$1 ;
  (* src = "/elsewhere/mine.py:9" *)
  reg b;
  (* src = "/venv/site-packages/amaranth/lib/memory.py:3" *)
  wire c;
  assign \\$1  = a & (* src = "/elsewhere/mine.py:20" *) c;
  always @* begin
    if (\\$auto$verilog_backend.cc:2505:dump_module$1 ) begin end
    b = 1'h0;
    if (\\$1 ) begin
      b = 1'h1;
    end
    casez (a)
      1'h1:
        b = 1'h0;
    endcase
    if (rst) begin
      b = 1'h0;
    end
  end
endmodule
"""
RECORDS = [
    (10, "line", "block", "10-12", 5), (11, "branch", "if", "11", 0), (13, "branch", "if", "14", 0),
    (13, "branch", "else", None, 4), (17, "line", "case", "18", 3), (20, "branch", "if", "21", 0),
    (3, "toggle", "a:0->1", None, 2), (8, "toggle", "c:0->1", None, 0),
]  # fmt: skip


def test_verilog_to_source(tmp_path: Path) -> None:
    """Branches belong to their condition, items to what selects, blocks to what they set; resets,
    libraries and what Yosys needs are left out.
    """
    text = ""
    for line, kind, what, body, count in RECORDS:
        fields = {"f": "top.v", "l": line, "t": kind, "o": what} | ({"S": body} if body else {})
        text += "C '" + "".join(f"\1{k}\2{v}" for k, v in fields.items()) + f"' {count}\n"
    (tmp_path / COVERAGE_FILE).write_text(text)
    coverage = LineCoverage()
    coverage.add(VERILOG, tmp_path / COVERAGE_FILE)
    mine = "/elsewhere/mine.py"
    assert dict(coverage.points) == {
        (mine, 9, "line", "block"): 5, (mine, 20, "branch", "if"): 0, (mine, 20, "line", "if"): 0,
        (mine, 20, "branch", "else"): 4, (mine, 7, "line", "case"): 3,
        (mine, 7, "toggle", "a:0->1"): 2,
    }  # fmt: skip
    assert coverage.fraction("line", mine) == pytest.approx(2 / 3)


def test_another_file(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"format": "vdla coverage 1", "configurations": []}')
    with pytest.raises(VdlaError, match="expected a file of vdla cosim --line-coverage"):
        LineCoverage.load(tmp_path / "c.json")
    assert not LineCoverage.load(tmp_path / "none.json").points
