"""Records the ports of a block in the simulator, at the tap that each block of a core has."""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from ..isa.program import Program
from .bench import reader
from .blocks import block_signature, find_ports
from .recording import Instruction, Recording, Run, Track

_RESET = ("input", 1)


class Recorder:
    """Samples every port of a block at every rising edge, from its making until the core stops.

    Parameters
    ----------
    dut : the core, built so that the block's tap is visible
    block : str
        Name of the block.
    program : Program
        What will run.
    """

    def __init__(self, dut: Any, block: str, program: Program) -> None:
        self._dut, self._block, self._program = dut, block, program
        tap = getattr(dut, block).tap
        self._ports = {"rst": _RESET} | find_ports(block_signature(block, program.params))
        self._read = {name: reader(getattr(tap, name)) for name in self._ports}
        self._changes: dict[str, list[tuple[int, int]]] = {name: [] for name in self._ports}
        self._now = dict.fromkeys(self._ports, -1)
        self._samples = 0
        self._zero: int | None = None
        self._task = cocotb.start_soon(self._run())

    async def _run(self) -> None:
        running, clock = reader(self._dut.running), RisingEdge(self._dut.clk)
        while True:
            await clock
            runs = running()
            if runs and self._zero is None:
                self._zero = self._samples
            if not runs and self._zero is not None:
                return
            self._sample()

    def _sample(self) -> None:
        now, at = self._now, self._samples
        for name, read in self._read.items():
            value = read()
            if value != now[name]:
                now[name] = value
                self._changes[name].append((at, value))
        self._samples += 1

    def recording(self) -> Recording:
        """What has been recorded so far."""
        self._task.cancel()
        tracks = {name: Track.of(*port, self._changes[name]) for name, port in self._ports.items()}
        assert self._zero is not None
        run = Run(0, self._samples, self._zero, Instruction.all_of(self._program))
        return Recording(self._program.params, self._block, tracks, [run])
