"""Where a core can be under a bench, and the bench of each place."""

from __future__ import annotations

from typing import Any

from ..isa.params import HwParams
from .board import BoardBench
from .core import CoreBench
from .ip import IpBench


def find_bench(dut: Any, params: HwParams) -> CoreBench:
    """The bench of a design, known by its ports: the core itself or its netlist
    (:class:`CoreBench`), the core with AXI ports (:class:`IpBench`), or the board
    (:class:`BoardBench`). All have the same interface, so that a bench runs in every place.
    """
    for port, bench in (("s_axi_awaddr", IpBench), ("sdram_cas_n", BoardBench)):
        if hasattr(dut, port):
            return bench(dut, params)
    return CoreBench(dut, params)
