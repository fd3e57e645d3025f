"""Memory behind the read and write ports of single units: bursts at random speed, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
from cocotb.triggers import RisingEdge
from vdla.hw.core.dma import PAGE_BYTES
from vdla.isa.encoding import DRAM_ADDR_BITS

from .streams import Port


def burst(payload: int, bus_bytes: int, longest: int) -> tuple[int, int]:
    """Byte address and beats of a burst, which keeps the rules of AXI4 and the configuration's."""
    address, beats = payload & ((1 << DRAM_ADDR_BITS) - 1), payload >> DRAM_ADDR_BITS
    assert address % bus_bytes == 0, f"burst at {address:#x} is not aligned"
    assert 1 <= beats <= longest, f"burst of {beats} beats"
    last = address + beats * bus_bytes - 1
    assert address // PAGE_BYTES == last // PAGE_BYTES, f"burst at {address:#x} crosses a page"
    return address, beats


class ReadMemory:
    """Answers the bursts that a request stream transfers."""

    def __init__(self, request: Port, dram: np.ndarray, bus_bytes: int, longest: int) -> None:
        self.request, self.dram = request, dram
        self.bus_bytes, self.longest = bus_bytes, longest

    async def beats(self) -> AsyncIterator[int]:
        """Beats in order, each as soon as its burst has been requested; without end."""
        answered = 0
        while True:
            while answered == len(self.request.monitor.transfers):
                await RisingEdge(self.request.clk)
            payload = self.request.monitor.payloads[answered]
            address, beats = burst(payload, self.bus_bytes, self.longest)
            for k in range(beats):
                start = address + k * self.bus_bytes
                yield int.from_bytes(self.dram[start : start + self.bus_bytes].tobytes(), "little")
            answered += 1
