"""The bursts of a strided transfer, from the rules of docs/timing.md."""

from __future__ import annotations

from vdla.hw.core.dma import PAGE_BYTES
from vdla.isa.encoding import DRAM_ADDR_BITS


def bursts(
    addr: int, row_bytes: int, y_size: int, z_size: int, y_stride: int, z_stride: int,
    bus_bytes: int, longest: int,
) -> list[tuple[int, ...]]:  # fmt: skip
    """(address, beats, first of its row, offset of the row, last of all) of every burst."""
    found: list[tuple[int, ...]] = []
    for z in range(z_size):
        for y in range(y_size):
            row = (addr + y * y_stride + z * z_stride) % (1 << DRAM_ADDR_BITS)
            start, end = row // bus_bytes * bus_bytes, row + row_bytes
            while start < end:
                page = (start // PAGE_BYTES + 1) * PAGE_BYTES
                word_end = -(-end // bus_bytes) * bus_bytes
                stop = min(page, start + longest * bus_bytes, word_end)
                beats = (stop - start) // bus_bytes
                found.append((start, beats, start <= row, row % bus_bytes, 0))
                start = stop
    if found:
        found[-1] = (*found[-1][:4], 1)
    return found
