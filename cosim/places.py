"""Where a core can be under a bench, and the bench of each place; here that of the core with AXI
ports, as ``vdla fpga export`` writes it: its registers at ``s_axi``, its memory at ``m_axi``.
"""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiRam, AxiResp

from ..isa.params import HwParams
from ..isa.regmap import OFFSETS, REGISTER_BITS
from .axi import pause_channels
from .bench import PERIOD_NS
from .board import BoardBench
from .core import CoreBench


def find_bench(dut: Any, params: HwParams) -> CoreBench:
    """The bench of a design, known by its ports: the core itself or its netlist
    (:class:`CoreBench`), the core with AXI ports (:class:`IpBench`), or the board
    (:class:`BoardBench`). All have the same interface, so that a bench runs in every place.
    """
    for port, bench in (("s_axi_awaddr", IpBench), ("clk25", BoardBench)):
        if hasattr(dut, port):
            return bench(dut, params)
    return CoreBench(dut, params)


_REGISTER_BYTES = REGISTER_BITS // 8


class IpBench(CoreBench):
    """A :class:`CoreBench` whose registers are reached by AXI4-Lite.

    Attributes
    ----------
    host : AxiLiteMaster
        cocotbext-axi's master at ``s_axi``.
    """

    MEMORY_PORT = "m_axi"

    def __init__(self, dut: Any, params: HwParams) -> None:
        super().__init__(dut, params)
        self.host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), self.clk, **self._reset())

    def _clock(self) -> Any:
        return self.dut.aclk

    def _inside(self) -> Any:
        return getattr(self.dut, "core", None)

    def _reset(self) -> dict[str, Any]:
        return {"reset": self.dut.aresetn, "reset_active_level": False}

    async def _restart(self) -> None:
        self.dut.aresetn.value = 0
        cocotb.start_soon(Clock(self.clk, PERIOD_NS, "ns").start())
        await ClockCycles(self.clk, 4)
        self.dut.aresetn.value = 1

    def attach_ram(self, dram: np.ndarray, pauses: str = "off", seed: int = 0) -> AxiRam:
        """As :meth:`CoreBench.attach_ram`; the host pauses, too."""
        pause_channels((self.host.read_if, self.host.write_if), pauses, seed + 1)
        return super().attach_ram(dram, pauses, seed)

    async def write(self, name: str, value: int) -> None:
        done: Any = await self.host.write(OFFSETS[name], value.to_bytes(_REGISTER_BYTES, "little"))
        assert done.resp == AxiResp.OKAY, f"register {name}: write answered with {done.resp!r}"

    async def read(self, name: str) -> int:
        done: Any = await self.host.read(OFFSETS[name], _REGISTER_BYTES)
        assert done.resp == AxiResp.OKAY, f"register {name}: read answered with {done.resp!r}"
        return int.from_bytes(done.data, "little")
