"""The core on a whole board: ``Design.board``, the ULX3S with its SDRAM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from ..hw.boards.sdram import Command as ChipCommand
from ..hw.boards.sdram import cycles
from ..hw.boards.simulated import BIT_CYCLES, CHIP, FREQ_MHZ
from ..isa.errors import VdlaError
from ..isa.hostlink import WORD_BYTES, Command
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.regmap import OFFSETS, REGISTERS
from .axi import AxiMonitor
from .bench import PERIOD_NS
from .core import CoreBench
from .dram import DramModel
from .host_link import HostLinkDriver
from .sdram import SdramChip

_RESET_CYCLES = 8


class BoardBench(CoreBench):
    """A :class:`CoreBench` whose registers are reached by the board's serial line, and whose memory
    is the board's SDRAM. Programs and data get into the chip without the line, which would take
    most of the time.

    Attributes
    ----------
    link : HostLinkDriver
        The host's end of the line.
    chip : SdramChip
        Asserts the rules of the chip, and holds the memory.
    """

    def __init__(self, dut: Any, params: HwParams) -> None:
        super().__init__(dut, params)
        self.link = HostLinkDriver(self.clk, dut.rx, dut.tx, BIT_CYCLES)
        self.chip = SdramChip(CHIP, lambda ns: cycles(ns, FREQ_MHZ))

    def _clock(self) -> Any:
        return self.dut.clk25

    def _inside(self) -> Any:
        system = getattr(getattr(self.dut, "board", None), "system", None)
        return getattr(system, "core", None)

    def _axi(self, inside: Any) -> AxiMonitor | None:
        if not hasattr(inside, "axi__arvalid"):
            return None
        return AxiMonitor(inside, self.params, "axi__", self.clk)

    async def reset(self, watch: bool = True) -> None:
        dut = self.dut
        dut.button.value, dut.rx.value, dut.chip_drives.value = 0, 1, 0
        cocotb.start_soon(Clock(self.clk, PERIOD_NS, "ns").start())
        await ClockCycles(self.clk, _RESET_CYCLES)
        dut.button.value = 1
        cocotb.start_soon(self._pins())
        await ClockCycles(self.clk, _RESET_CYCLES)  # the reset is released with the clock
        if watch and self.axi is not None:
            self.axi.start()

    async def _pins(self) -> None:
        """The chip at its pins. Its clock is half a cycle late, so it sees what the controller
        drives in a cycle at its middle, and the controller takes its data at the end of the next.
        """
        dut, chip = self.dut, self.chip
        ras, cas, we = dut.sdram_ras_n, dut.sdram_cas_n, dut.sdram_we_n
        drives = False
        while True:
            await RisingEdge(self.clk)
            command = int(ras.value) << 2 | int(cas.value) << 1 | int(we.value)
            if command == ChipCommand.NOP:
                chip.now += 1
                if drives:
                    drives = dut.chip_drives.value = 0
                continue
            reads = command == ChipCommand.READ
            pins = 0 if reads else int(dut.pins.value)
            data = chip.cycle(
                command, int(dut.sdram_ba.value), int(dut.sdram_a.value),
                int(dut.sdram_dqm.value), pins, not reads,
            )  # fmt: skip
            if reads:
                dut.chip_data.value = data
            if drives != reads:
                drives = reads
                dut.chip_drives.value = reads

    # ---- memory ----

    def attach_ram(self, dram: np.ndarray, pauses: str = "off", seed: int = 0) -> SdramChip:
        """The board's chip, with these contents (uint8)."""
        if pauses != "off":
            raise VdlaError(f"pauses: expected off on the board, whose chip has none, got {pauses}")
        assert dram.size <= CHIP.size_bytes, "board: more bytes than the chip has"
        self._size_bytes = dram.size
        self.chip.words.view(np.uint8)[: dram.size] = dram
        return self.chip

    def attach_model(self, dram: np.ndarray, memory: MemoryParams) -> DramModel:
        """Not here: the board has a memory of its own."""
        raise VdlaError("board: expected attach_ram; the board has a memory of its own")

    def contents(self) -> np.ndarray:
        return self.chip.words.view(np.uint8)[: self._size_bytes].copy()

    # ---- registers ----

    async def write(self, name: str, value: int) -> None:
        payload = value.to_bytes(WORD_BYTES, "little")
        await self.link.request(Command.WRITE_REGISTERS, OFFSETS[name], payload=payload)

    async def read(self, name: str) -> int:
        data = await self.link.request(Command.READ_REGISTERS, OFFSETS[name], 1)
        return int.from_bytes(data, "little")

    async def read_all(self, names: Iterable[str]) -> dict[str, int]:
        """All registers come in one answer."""
        data = await self.link.request(Command.READ_REGISTERS, 0, len(REGISTERS))
        values = np.frombuffer(data, "<u8")
        found = {r.name: int(value) for r, value in zip(REGISTERS, values, strict=True)}
        return {name: found[name] for name in names}
