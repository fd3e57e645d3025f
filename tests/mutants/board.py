"""Bugs in what a board has around the core."""

from __future__ import annotations

from vdla.hw.boards.sdram import Mover, Opener
from vdla.hw.boards.system import MemoryShare

from .checks import tests
from .plant import Mutant

#: What every burst at any time may not lead to.
PROOF = tests("formal/test_sdram.py::test_keeps_the_rules_of_the_chip")
LEFT = tests("hw/boards/test_sdram.py::test_what_a_core_leaves_is_finished")

BOARD = (
    Mutant("a row is closed before its data move", "rtl sdram", Opener._held,
           "(pending != 0) | (hold != 0)", "hold != 0", PROOF),
    Mutant("a refresh waits for no open row", "rtl sdram", Opener.elaborate,
           "rested & ~held.any()", "rested", PROOF),
    Mutant("writes while a read has the pins", "rtl sdram", Mover.elaborate,
           "(gap == 0) & (~segment.writes | (turn == 0))", "(gap == 0)", PROOF),
    Mutant("the host gets data of the core's reads", "rtl share", MemoryShare.elaborate,
           "(reads == 0) & (writes == 0)", "(writes == 0)", LEFT),
)  # fmt: skip
