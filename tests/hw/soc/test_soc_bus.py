"""The processor's bus and the core as its peripheral, in Amaranth's simulator."""

from __future__ import annotations

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, connect, flipped
from vdla.hw.boards.block_ram import BlockRam
from vdla.hw.soc.peripheral import Peripheral
from vdla.hw.soc.wishbone import AxiBridge, Ram, Share, bus_signature
from vdla.isa.params import HwParams
from vdla.isa.regmap import CONTROL_RESET, CONTROL_START, OFFSETS
from vdla.isa.soc import INTERRUPT, WINDOW
from vdla.isa.status import Status

from ..core.simulation import simulate

PARAMS = HwParams.load("4x4")
RAM_AT, DRAM_AT, NOTHING_AT = 0x0000_0000, 0x4000_0000, 0x7000_0000
RAM_BYTES, DRAM_BYTES = 256, 1 << 12
pytestmark = pytest.mark.slow


class Known(BlockRam):
    """A memory that tests look into."""

    def elaborate(self, platform) -> Module:
        m = super().elaborate(platform)
        self.storage = m.submodules.storage
        return m


class Memories(wiring.Component):
    """Two masters, a memory behind each kind of slave."""

    def __init__(self) -> None:
        super().__init__({"masters": In(bus_signature()).array(2), "forget": In(1)})
        self.ram = Ram(RAM_BYTES, bytes(range(8)))
        self.dram = Known(PARAMS, DRAM_BYTES)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.share = share = Share((RAM_AT, DRAM_AT))
        m.submodules.bridge = bridge = AxiBridge(PARAMS)
        m.submodules.ram, m.submodules.dram = self.ram, self.dram
        for ours, its in zip(self.masters, share.masters, strict=True):
            connect(m, flipped(ours), its)
        connect(m, share.slaves[0], self.ram.bus)
        connect(m, share.slaves[1], bridge.bus)
        connect(m, bridge.axi, self.dram.axi)
        m.d.comb += bridge.forget.eq(self.forget)
        return m


async def access(ctx, bus, address: int, data: int | None = None, select: int = 15) -> int | None:
    """The word at an address after a request, which writes ``data`` if there are any; None after an
    error."""
    request = {
        "cyc": 1, "stb": 1, "we": data is not None, "adr": address >> 2, "dat_w": data or 0,
        "sel": select,
    }  # fmt: skip
    for name, value in request.items():
        ctx.set(getattr(bus, name), value)
    while True:
        _, _, ack, err, word = await ctx.tick().sample(bus.ack, bus.err, bus.dat_r)
        if ack or err:
            ctx.set(bus.cyc, 0)
            ctx.set(bus.stb, 0)
            assert not (ack and err)
            return None if err else word


@pytest.mark.parametrize("base,size", [(RAM_AT, RAM_BYTES), (DRAM_AT, DRAM_BYTES)])
def test_two_masters_share_memories(base: int, size: int) -> None:
    """Each has words of its own in the same lines, so what one bridge keeps the other writes."""
    dut = Memories()

    def master(number: int):
        async def bench(ctx) -> None:
            rng, known = random.Random(number), {}
            for _ in range(80):
                address = base + 16 + 8 * rng.randrange(6) + 4 * number
                if rng.random() < 0.5 and address in known:
                    assert await access(ctx, dut.masters[number], address) == known[address]
                    continue
                data, select = rng.getrandbits(32), rng.choice((15, 15, 1, 12, 6))
                old = known.get(address, 0)
                mask = sum(0xFF << 8 * n for n in range(4) if select >> n & 1)
                known[address] = old & ~mask | data & mask
                assert await access(ctx, dut.masters[number], address, data, select) is not None
                for _ in range(rng.randrange(3)):
                    await ctx.tick()

        return bench

    simulate(dut, master(0), master(1), limit=5000)


def test_what_is_nowhere_is_an_error() -> None:
    dut = Memories()

    async def bench(ctx) -> None:
        bus = dut.masters[1]
        assert await access(ctx, bus, RAM_AT + 4) == 0x07060504
        for address in (NOTHING_AT, DRAM_AT + DRAM_BYTES):
            assert await access(ctx, bus, address) is None
            assert await access(ctx, bus, address, 1) is None
        assert await access(ctx, bus, DRAM_AT) == 0

    simulate(dut, bench, limit=500)


def test_a_line_is_forgotten() -> None:
    """What others write is seen after ``forget``, and not before."""
    dut = Memories()

    async def bench(ctx) -> None:
        bus, dram = dut.masters[0], dut.dram
        assert await access(ctx, bus, DRAM_AT + 8) == 0
        ctx.set(dram.storage.data[1], 7)
        assert await access(ctx, bus, DRAM_AT + 8) == 0
        ctx.set(dut.forget, 1)
        await ctx.tick()
        ctx.set(dut.forget, 0)
        assert await access(ctx, bus, DRAM_AT + 8) == 7

    simulate(dut, bench, limit=500)


class Alone(wiring.Component):
    """The peripheral in front of a memory."""

    def __init__(self) -> None:
        super().__init__({"bus": In(bus_signature())})
        self.vdla, self.dram = Peripheral(PARAMS), Known(PARAMS, 1 << 17)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.vdla, m.submodules.dram = self.vdla, self.dram
        connect(m, flipped(self.bus), self.vdla.bus)
        connect(m, self.vdla.axi, self.dram.axi)
        return m


def test_registers_window_and_interrupt() -> None:
    """An instruction that is none, in a window: fetched from there, and the core stops and says
    so."""
    dut, window, place = Alone(), 1 << 16, 4096
    fetched = []

    async def watch(ctx) -> None:
        async for _, _, valid, address in ctx.tick().sample(
            dut.vdla.axi.arvalid, dut.vdla.axi.araddr
        ):
            if valid:
                fetched.append(address)

    async def bench(ctx) -> None:
        async def read(offset: int) -> int | None:
            return await access(ctx, dut.bus, offset)

        async def write(offset: int, value: int) -> None:
            assert await access(ctx, dut.bus, offset, value) is not None

        ctx.set(dut.dram.storage.data[(window | place) // PARAMS.bus_bytes], (1 << 64) - 1)
        assert await read(OFFSETS["config_hash"]) == int(PARAMS.hash, 16)
        assert (await read(INTERRUPT), ctx.get(dut.vdla.irq)) == (0, 0)
        for turn in range(2):
            await write(OFFSETS["control"], CONTROL_RESET)
            await write(WINDOW, window)
            await write(OFFSETS["program_hash"], int(PARAMS.hash, 16))
            await write(OFFSETS["program_addr"], place)
            await write(OFFSETS["insn_count"], 1)
            assert await read(WINDOW) == window and await read(OFFSETS["program_addr"]) == place
            await write(OFFSETS["control"], CONTROL_START)
            while not ctx.get(dut.vdla.irq):
                await ctx.tick()
            assert await read(INTERRUPT) == 1
            assert await read(OFFSETS["status"]) == Status.ILLEGAL, turn
            await write(INTERRUPT, 1)
            assert (await read(INTERRUPT), ctx.get(dut.vdla.irq)) == (0, 0)
        # Registers of the core do not touch those beside them.
        assert await read(WINDOW) == window

    simulate(dut, bench, processes=(watch,), limit=600)
    assert set(fetched) == {window | place}
