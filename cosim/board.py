"""The core on a whole board: ``Design.board``, the ULX3S with its SDRAM, and a host at its serial
line, with the frames of ``isa/hostlink.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, Lock, RisingEdge, with_timeout

from ..hw.boards.sdram import Command as ChipCommand
from ..hw.boards.simulated import BIT_CYCLES
from ..isa import hostlink
from ..isa.errors import VdlaError
from ..isa.hostlink import WORD_BYTES, Command
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.regmap import OFFSETS, REGISTERS
from ..isa.sdram import CLOCKS, PARTS, ULX3S
from .axi import AxiMonitor
from .bench import PERIOD_NS, reader
from .core import CoreBench
from .dram import DramModel
from .sdram import Pins, SdramChip

_RESET_CYCLES = 8
_PART = PARTS[ULX3S]


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
        self.chip = SdramChip(_PART)

    def _clock(self) -> Any:
        return self.dut.clk25

    def _inside(self) -> Any:
        return getattr(getattr(self.dut, "system", None), "core", None)

    def _axi(self, inside: Any) -> AxiMonitor | None:
        if not hasattr(inside, "axi__arvalid"):
            return None
        return AxiMonitor(inside, self.params, "axi__", self.clk)

    async def _restart(self) -> None:
        """Also wait until the chip has been set up: the memory answers then."""
        dut = self.dut
        dut.button.value, dut.rx.value = 0, 1
        for n in range(CLOCKS):
            self._pin("data_i", n).value = 0
        cocotb.start_soon(Clock(self.clk, PERIOD_NS, "ns").start())
        await ClockCycles(self.clk, _RESET_CYCLES)
        dut.button.value = 1
        cocotb.start_soon(self._pins())
        await ClockCycles(self.clk, _RESET_CYCLES)  # the reset is released with the clock
        await self.link.request(Command.READ_MEMORY, 0, 1)

    def _pin(self, name: str, clock: int) -> Any:
        """What the pins show or bring in a clock of a cycle."""
        return getattr(self.dut, f"pins_{name}_{clock}")

    async def _pins(self) -> None:
        """The chip at its pins: it sees what the controller shows in a cycle, and from then on is
        known what the controller finds in the next one."""
        chip, edge = self.chip, RisingEdge(self.clk)
        driven = reader(self.dut.pins_data_oe)
        shown = [
            tuple(
                reader(self._pin(name, n))
                for name in ("command", "bank", "address", "mask", "data_o")
            )
            for n in range(CLOCKS)
        ]
        commands, found = (
            [each[0] for each in shown],
            [self._pin("data_i", n) for n in range(CLOCKS)],
        )
        while True:
            await edge
            if (
                not (chip.moves or driven())
                and sum(command() == ChipCommand.NOP for command in commands) == CLOCKS
            ):
                chip.skip(CLOCKS)
                continue
            drives = driven()
            for each in shown:
                chip.clock(Pins(*(read() for read in each), driven=drives))
            for n in range(CLOCKS):
                found[n].value = chip.late(n)

    # ---- memory ----

    def attach_ram(self, dram: np.ndarray, pauses: str = "off", seed: int = 0) -> SdramChip:
        """The board's chip, with these contents (uint8)."""
        if pauses != "off":
            raise VdlaError(f"pauses: expected off on the board, whose chip has none, got {pauses}")
        assert dram.size <= _PART.size_bytes, "board: more bytes than the chip has"
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


#: How long the line may be silent while an answer is expected, and all of a request is sent.
_PATIENCE_CYCLES = 100_000


class HostLinkDriver:
    """Sends requests and takes answers.

    Parameters
    ----------
    clk : the clock
    to, back : the lines to and from the board
    bit_cycles : int
        Clock cycles of a bit.
    """

    def __init__(self, clk: Any, to: Any, back: Any, bit_cycles: int) -> None:
        self._clk, self._to, self._back, self._bit = clk, to, back, bit_cycles
        self._sequence = 0
        self._lock = Lock()

    async def request(
        self, command: hostlink.Command, address: int, words: int = 0, payload: bytes = b""
    ) -> bytes:
        """One request and the words of its answer; ``words`` are asked for, or those of ``payload``
        are written.

        Raises AssertionError for another answer than OK, a damaged one, or none.
        """
        async with self._lock:
            self._sequence = (self._sequence + 1) % 256
            count = words or len(payload) // hostlink.WORD_BYTES
            header = hostlink.REQUEST_HEADER.pack(command, self._sequence, address, count)
            answer = cocotb.start_soon(self._receive())
            await self._send(hostlink.frame(hostlink.SYNC_REQUEST, header + payload))
            code, sequence, data = await answer
        assert code == hostlink.Answer.OK, (
            f"host link: {command.name} answered with {hostlink.Answer(code).name}"
        )
        assert sequence == self._sequence, "host link: answer to another request"
        return data

    async def _send(self, data: bytes) -> None:
        for byte in data:
            bits = (1 << 9 | byte << 1) & 0x3FF  # start, 8 data, stop
            for place in range(10):
                self._to.value = bits >> place & 1
                await ClockCycles(self._clk, self._bit)

    async def _receive(self) -> tuple[int, int, bytes]:
        """Code, sequence number and words of an answer."""
        sync = await self._byte()
        assert sync == hostlink.SYNC_ANSWER, f"host link: expected an answer, got a byte {sync:#x}"
        header = await self._bytes(hostlink.ANSWER_HEADER.size)
        code, sequence, words = hostlink.ANSWER_HEADER.unpack(header)
        data = await self._bytes(words * hostlink.WORD_BYTES)
        crc = int.from_bytes(await self._bytes(hostlink.CRC_BYTES), "little")
        assert crc == zlib.crc32(header + data), "host link: an answer with a wrong checksum"
        return code, sequence, data

    async def _bytes(self, count: int) -> bytes:
        return bytes([await self._byte() for _ in range(count)])

    async def _byte(self) -> int:
        """The next byte from the board."""
        await with_timeout(FallingEdge(self._back), _PATIENCE_CYCLES * PERIOD_NS, "ns")
        # To the middle of the first bit; values are those of the cycle that ends.
        await ClockCycles(self._clk, self._bit + self._bit // 2)
        byte = 0
        for place in range(8):
            byte |= int(self._back.value) << place
            await ClockCycles(self._clk, self._bit)
        return byte
