"""The whole core in a cocotb bench: its registers as a host sees them, its memory, its AXI port
under watch. The same interface holds wherever the core is: :func:`vdla.cosim.find_bench`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiBus, AxiRam

from ..isa.memory import MemoryParams
from ..isa.opcodes import Unit
from ..isa.params import MEMORIES, HwParams
from ..isa.program import Program
from ..isa.regmap import CAUSES, CONTROL_START, OFFSETS
from ..isa.status import Status
from .axi import AxiMonitor, pause_channels
from .bench import reset
from .dram import DramModel
from .runner import STORAGE, STROBES

_REGISTER_PORTS = ("regs_addr", "regs_wdata", "regs_write")
#: How long a started program may take to begin: a host link takes a while.
_BEGIN_CYCLES = 20_000
#: Between two looks at the status, where it is not seen from inside whether the core runs.
_POLL_CYCLES = 200


class CoreBench:
    """A core (ports of ``core_verilog``: ``clk``, ``rst``, ``axi_*``, ``regs_*``, ``running``, ...)
    with its AXI rules asserted.

    Parameters
    ----------
    dut : the core
    params : HwParams
        Its configuration.

    Attributes
    ----------
    clk : the clock
    axi : AxiMonitor or None
        The core's memory port, where it is visible.
    running, started, ended : signals that say what the core does, or None where they are not
        visible
    scratchpads : dict of str to memory
        The words of each scratchpad; empty where they are not visible.

    Examples
    --------
    ::

        bench = CoreBench(dut, program.params)
        await bench.reset()
        bench.attach_ram(program.dram_image(), pauses="heavy", seed=1)
        assert await bench.run(program) == Status.DONE
        dram = bench.contents()
    """

    #: Prefix of the memory port.
    MEMORY_PORT = "axi"

    def __init__(self, dut: Any, params: HwParams) -> None:
        self.dut, self.params = dut, params
        self.clk = self._clock()
        inside = self._inside()
        self.axi = self._axi(inside)
        self.running, self.started, self.ended = (getattr(inside, n, None) for n in STROBES)
        words: dict[str, Any] = {
            name: getattr(getattr(inside, name, None), STORAGE, None) for name in MEMORIES
        }
        self.scratchpads = words if all(each is not None for each in words.values()) else {}
        self._memory: AxiRam | DramModel | None = None
        self._size_bytes = 0
        #: Whether the core runs, as its status says.
        self._polled = False

    # ---- what differs from place to place ----

    def _clock(self) -> Any:
        return self.dut.clk

    def _inside(self) -> Any:
        """The core within the design, or None where it is not visible."""
        return self.dut

    def _axi(self, inside: Any) -> AxiMonitor | None:
        return AxiMonitor(self.dut, self.params, f"{self.MEMORY_PORT}_", self.clk)

    def _reset(self) -> dict[str, Any]:
        """Reset and its active level, as cocotbext-axi's interfaces take them."""
        return {"reset": self.dut.rst}

    async def reset(self, watch: bool = True) -> None:
        """Start the clock, reset the core, and watch its AXI port from then on; without ``watch``
        the bench calls ``axi.sample`` itself.
        """
        await self._restart()
        if watch and self.axi is not None:
            self.axi.start()

    async def _restart(self) -> None:
        await reset(self.dut, *_REGISTER_PORTS)

    # ---- memory ----

    def attach_ram(self, dram: np.ndarray, pauses: str = "off", seed: int = 0) -> Any:
        """A memory that is not ours behind the core, with these contents (uint8): cocotbext-axi's.

        ``pauses`` is off, light or heavy: how often each channel pauses, at random from ``seed``.
        """
        bus = AxiBus.from_prefix(self.dut, self.MEMORY_PORT)
        self._memory = ram = AxiRam(bus, self.clk, size=dram.size, **self._reset())
        self._size_bytes = dram.size
        ram.write(0, dram.tobytes())
        pause_channels((ram.read_if, ram.write_if), pauses, seed)
        return ram

    def attach_model(self, dram: np.ndarray, memory: MemoryParams) -> DramModel:
        """Our model of a memory behind the core, with these contents (uint8, changed in place). The
        bench calls its ``step`` in every cycle.
        """
        prefix = f"{self.MEMORY_PORT}_"
        self._memory = model = DramModel(self.dut, dram, self.params, memory, prefix)
        return model

    def contents(self) -> np.ndarray:
        """The memory that was attached, now (uint8)."""
        if isinstance(self._memory, DramModel):
            return self._memory.dram
        assert self._memory is not None, "contents: no memory has been attached"
        data: Any = self._memory.read(0, self._size_bytes)
        return np.frombuffer(data, np.uint8)

    # ---- registers ----

    async def write(self, name: str, value: int) -> None:
        """Write a register."""
        dut = self.dut
        dut.regs_addr.value, dut.regs_wdata.value, dut.regs_write.value = OFFSETS[name], value, 1
        await RisingEdge(dut.clk)
        dut.regs_write.value = 0

    async def read(self, name: str) -> int:
        """Read a register."""
        self.dut.regs_addr.value = OFFSETS[name]
        await FallingEdge(self.dut.clk)
        return int(self.dut.regs_rdata.value)

    async def read_all(self, names: Iterable[str]) -> dict[str, int]:
        """Read registers."""
        return {name: await self.read(name) for name in names}

    # ---- programs ----

    async def start(self, program: Program) -> None:
        """Start a program that is in memory; returns before its first cycle has passed."""
        await self.write("program_hash", int(program.params.hash, 16))
        await self.write("program_addr", program.program_addr)
        await self.write("insn_count", len(program.insns))
        # The answer of an interface between comes when the core runs already.
        cocotb.start_soon(self.write("control", CONTROL_START))
        if self.running is None:
            self._polled = True
            cocotb.start_soon(self._poll())

    async def _poll(self) -> None:
        """Ask for the status until the core has stopped."""
        while self._polled:
            await ClockCycles(self.clk, _POLL_CYCLES)
            self._polled = await self.read("status") in (Status.IDLE, Status.RUNNING)

    def runs(self) -> bool:
        """Whether the core runs a program; where ``running`` is not visible, as its status said
        last.
        """
        return self._polled if self.running is None else bool(self.running.value)

    async def begun(self) -> bool:
        """Wait for the first cycle of a program that has been started; False where the core does
        not run it.
        """
        for _ in range(_BEGIN_CYCLES):
            if self.runs():
                return True
            await RisingEdge(self.clk)
        return False

    async def run(self, program: Program, limit: int = 120_000) -> Status:
        """Start a program and wait for its end.

        Raises AssertionError after ``limit`` cycles.
        """
        await self.start(program)
        if await self.begun():
            for _ in range(limit):
                await RisingEdge(self.clk)
                if not self.runs():
                    break
            else:
                raise AssertionError(f"the program has not ended after {limit} cycles")
        return Status(await self.read("status"))

    async def check_counters(self, program: Program) -> int:
        """Assert that every instruction has ended, and that the counters of each unit add up to all
        cycles; after the end of a program. Returns the cycles.
        """
        cycles = await self.read("cycles")
        for unit in Unit:
            name = unit.name.lower()
            counts = await self.read_all(f"{name}_{cause}" for cause in CAUSES)
            assert sum(counts.values()) == cycles, f"{name}: its counters must add up to all cycles"
            ended = sum(insn.unit is unit for insn in program.insns)
            assert await self.read(f"{name}_ended") == ended
        return cycles


def check_dram(got: np.ndarray, expected: np.ndarray) -> None:
    """Raise AssertionError with the first address at which two memories (uint8) differ."""
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, (
        f"{wrong.size} bytes of DRAM differ, the first at {wrong[0]:#x}: expected "
        f"{expected[wrong[0]]:#04x}, got {got[wrong[0]]:#04x}"
    )
