"""Memory behind the read port of a single unit: bursts in order, as fast as the bench lets them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
from cocotb.triggers import RisingEdge

from ..isa.params import HwParams
from .axi import unpack_burst
from .streams import StreamSink


class ReadMemory:
    """Answers the bursts that a request stream transfers.

    Parameters
    ----------
    request : StreamSink
        The stream of bursts, each an address and a number of beats.
    dram : uint8 array
        The memory.
    params : HwParams
        The configuration, whose rules every burst must keep.
    """

    def __init__(self, request: StreamSink, dram: np.ndarray, params: HwParams) -> None:
        self.request, self.dram, self.params = request, dram, params

    async def beats(self) -> AsyncIterator[int]:
        """Beats in order, each as soon as its burst has been requested; without end."""
        answered, size = 0, self.params.bus_bytes
        while True:
            while answered == len(self.request.monitor.transfers):
                await RisingEdge(self.request.clk)
            payload = self.request.monitor.payloads[answered]
            address, beats = unpack_burst(payload, self.params)
            for start in range(address, address + beats * size, size):
                yield int.from_bytes(self.dram[start : start + size].tobytes(), "little")
            answered += 1
