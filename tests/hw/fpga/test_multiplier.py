"""The multiplier back ends for FPGAs equal the simulation's, for all operands of a product."""

from __future__ import annotations

from functools import partial

import pytest
from amaranth.hdl import Module, Signal
from vdla.cosim import Build, Design
from vdla.cosim.pytest_plugin import RunBench
from vdla.hw.fpga import ecp5
from vdla.hw.fpga.multiplier import fpga_multiplier, multiply_narrow, multiply_packed
from vdla.hw.fpga.netlist import CELLS
from vdla.isa.params import HwParams

from .multipliers import CYCLES_LOG2, Compared

pytestmark = pytest.mark.more

#: Of two pairs of outputs the first has three products of each from multipliers and one from rows,
#: the second all from rows.
MIXED = 3
PLAIN = (multiply_narrow, multiply_packed, partial(multiply_packed, packed=MIXED))
ECP5 = (partial(multiply_packed, packed=MIXED, adder=ecp5.add),)


def wrong_once(m: Module, params: HwParams, x: list[Signal], w: Signal) -> list:
    """Packed, and wrong for the one pair that a spacing of ten bits would get wrong."""
    sums = multiply_packed(m, params, x, w)
    hit, late = Signal(), Signal()
    seen = (x[2][24:32] == 0x80) & (w[88:96] == 0xFF) & (w[120:128] == 0x80)
    m.d.sync += [hit.eq(seen), late.eq(hit)]
    return [*sums[:2], sums[2] ^ late, sums[3]]


@pytest.mark.parametrize("block, multipliers, packed", [
    (8, 156, None), (16, 240, 128), (16, 156, 44), (16, 100, 0),
])  # fmt: skip
def test_as_many_as_there_are(block: int, multipliers: int, packed: int | None) -> None:
    """Beside the seven of each lane of the vector unit."""
    params = HwParams(block_in=block, block_out=block)
    back_end = fpga_multiplier(params, multipliers, ecp5.add)
    if packed is None:
        assert back_end is multiply_narrow
    else:
        assert isinstance(back_end, partial)
        assert back_end.keywords == {"packed": packed, "adder": ecp5.add}


@pytest.mark.slow
@pytest.mark.parametrize("back_ends, differs", [
    pytest.param(PLAIN, 0, id="plain"),
    pytest.param((wrong_once,), 1, id="wrong once", marks=pytest.mark.sweep),
    # Models of cells take many minutes; that their chains add is proved in test_adder.py.
    pytest.param(ECP5, 0, id="ecp5", marks=pytest.mark.sweep),
])  # fmt: skip
def test_all_operands(back_ends: tuple, differs: int, vdla_rtl: RunBench) -> None:
    design = Design.component(Compared(back_ends), "compared")
    if "CCU2C" in design.verilog:
        design = Design("compared", design.verilog + CELLS)
    settings = {"cycles": 1 << CYCLES_LOG2, "differs": differs}
    assert vdla_rtl(design, "cocotb_multiplier.py", Build(fast=True), **settings) == 1
