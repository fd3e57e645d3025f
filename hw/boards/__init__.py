"""Boards: one file each, one line here."""

from __future__ import annotations

from importlib import import_module

from ...isa.errors import VdlaError
from ..fpga.board import Board

#: Name and module.
BOARDS = {"ulx3s-85f": "ulx3s_85f", "ulx3s-bram": "ulx3s_bram", "pynq-z1": "pynq_z1"}


def find_board(name: str) -> Board:
    """A board by name. Raises VdlaError for an unknown one."""
    if name not in BOARDS:
        raise VdlaError(f"board: expected one of {', '.join(BOARDS)}, got {name!r}")
    return import_module(f"{__name__}.{BOARDS[name]}").BOARD
