"""A board in Verilator behind a pseudo-terminal."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pty
import shutil
import tempfile
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from vdla.hw.boards.block_ram import BlockRam
from vdla.hw.boards.system import System
from vdla.hw.core.technology import Technology
from vdla.hw.core.verilog import to_verilog
from vdla.hw.fpga.devices import ECP5_85F
from vdla.hw.fpga.multiplier import fpga_multiplier
from vdla.isa.params import HwParams
from vdla.sim.rtl import toolchain

HARNESS = Path(__file__).with_name("pty_board.cpp")
#: Clock cycles of a bit: the fewest that the receiver takes.
DIVISOR = 4
NEVER = -1
MULTIPLIERS = ECP5_85F.capacity["dsp"]


class Errors(ctypes.Structure):
    """Bytes to and from the board that the line changes or drops, by number."""

    _fields_ = (
        ("corrupt_to", ctypes.c_int64), ("drop_to", ctypes.c_int64),
        ("corrupt_from", ctypes.c_int64), ("drop_from", ctypes.c_int64),
    )  # fmt: skip


@cache
def _library(params: HwParams, size_bytes: int) -> ctypes.CDLL:
    toolchain.setup_yosys()
    # As on the board, but without its cells, which Verilator does not know.
    technology = Technology(fpga_multiplier(params, MULTIPLIERS), enables=False, copies=True)
    system = System(params, BlockRam(params, size_bytes), DIVISOR, technology)
    text = to_verilog(system, "board")
    parts = [text, HARNESS.read_text(), repr(toolchain.versions())]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = toolchain.cache_dir() / f"board_{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="build_", dir=target.parent))
        try:
            (work / "board.v").write_text(text)
            toolchain.verilate(work / "board.v", "board", work / "cpp")
            sources = [HARNESS, *sorted((work / "cpp").glob("*.cpp"))]
            toolchain.compile_shared(sources, [work / "cpp"], work / "board.so")
            os.replace(work / "board.so", target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    library = ctypes.CDLL(str(target))
    library.board_serve.restype = ctypes.c_uint64
    return library


@dataclass
class Plug:
    """The host's end of the line."""

    port: str
    cycles: int = 0
    _unplug: list = field(default_factory=list)

    def unplug(self) -> None:
        """The line is gone, as when a cable is pulled."""
        self._unplug.pop()()


@contextmanager
def simulated_board(
    params: HwParams, size_bytes: int, errors: Errors | None = None
) -> Iterator[Plug]:
    """A board with block RAM, running until the context ends."""
    library = _library(params, size_bytes)
    board_end, host_end = pty.openpty()
    tty.setraw(host_end)
    stop = ctypes.c_int(0)
    errors = errors or Errors(NEVER, NEVER, NEVER, NEVER)
    plug = Plug(os.ttyname(host_end))

    def serve() -> None:
        plug.cycles = library.board_serve(
            board_end, DIVISOR, ctypes.byref(errors), ctypes.byref(stop)
        )

    thread = threading.Thread(target=serve)
    thread.start()

    def halt() -> None:
        stop.value = 1
        thread.join()
        os.close(board_end)

    plug._unplug.append(halt)
    try:
        yield plug
    finally:
        if plug._unplug:
            plug.unplug()
        os.close(host_end)
