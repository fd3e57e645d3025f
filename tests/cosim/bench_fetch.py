"""Instruction fetch: random words from a memory at random speed to four queues that stall."""

from __future__ import annotations

import random

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from vdla.cosim import ReadMemory, StreamSink, reset, until
from vdla.isa.opcodes import Unit, opcodes
from vdla.isa.status import Status

from .configs import NARROW

WORD_BITS = 8 * NARROW.insn_bytes
LEGAL_OPCODES = opcodes(NARROW)
ILLEGAL_OPCODES = sorted(set(range(8)) - set(LEGAL_OPCODES))


def random_words(rng: random.Random, count: int) -> list[int]:
    """Instructions with a legal opcode and anything above it."""
    return [rng.getrandbits(WORD_BITS) & ~7 | rng.choice(LEGAL_OPCODES) for _ in range(count)]


class Bench:
    """The device with its memory and its queues."""

    def __init__(self, dut, rng: random.Random) -> None:
        self.dut, self.rng = dut, rng
        self.dram = np.zeros(1 << 16, np.uint8)

    async def begin(self) -> None:
        """Reset, and everything around the device set going."""
        queues = [f"o__{unit}" for unit in Unit]
        inputs = ("start", "addr", "count", "enable", "request__ready", "beat_valid", "beat")
        await reset(self.dut, *inputs, *(f"{queue}__ready" for queue in queues))
        self.queues = [StreamSink(self.dut, queue, self.rng) for queue in queues]
        self.request = StreamSink(self.dut, "request", self.rng)
        cocotb.start_soon(self.request.accept())
        for queue in self.queues:  # slow at times, so that the prefetch buffer fills
            cocotb.start_soon(queue.accept((0.02, 0.5, 1.0)))
        cocotb.start_soon(self._answer())

    async def _answer(self) -> None:
        """Beats, which fetch must always accept."""
        async for word in ReadMemory(self.request, self.dram, NARROW).beats():
            while self.rng.random() < 0.1:
                await RisingEdge(self.dut.clk)
            self.dut.beat_valid.value, self.dut.beat.value = 1, word
            await RisingEdge(self.dut.clk)
            self.dut.beat_valid.value = 0

    async def start(self, address: int, words: list[int]) -> None:
        """Place a program and start it."""
        raw = b"".join(word.to_bytes(NARROW.insn_bytes, "little") for word in words)
        self.dram[address : address + len(raw)] = np.frombuffer(raw, np.uint8)
        self.dut.addr.value, self.dut.count.value = address, len(words)
        self.dut.start.value = self.dut.enable.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.start.value = 0

    def dispatched(self) -> list[tuple[int, int]]:
        """(cycle, payload) of all queues, in the order of time."""
        return sorted(t for queue in self.queues for t in queue.monitor.transfers)


@cocotb.test()
async def dispatches_in_order(dut) -> None:
    rng = random.Random(5)
    bench = Bench(dut, rng)
    await bench.begin()
    for address, count in ((0x1000, 150), (0x8000, 1), (0x3000, 63)):
        before = len(bench.dispatched())
        words = random_words(rng, count)
        await bench.start(address, words)
        await RisingEdge(dut.clk)
        await until(dut, lambda: dut.done.value, 20_000, "the end of the program")
        await RisingEdge(dut.clk)
        new = bench.dispatched()[before:]
        assert [payload for _, payload in new] == [
            word | index << WORD_BITS for index, word in enumerate(words)
        ]
        assert len({cycle for cycle, _ in new}) == len(new), "two instructions in one cycle"
        assert not int(dut.error.value)
    for unit in Unit:
        opcodes = {payload & 7 for payload in bench.queues[unit].monitor.payloads}
        assert opcodes == {opcode for opcode in LEGAL_OPCODES if opcode.unit is unit}


@cocotb.test()
async def stops_at_an_undecodable_opcode(dut) -> None:
    rng = random.Random(6)
    bench = Bench(dut, rng)
    await bench.begin()
    words = random_words(rng, 12)
    words[7] = words[7] & ~7 | rng.choice(ILLEGAL_OPCODES)
    await bench.start(0x2000, words)
    await until(dut, lambda: int(dut.error.value), 5_000, "the error")
    assert int(dut.error.value) == Status.ILLEGAL
    assert int(dut.index.value) == 7
    for _ in range(50):
        await RisingEdge(dut.clk)
    assert len(bench.dispatched()) == 7, "dispatched beyond the undecodable instruction"
