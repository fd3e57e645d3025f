"""A unit of the datapath with its memories in Amaranth's simulator, against the reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, fields
from functools import cache

import numpy as np
from amaranth.hdl import Module
from amaranth.lib.memory import Memory, MemoryData
from amaranth.sim import Simulator, SimulatorContext
from vdla.cosim import insn_word, stored_words
from vdla.hw.core.gemm import Gemm
from vdla.hw.core.scratchpad import rows
from vdla.hw.core.vector import Vector
from vdla.isa.encoding import layout_bits
from vdla.isa.insn import Insn, layout
from vdla.isa.opcodes import Unit
from vdla.isa.params import HwParams
from vdla.isa.reference import State, execute

SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=24, wgt_depth=12, acc_depth=20, uop_depth=16, par_depth=12,
    tmp_depth=10, out_depth=24,
)  # fmt: skip
BATCHED = HwParams(
    batch=2, block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=16, uop_depth=8,
    par_depth=8, tmp_depth=8, out_depth=16,
)  # fmt: skip


@dataclass
class Cycle:
    """What a unit showed in one cycle."""

    valid: int
    ready: int
    available: int
    start: int
    pop: int
    end: int
    push: int
    busy: int
    stalled: int
    waiting: int
    error: int
    error_index: int


@dataclass
class Run:
    """The trace of a run; lists are indexed by cycle or, starts and ends, by instruction."""

    cycles: list[Cycle] = field(default_factory=list)
    memories: dict[str, list[int]] = field(default_factory=dict)

    def strobes(self, name: str) -> list[int]:
        """Cycles in which a signal was high."""
        return [t for t, cycle in enumerate(self.cycles) if getattr(cycle, name)]


def random_state(params: HwParams, rng: np.random.Generator) -> State:
    """Memories filled with random values, a third of them extreme."""
    state = State(params, np.zeros(0, np.uint8))
    for name in ("inp", "wgt", "par", "acc", "tmp", "out"):
        memory = state.memory(name)
        info = np.iinfo(memory.dtype)
        plain = rng.integers(info.min, info.max, memory.shape, memory.dtype, endpoint=True)
        small = rng.integers(-70, 70, memory.shape, memory.dtype)
        extreme = rng.choice(np.array([info.min, info.max, -1, 0, 1], memory.dtype), memory.shape)
        choice = rng.integers(0, 3, memory.shape)
        memory[...] = np.choose(choice, [plain, small, extreme])
    return state


READS = {
    Gemm: {"uop": ["uop"], "inp": ["inp"], "wgt": ["wgt"], "acc": ["acc"]},
    Vector: {"acc": ["acc"], "inp": ["inp"], "par": ["par"], "tmp": ["tmp0", "tmp1"], "out": []},
}
WRITES = {Gemm: {"acc": "acc_write"}, Vector: {"tmp": "tmp_write", "out": "out_write"}}
#: What is added to an instruction's place in the list to give the index that travels with it.
FIRST_INDEX = 7


class Bench:
    """A unit wired to memories whose contents the simulator can set and get."""

    def __init__(self, unit: Gemm | Vector) -> None:
        self.unit = unit
        self.params = unit.params
        m = Module()
        m.submodules.unit = unit
        self.cells: dict[str, MemoryData] = {}
        for name, readers in READS[type(unit)].items():
            depth, bits = rows(name, self.params)
            self.cells[name] = MemoryData(shape=bits, depth=depth, init=[])
            m.submodules[name] = memory = Memory(self.cells[name])
            for reader in readers:
                port, member = memory.read_port(), getattr(unit, reader)
                m.d.comb += [port.addr.eq(member.addr), member.data.eq(port.data)]
            if name in WRITES[type(unit)]:
                port, member = memory.write_port(), getattr(unit, WRITES[type(unit)][name])
                m.d.comb += [
                    port.en.eq(member.en),
                    port.addr.eq(member.addr),
                    port.data.eq(member.data),
                ]
        self._feed: Callable[[SimulatorContext], Coroutine[None, None, None]] | None = None
        self._simulator = Simulator(m)
        self._simulator.add_clock(1e-6)

        async def feed(ctx: SimulatorContext) -> None:
            assert self._feed is not None
            await self._feed(ctx)

        self._simulator.add_testbench(feed)

    def run(
        self,
        insns: list[Insn | int],
        state: State,
        seed: int = 0,
        stalls: bool = True,
        limit: int = 5000,
    ) -> Run:
        """Feed instructions (or raw words) until all ended, or the unit reports an error.

        With ``stalls`` the queue is empty and tokens are missing at random.
        """
        rng = random.Random(seed)
        unit, result = self.unit.unit, Run()
        payloads = [self._payload(insn, index) for index, insn in enumerate(insns)]

        async def feed(ctx: SimulatorContext) -> None:
            for name, cells in self.cells.items():
                for row, word in enumerate(stored_words(state, name)):
                    ctx.set(cells[row], word)
            signals = {
                "valid": unit.insn.valid, "ready": unit.insn.ready,
                **{f.name: getattr(unit, f.name) for f in fields(Cycle)[2:]},
            }  # fmt: skip
            others = 15 & ~(1 << (Unit.GEMM if isinstance(self.unit, Gemm) else Unit.VECTOR))
            offered = ended = 0
            while ended < len(insns) and len(result.cycles) < limit:
                if offered < len(insns) and not (stalls and rng.random() < 0.3):
                    ctx.set(unit.insn.payload, payloads[offered])
                    ctx.set(unit.insn.valid, 1)
                ctx.set(
                    unit.available, others & (rng.choice((15, rng.randrange(16))) if stalls else 15)
                )
                cycle = Cycle(**{name: int(ctx.get(signal)) for name, signal in signals.items()})
                result.cycles.append(cycle)
                await ctx.tick()
                if cycle.valid and cycle.ready:
                    offered += 1
                    ctx.set(unit.insn.valid, 0)
                ended += cycle.end
                if cycle.error:
                    break
            for name, cells in self.cells.items():
                result.memories[name] = [int(ctx.get(cells[r])) for r in range(cells.depth)]

        if self._feed is not None:
            self._simulator.reset()
        self._feed = feed
        self._simulator.run()
        return result

    def _payload(self, insn: Insn | int, index: int) -> dict[str, int]:
        return {
            "word": insn if isinstance(insn, int) else insn_word(insn, self.params),
            "index": FIRST_INDEX + index,
        }


@cache
def bench_of(unit: type[Gemm | Vector], params: HwParams) -> Bench:
    """The bench of a unit. It is built once, which takes longer than a run."""
    return Bench(unit(params))


def poke(insn: Insn, params: HwParams, **changes: int) -> int:
    """The encoded instruction with some fields overwritten, legal or not."""
    word, offset = insn_word(insn, params), 0
    for spec in layout(insn.opcode, params):
        mask = (1 << spec.bits) - 1
        if spec.name in changes:
            word = word & ~(mask << offset) | (changes.pop(spec.name) & mask) << offset
        offset += spec.bits
    if above := changes.pop("above", 0):
        word |= above << layout_bits(layout(insn.opcode, params))
    assert not changes, f"no such field: {changes}"
    return word


def check_values(run: Run, insns: list[Insn], state: State) -> None:
    """Every byte of every scratchpad equals the reference's; changes ``state``."""
    for insn in insns:
        execute(insn, state)
    for name, contents in run.memories.items():
        expected = stored_words(state, name)
        for row, (got, want) in enumerate(zip(contents, expected, strict=True)):
            assert got == want, f"{name}[{row}]: expected {want:#x}, got {got:#x}"


def check_tokens(run: Run, insns: list[Insn]) -> None:
    """Pop masks appear at starts and push masks at ends, and nowhere else; causes are exclusive."""
    starts, ends = run.strobes("start"), run.strobes("end")
    assert len(starts) == len(ends) == len(insns)
    pops, pushes = dict(zip(starts, insns, strict=True)), dict(zip(ends, insns, strict=True))
    for t, cycle in enumerate(run.cycles):
        assert cycle.pop == (int(pops[t].pop) if t in pops else 0)
        assert cycle.push == (int(pushes[t].push) if t in pushes else 0)
        assert cycle.start == (cycle.valid and cycle.ready)
        if t in pops:
            assert cycle.pop & ~cycle.available == 0 and cycle.busy and not cycle.waiting


def expected_start(run: Run, insn: Insn, ready: int) -> int:
    """The first cycle from ``ready`` on in which the instruction is there with all its tokens."""
    return next(
        t
        for t in range(ready, len(run.cycles))
        if run.cycles[t].valid and int(insn.pop) & ~run.cycles[t].available == 0
    )
