"""Boards: one file each, one line here; :func:`register_board` adds one."""

from __future__ import annotations

from importlib import import_module

from ...isa.additions import add
from ...isa.errors import VdlaError
from ..fpga.devices import Board

#: By name, a board or the module that has it.
BOARDS: dict[str, str | Board] = {
    "ulx3s-85f": "ulx3s_85f",
    "ulx3s-bram": "ulx3s_bram",
    "pynq-z1": "pynq_z1",
}


def register_board(board: Board) -> None:
    """Add a board, which ``--board`` finds by its name.

    Raises
    ------
    VdlaError
        When there is a board of this name.
    """
    add("board", board.name, BOARDS, board)


def find_board(name: str) -> Board:
    """A board by name. Raises VdlaError for an unknown one."""
    if name not in BOARDS:
        raise VdlaError(f"board: expected one of {', '.join(BOARDS)}, got {name!r}")
    found = BOARDS[name]
    return found if isinstance(found, Board) else import_module(f"{__name__}.{found}").BOARD
