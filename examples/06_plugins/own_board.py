"""A plugin with a board: a ULX3S that stores in block RAM, at half the usual clock.

    vdla fpga build --board slow-ulx3s --plugin examples/06_plugins/own_board.py

A board says which device it has, which configuration and clock it is built for, what the top level
is, and which pins its ports are at.
"""

from __future__ import annotations

from dataclasses import replace

from vdla.hw.boards import find_board, register_board

register_board(
    replace(find_board("ulx3s-bram"), name="slow-ulx3s", doc="as ulx3s-bram", freq_mhz=12.5)
)
