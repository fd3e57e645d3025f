"""Co-verification with cocotb: what benches of hardware blocks and of the whole core are made of.

- Streams: :class:`StreamSource`, :class:`StreamSink`, :class:`StreamMonitor`, :class:`Scoreboard`.
- Blocks: :class:`UnitDriver`, :class:`ReadMemory`, :func:`reset`, :func:`until`,
  :func:`parameter`.
- The core, wherever it is: :func:`find_bench`, :class:`CoreBench`, :class:`AxiMonitor`; a whole
  program, compared as it runs, with :class:`CoSimulation`, :class:`DramModel`,
  :class:`ProgramCheck` and :class:`Diverged`.
- What programs have exercised, here and on the SimPy model: :class:`Coverage`; what
  of the Amaranth source: :class:`LineCoverage`.
- One block: :func:`record`, :func:`replay`, :class:`Recording`, :class:`Replacement`.
- Outside of the simulator: :class:`Design`, :class:`Build` and :func:`run_bench`, or pytest's
  fixture ``vdla_rtl`` (``pytest_plugin.py``); :class:`Session` for programs, which is what
  ``vdla cosim`` calls.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..sim.coverage.coverage import Coverage
    from .axi import PAUSES, AxiMonitor, check_burst, pause_channels, pauses, unpack_burst
    from .bench import parameter, reset, until
    from .check import ProgramCheck
    from .core import CoreBench, check_dram
    from .cosimulation import CoSimulation
    from .divergence import Diverged, Divergence
    from .dram import Beat, DramModel
    from .job import Job, Settings
    from .lines import LineCoverage
    from .places import find_bench
    from .recording import Recording
    from .replace import Replacement
    from .runner import BenchFailure, Build, Design, build_simulator, run_bench
    from .scoreboard import Scoreboard
    from .sdram import SdramChip
    from .session import Session
    from .single import record, replay
    from .streams import StreamMonitor, StreamSink, StreamSource
    from .units import ReadMemory, UnitDriver
    from .words import insn_word, queued_word, stored_words

__all__ = [
    "PAUSES", "AxiMonitor", "Beat", "BenchFailure", "Build", "CoSimulation", "CoreBench",
    "Coverage", "Design", "Diverged", "Divergence", "DramModel", "Job", "LineCoverage",
    "ProgramCheck", "ReadMemory", "Recording", "Replacement", "Scoreboard", "SdramChip",
    "Session", "Settings", "StreamMonitor", "StreamSink", "StreamSource", "UnitDriver",
    "build_simulator", "check_burst", "check_dram", "find_bench", "insn_word", "parameter",
    "pause_channels", "pauses", "queued_word", "record", "replay", "reset", "run_bench",
    "stored_words", "unpack_burst", "until",
]  # fmt: skip

#: The public names of each module. They are imported on first use: cocotb, and Amaranth for what
#: knows the hardware's layouts, are needed by what needs them only.
_MODULES = {
    ".axi": ("PAUSES", "AxiMonitor", "check_burst", "pause_channels", "pauses", "unpack_burst"),
    ".bench": ("parameter", "reset", "until"),
    ".check": ("ProgramCheck",),
    ".cosimulation": ("CoSimulation",),
    ".divergence": ("Diverged", "Divergence"),
    "..sim.coverage.coverage": ("Coverage",),
    ".dram": ("Beat", "DramModel"),
    ".job": ("Job", "Settings"),
    ".session": ("Session",),
    ".core": ("CoreBench", "check_dram"),
    ".lines": ("LineCoverage",),
    ".places": ("find_bench",),
    ".sdram": ("SdramChip",),
    ".recording": ("Recording",),
    ".replace": ("Replacement",),
    ".single": ("record", "replay"),
    ".runner": ("BenchFailure", "Build", "Design", "build_simulator", "run_bench"),
    ".scoreboard": ("Scoreboard",),
    ".streams": ("StreamMonitor", "StreamSink", "StreamSource"),
    ".units": ("ReadMemory", "UnitDriver"),
    ".words": ("insn_word", "queued_word", "stored_words"),
}
_LATER = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name], __name__), name)
