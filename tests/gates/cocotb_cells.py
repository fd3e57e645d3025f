"""Block RAMs and multipliers against what the documents say of them: FPGA-TN-02204 (memory usage)
and FPGA-TN-02205 (sysDSP usage), as Python over single bits.
"""

from __future__ import annotations

import json
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer
from vdla.cosim import parameter

CYCLES = 3000


class Port:
    """One port of a block RAM."""

    def __init__(self, width: int, mode: str, late: bool, bits: list[int]) -> None:
        self.width, self.mode, self.late, self.bits = width, mode, late, bits
        self.latch = self.output = 0

    def places(self, address: int) -> list[int]:
        """The bits of the memory that the data pins reach: widths below nine leave every ninth bit
        of the memory alone.
        """
        if self.width < 9:
            first = address // self.width * self.width
            return [bit // 8 * 9 + bit % 8 for bit in range(first, first + self.width)]
        entry = address // {9: 8, 18: 16, 36: 32}[self.width]
        return list(range(entry * self.width, (entry + 1) * self.width))

    def enabled(self, address: int, pin: int) -> bool:
        """Whether a write reaches a data pin: the lowest address bits enable bytes."""
        return self.width < 18 or bool(address >> pin // 9 & 1)

    def clock(self, enable: int, write: int, reset: int, go: int, address: int, data: int) -> None:
        """A rising edge."""
        places = self.places(address)
        old = [self.bits[place] for place in places]
        if enable and write:
            for pin, place in enumerate(places):
                if self.enabled(address, pin):
                    self.bits[place] = data >> pin & 1
        new = [self.bits[place] for place in places]
        if go:
            self.output = self.latch
        if enable and (not write or self.mode != "NORMAL"):
            shown = new if self.mode == "WRITETHROUGH" else old
            self.latch = sum(bit << pin for pin, bit in enumerate(shown))
        if reset:
            self.latch = self.output = 0

    @property
    def shown(self) -> int:
        return self.output if self.late else self.latch


@cocotb.test()
async def block_rams(dut) -> None:
    rng = random.Random(2)
    init = int(parameter("init"), 16)
    memories = []
    for widths, modes, late in json.loads(parameter("rams")):
        bits = [init >> (320 * (n // 288) + n % 288 // 18 * 20 + n % 18) & 1 for n in range(18432)]
        memories.append([Port(*port, late, bits) for port in zip(widths, modes, strict=True)])
    cocotb.start_soon(Clock(dut.clk, 10, "ns").start())
    await FallingEdge(dut.clk)
    written = 0
    for _ in range(CYCLES):
        pins = []
        for _port in range(2):
            enable, write = rng.random() < 0.8, rng.random() < 0.5
            address = rng.randrange(64) << 5 & 0x3FE0 | rng.randrange(32) | rng.randrange(8) << 11
            pins.append([enable, write, rng.random() < 0.05, rng.random() < 0.7, address,
                         rng.getrandbits(18)])  # fmt: skip
        (_, write_a, _, _, a, data_a), (_, write_b, _, _, b, data_b) = pins
        if a >> 5 == b >> 5 and (write_a or write_b):
            pins[1][0] = False  # what one port reads while the other writes it is undefined
        for name, (enable, write, reset, go, address, data) in zip("ab", pins, strict=True):
            for pin, value in (("ce", enable), ("we", write), ("rst", reset), ("oce", go),
                               ("ad", address), ("di", data)):  # fmt: skip
                getattr(dut, f"{pin}{name}").value = int(value)
        for ports in memories:
            wide = ports[0].width == 36
            for k, port in enumerate(ports):
                enable, write, reset, go, address, data = pins[k]
                if wide:  # one port writes all pins, the other reads
                    write, data = write and k == 0, data_a | data_b << 18
                    reset = reset and k == 1
                port.clock(enable, write, reset, go, address, data)
                written += enable and write
        await FallingEdge(dut.clk)
        for number, (first, second) in enumerate(memories):
            got_a, got_b = (int(getattr(dut, f"do{p}_{number}").value) for p in "ab")
            if first.width == 36:
                assert got_a | got_b << 18 == second.shown, number
            else:
                assert (got_a, got_b) == (first.shown, second.shown), number
    assert written > CYCLES


@cocotb.test()
async def multipliers(dut) -> None:
    rng = random.Random(3)
    edges = (0, 1, 0x1FFFF, 0x20000, 0x3FFFF, 0x20001)
    for number in range(4000):
        a, b = (rng.choice(edges) if rng.random() < 0.2 else rng.getrandbits(18) for _ in range(2))
        signed = number % 4
        dut.a.value, dut.b.value, dut.signed_a.value = a, b, signed & 1
        dut.signed_b.value = signed >> 1
        await Timer(1, "ns")
        x = a - (a >> 17 << 18) if signed & 1 else a
        y = b - (b >> 17 << 18) if signed >> 1 else b
        assert int(dut.p.value) == x * y & (1 << 36) - 1
