"""The SDRAM's controller against a chip that checks the protocol, and what shares a memory between
core and host, in Amaranth's simulator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from amaranth.hdl import Elaboratable, Module
from amaranth.lib import wiring
from amaranth.sim import Simulator
from vdla.cosim.sdram import Pins, SdramChip
from vdla.hw.boards.block_ram import BlockRam
from vdla.hw.boards.sdram import INIT_REFRESHES, Command, Sdram, mode
from vdla.hw.boards.system import MemoryShare
from vdla.hw.core.dma import RESP_OKAY, RESP_SLVERR
from vdla.isa.params import HwParams
from vdla.isa.sdram import CLOCKS, Part

PARAMS = HwParams.load("4x4")
#: Few columns, so that bursts cross rows; little to wait for at the start.
SMALL = Part(row_bits=11, column_bits=5, init_us=2.0)
PAGE = 4096
WORD = PARAMS.bus_bytes
#: In a row of every bank, so that addresses hit open rows, closed rows and other rows.
PLACES = [(row << 2 | bank) * SMALL.row_beats * WORD for row in range(3) for bank in range(4)]
LIMIT_CYCLES = 60_000


def connect_chip(simulator: Simulator, dut: Sdram, chip: SdramChip) -> None:
    """The chip at the controller's pins."""
    pins = dut.pins
    shown = [
        (pins.command[n], pins.bank[n], pins.address[n], pins.mask[n], pins.data_o[n])
        for n in range(CLOCKS)
    ]

    async def process(ctx) -> None:
        async for _, _, *values in ctx.tick().sample(*shown[0], *shown[1], pins.data_oe):
            driven = values.pop()
            for n in range(CLOCKS):
                chip.clock(Pins(*values[5 * n : 5 * n + 5], driven))
            for n in range(CLOCKS):
                ctx.set(pins.data_i[n], chip.late(n))

    simulator.add_process(process)


class Traffic:
    """Random bursts on both channels, several under way; data and answers are compared.

    Attributes
    ----------
    memory : bytearray
        What is in the chip when all is over.
    most : dict
        The most bursts that were under way on a channel.
    """

    def __init__(self, axi, size: int, bursts: int, seed: int) -> None:
        self.axi, self.size, self.bursts = axi, size, bursts
        self.rng = random.Random(seed)
        self.memory = bytearray(size)
        self.reads: deque[tuple[int, int, bytes]] = deque()
        self.writes: deque[tuple[int, int]] = deque()
        self.unsent: deque[list[tuple[int, int]]] = deque()
        self.most = {"reads": 0, "writes": 0}

    def add(self, simulator: Simulator) -> None:
        """The masters of all channels."""
        for each in (self._ask, self._receive, self._announce, self._send, self._answered):
            simulator.add_testbench(each)

    def _choose(self, others: deque) -> tuple[int, int]:
        """Address and beats of a burst that shares no bytes with some others; now and then beyond
        the chip."""
        rng = self.rng
        while True:
            count = rng.randint(1, rng.choice([2, PARAMS.max_burst_beats]))
            if rng.random() < 0.05:
                return self.size + rng.randrange(8) * PAGE, count
            address = rng.choice(PLACES) + rng.randrange(SMALL.row_beats) * WORD
            count = min(count, (PAGE - address % PAGE) // WORD)
            end = address + count * WORD
            if not any(a < end and address < a + n * WORD for a, n, *_ in others):
                return address, count

    async def _pause(self, ctx) -> None:
        if self.rng.random() < 0.3:
            await ctx.tick().repeat(self.rng.choice([1, 3, 40]))

    async def _ask(self, ctx) -> None:
        axi = self.axi
        for _ in range(self.bursts):
            await self._pause(ctx)
            address, count = self._choose(self.writes)
            self.reads.append((address, count, bytes(self.memory[address:][: count * WORD])))
            ctx.set(axi.araddr, address)
            ctx.set(axi.arlen, count - 1)
            ctx.set(axi.arid, count & 1)
            ctx.set(axi.arvalid, 1)
            await ctx.tick().until(axi.arready)
            ctx.set(axi.arvalid, 0)
            self.most["reads"] = max(self.most["reads"], len(self.reads))

    async def _receive(self, ctx) -> None:
        axi = self.axi
        for _ in range(self.bursts):
            got, answers, last, count = b"", set(), False, 0
            while not last:
                await self._pause(ctx)
                ctx.set(axi.rready, 1)
                word, answer, last, identity = (
                    await ctx.tick()
                    .sample(axi.rdata, axi.rresp, axi.rlast, axi.rid)
                    .until(axi.rvalid)
                )
                ctx.set(axi.rready, 0)
                got += word.to_bytes(WORD, "little")
                count += 1
                answers.add((answer, identity))
            address, beats, expected = self.reads.popleft()
            beyond = address >= self.size
            assert count == beats
            assert answers == {(RESP_SLVERR if beyond else RESP_OKAY, beats & 1)}
            assert beyond or got == expected, f"read of {address:#x}"

    async def _announce(self, ctx) -> None:
        axi, rng = self.axi, self.rng
        for _ in range(self.bursts):
            await self._pause(ctx)
            address, count = self._choose(self.reads)
            words = [
                (rng.getrandbits(8 * WORD), rng.choice([0xFF, 0xFF, 0x0F, rng.getrandbits(8), 0]))
                for _ in range(count)
            ]
            self.writes.append((address, count))
            if address < self.size:
                for at, (word, strobes) in enumerate(words):
                    for k, byte in enumerate(word.to_bytes(WORD, "little")):
                        if strobes >> k & 1:
                            self.memory[address + WORD * at + k] = byte
            ctx.set(axi.awaddr, address)
            ctx.set(axi.awlen, count - 1)
            ctx.set(axi.awvalid, 1)
            await ctx.tick().until(axi.awready)
            ctx.set(axi.awvalid, 0)
            self.unsent.append(words)
            self.most["writes"] = max(self.most["writes"], len(self.writes))

    async def _send(self, ctx) -> None:
        axi = self.axi
        for _ in range(self.bursts):
            while not self.unsent:
                await ctx.tick()
            words = self.unsent.popleft()
            for at, (word, strobes) in enumerate(words):
                await self._pause(ctx)
                ctx.set(axi.wdata, word)
                ctx.set(axi.wstrb, strobes)
                ctx.set(axi.wlast, at + 1 == len(words))
                ctx.set(axi.wvalid, 1)
                await ctx.tick().until(axi.wready)
                ctx.set(axi.wvalid, 0)

    async def _answered(self, ctx) -> None:
        axi = self.axi
        for _ in range(self.bursts):
            await self._pause(ctx)
            ctx.set(axi.bready, 1)
            (answer,) = await ctx.tick().sample(axi.bresp).until(axi.bvalid)
            ctx.set(axi.bready, 0)
            address, _ = self.writes.popleft()
            assert answer == (RESP_SLVERR if address >= self.size else RESP_OKAY)


def simulate(dut: Elaboratable) -> Simulator:
    """A simulator that ends with its testbenches, or fails after a while."""
    simulator = Simulator(dut)
    simulator.add_clock(1e-8)

    async def limit(ctx) -> None:
        cycles = 0
        async for _ in ctx.tick():
            cycles += 1
            assert cycles < LIMIT_CYCLES, f"not over after {cycles} cycles"

    simulator.add_process(limit)
    return simulator


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_bursts(seed: int) -> None:
    dut, chip = Sdram(PARAMS, SMALL), SdramChip(SMALL)
    traffic = Traffic(dut.axi, SMALL.size_bytes, 120, seed)
    simulator = simulate(dut)
    connect_chip(simulator, dut, chip)
    traffic.add(simulator)
    simulator.run()
    assert chip.words.tobytes() == traffic.memory
    assert min(traffic.most.values()) > 4
    period = SMALL.rules.refresh * CLOCKS
    assert len(chip.refreshes) - INIT_REFRESHES > chip.now // period - 2


async def read(ctx, axi, address: int, count: int = 1) -> list[int]:
    """The words of a burst."""
    ctx.set(axi.araddr, address)
    ctx.set(axi.arlen, count - 1)
    ctx.set(axi.arvalid, 1)
    await ctx.tick().until(axi.arready)
    ctx.set(axi.arvalid, 0)
    ctx.set(axi.rready, 1)
    words = []
    for _ in range(count):
        (word,) = await ctx.tick().sample(axi.rdata).until(axi.rvalid)
        words.append(word)
    return words


async def announce(ctx, axi, address: int, count: int) -> None:
    """The address of a write."""
    ctx.set(axi.awaddr, address)
    ctx.set(axi.awlen, count - 1)
    ctx.set(axi.awvalid, 1)
    await ctx.tick().until(axi.awready)
    ctx.set(axi.awvalid, 0)


async def send(ctx, axi, word: int, last: bool) -> None:
    """A beat of a write, all of its bytes."""
    ctx.set(axi.wdata, word)
    ctx.set(axi.wstrb, -1)
    ctx.set(axi.wlast, last)
    ctx.set(axi.wvalid, 1)
    await ctx.tick().until(axi.wready)
    ctx.set(axi.wvalid, 0)


async def write(ctx, axi, address: int, words: list[int]) -> int:
    """A burst; its answer."""
    await announce(ctx, axi, address, len(words))
    for at, word in enumerate(words):
        await send(ctx, axi, word, at + 1 == len(words))
    ctx.set(axi.bready, 1)
    (answer,) = await ctx.tick().sample(axi.bresp).until(axi.bvalid)
    return answer


@pytest.mark.slow
def test_a_restart_forgets_the_past() -> None:
    """What a program sees of the memory is the same in every cycle, whatever was before."""
    dut, chip = Sdram(PARAMS, SMALL), SdramChip(SMALL)
    simulator = simulate(dut)
    connect_chip(simulator, dut, chip)
    found: list[list[int]] = []

    async def master(ctx) -> None:
        rng = random.Random(5)
        for _ in range(6):
            # Whatever is open, and however far the next refresh.
            await read(ctx, dut.axi, rng.choice(PLACES))
            await write(ctx, dut.axi, rng.choice(PLACES), [1])
            await ctx.tick().repeat(rng.randrange(40, 700))
            ctx.set(dut.restart, 1)
            await ctx.tick()
            ctx.set(dut.restart, 0)
            cycles = []
            for address in (*PLACES[:4], PLACES[8], PLACES[0]) * 9:
                begun = chip.now
                await read(ctx, dut.axi, address, 2)
                cycles.append((chip.now - begun) // CLOCKS)
            found.append(cycles)

    simulator.add_testbench(master)
    simulator.run()
    assert all(cycles == found[0] for cycles in found)
    assert len(set(found[0])) > 3  # hits, misses and refreshes


class Shared(Elaboratable):
    """A memory, and what shares it."""

    def __init__(self, memory) -> None:
        self.share, self.memory = MemoryShare(PARAMS), memory

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.share, m.submodules.memory = self.share, self.memory
        wiring.connect(m, self.share.memory, self.memory.axi)
        return m


#: Bursts that a core has left: reads whose data it has not taken, beats of its last write that it
#: has not sent.
LEFT = ((0, 0), (1, 0), (0, 1), (0, 5), (16, 0), (16, 5), (9, 1))


@pytest.mark.slow
@pytest.mark.parametrize("memory", [
    pytest.param(lambda: Sdram(PARAMS, SMALL), id="sdram"),
    pytest.param(lambda: BlockRam(PARAMS, 64 << 10), id="block_ram"),
])  # fmt: skip
def test_what_a_core_leaves_is_finished(memory: Callable[[], Sdram | BlockRam]) -> None:
    dut = Shared(memory())
    simulator = simulate(dut)
    core, host, share = dut.share.core, dut.share.host, dut.share
    at_once = 16
    if isinstance(dut.memory, Sdram):
        connect_chip(simulator, dut.memory, SdramChip(SMALL))
    else:
        at_once = 1

    async def stopped(ctx, reads: int, missing: int) -> None:
        ctx.set(share.running, 1)
        ctx.set(share.receiving, 1)
        ctx.set(core.rready, 0)
        for n in range(min(reads, at_once)):
            ctx.set(core.araddr, PLACES[n % len(PLACES)])
            ctx.set(core.arlen, 6)
            ctx.set(core.arvalid, 1)
            await ctx.tick().until(core.arready)
            ctx.set(core.arvalid, 0)
        if missing:
            ctx.set(core.bready, 0)
            for _ in range(at_once - 1):
                await announce(ctx, core, 0x400, 1)
                await send(ctx, core, 0x55, True)
            await announce(ctx, core, 0x800, 6)
            for n in range(6 - missing):
                await send(ctx, core, 0x100 + n, False)
        ctx.set(share.running, 0)
        ctx.set(share.receiving, 0)
        # As the core does when it has stopped.
        ctx.set(core.wvalid, 1)
        ctx.set(core.arvalid, 1)
        await ctx.tick()

    async def master(ctx) -> None:
        for reads, missing in LEFT:
            before = [0x10 * n + reads + missing for n in range(6)]
            for n, word in enumerate(before):
                assert await write(ctx, host, 0x800 + WORD * n, [word]) == RESP_OKAY
            await stopped(ctx, reads, missing)
            # The host asks at once.
            sent = 6 - missing if missing else 0
            expected = [0x100 + n for n in range(sent)] + before[sent:]
            for n, word in enumerate(expected):
                assert await read(ctx, host, 0x800 + WORD * n) == [word]
            assert not ctx.get(share.draining)
            ctx.set(core.wvalid, 0)
            ctx.set(core.arvalid, 0)

    simulator.add_testbench(master)
    simulator.run()


def test_the_chip_refuses() -> None:
    """Each rule of the chip, broken once after what is right."""
    rules = SMALL.rules
    for cycles, commands, message in (
        (0, [(0, Command.CLOSE)], "before the chip is ready"),
        (1, [(0, Command.OPEN)], "OPEN before the mode was set"),
    ):
        chip = SdramChip(SMALL)
        chip.skip(cycles * SMALL.clocks(1000 * SMALL.init_us))
        with pytest.raises(AssertionError, match=message):
            run_commands(chip, commands)
    opened = [(0, Command.OPEN), (CLOCKS * rules.open_to_move, Command.READ)]
    for commands, message in (
        ([(0, Command.READ)], "in a bank that is not open"),
        ([(0, Command.OPEN), (2, Command.READ)], "READ or WRITE too early after OPEN"),
        ([(0, Command.OPEN), (9, Command.OPEN)], "OPEN of a bank that is open"),
        ([(0, Command.OPEN), (6, Command.CLOSE)], "CLOSE too early"),
        ([*opened, (3, Command.READ)], "while another one moves words"),
        ([*opened, (4, Command.WRITE)], "WRITE while a READ has the data pins"),
        ([*opened, (4, Command.CLOSE), (1, Command.OPEN)], "OPEN too early after CLOSE"),
        ([(0, Command.OPEN), (7, Command.CLOSE), (1, Command.REFRESH)], "REFRESH too early"),
        ([(0, Command.OPEN), (7, Command.REFRESH)], "REFRESH while a row is open"),
        ([(0, Command.REFRESH), (9, Command.OPEN)], "OPEN too early after REFRESH"),
        ([(30 * CLOCKS * rules.refresh, Command.NOP)], "too few refreshes"),
    ):
        chip = SdramChip(SMALL)
        set_up(chip)
        with pytest.raises(AssertionError, match=message):
            run_commands(chip, commands)
    chip = SdramChip(SMALL)
    set_up(chip)
    run_commands(chip, [*opened, (8, Command.WRITE)])
    for mask, data, message in ((1, 0, "a mask that hides words"), (0, 1, "data pins are driven")):
        chip = SdramChip(SMALL)
        set_up(chip)
        run_commands(chip, opened)
        with pytest.raises(AssertionError, match=message):
            for _ in range(SMALL.cas_clocks):
                chip.clock(Pins(Command.NOP, 0, 0, mask, 0, data))


def run_commands(chip: SdramChip, commands: list[tuple[int, Command]]) -> None:
    """Commands, each so many clocks after the one before."""
    for clocks, command in commands:
        for _ in range(clocks - 1):
            chip.clock(Pins(Command.NOP, 0, 0, 0, 0, 0))
        chip.clock(Pins(command, 0, 0, 0, 0, command == Command.WRITE))


def set_up(chip: SdramChip) -> None:
    """What a controller does before anything else."""
    chip.skip(SMALL.clocks(1000 * SMALL.init_us))
    run_commands(chip, [(0, Command.CLOSE), *[(10, Command.REFRESH)] * INIT_REFRESHES])
    chip.skip(9)
    chip.clock(Pins(Command.SET_MODE, 0, mode(SMALL), 0, 0, 0))
