"""The system's design for a board."""

from __future__ import annotations

import re

import pytest
from vdla.hw.core.verilog import to_verilog
from vdla.hw.soc.ulx3s import check_board, soc_board
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams

pytest.importorskip("pythondata_cpu_vexriscv")


@pytest.mark.slow
def test_every_port_has_a_pin() -> None:
    board = soc_board(bytes(range(8)))
    text = to_verilog(board.design(HwParams.load("4x4"), 50.0), "top")
    (header,) = re.findall(r"^module top\((.*)\);", text, re.MULTILINE)
    located = re.findall(r'^LOCATE COMP "(\w+)', board.constraints, re.MULTILINE)
    assert set(header.split(", ")) == set(located)
    # The flash's clock has no port; the firmware is in the processor's memory.
    assert re.search(r"^  USRMCLK flash_clock \(", text, re.MULTILINE)
    assert "32'd50462976" in text and "32'd117835012" in text
    assert "module VexRiscv " in board.verilog and re.search(r"^  VexRiscv cpu", text, re.MULTILINE)


def test_wrong_boards_and_clocks() -> None:
    with pytest.raises(VdlaError, match=r"^board: expected ulx3s-85f, .*, got 'pynq-z1'$"):
        check_board("pynq-z1")
    with pytest.raises(VdlaError, match=r"^clock: expected 40 to 71"):
        soc_board(b"").design(HwParams.load("4x4"), 25.0)
