"""A host at a board's serial line: frames of ``isa/hostlink.py``, for cocotb."""

from __future__ import annotations

import zlib
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, Lock, with_timeout

from ..isa import hostlink
from .bench import PERIOD_NS

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
