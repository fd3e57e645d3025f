"""Random programs: legal, free of races, determined by a seed, and varied in every field of every
instruction.

Instructions are drawn in program order and ordered across units by the same tokens that compiled
programs get (``isa/depend.py``); a few further tokens that change nothing but time are added on
top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...isa.depend import insert_tokens
from ...isa.encoding import VECTOR_EXTENT_BITS
from ...isa.insn import Gemm, Insn, Load, Param, Store, Table, Uop, Vector, encode_uop
from ...isa.opcodes import (  # fmt: skip
    DST_MEMORIES,
    LOADABLE,
    SRC0_MEMORIES,
    SRC1_MEMORIES,
    Unit,
    Units,
    widened,
)
from ...isa.params import HwParams
from ...isa.program import PROGRAM_ALIGN_BYTES, Program
from ...isa.vector_ops import POST_OPS, operators

#: DRAM of a random program: constants in the first part, results in the second, instructions
#: behind.
CONSTANT_BYTES, RESULT_BYTES = 48 << 10, 48 << 10
#: Iterations of one instruction, at most: keeps programs short in simulated time.
MAX_ITERATIONS = 160
#: Most accesses fall into the first entries of a memory, so that what one instruction writes is
#: what another reads.
NEAR_ENTRIES = 16
#: Rows of sensible requantisation parameters, a multiple of 3.
PARAMETER_ROWS = 30

#: Operators whose second operand is a number of bits.
SHIFTS = ("shr", "rshr", "shl")


def random_program(params: HwParams, seed: int, length: int = 40) -> Program:
    """A program of about ``length`` instructions; its image fills all of DRAM that it reads."""
    return Generator(params, np.random.default_rng(seed)).program(length)


class Generator:
    """Draws a program. ``steered.py`` has one that draws towards holes in the coverage."""

    #: DRAM that loads read and that stores write, from byte to byte: micro-ops lie below.
    read_span = (CONSTANT_BYTES // 2, CONSTANT_BYTES)
    written_span = (CONSTANT_BYTES, CONSTANT_BYTES + RESULT_BYTES)

    def __init__(self, params: HwParams, rng: np.random.Generator):
        self.params, self.rng = params, rng
        data = rng.integers(0, 256, CONSTANT_BYTES, np.uint8)
        extreme = rng.random(CONSTANT_BYTES) < 0.2
        data[extreme] = rng.choice(np.array([0x80, 0x7F, 0, 0xFF], np.uint8), int(extreme.sum()))
        self.constants = data
        self.place_parameters()
        self.free = 0
        #: Micro-ops that have been loaded: (first index, their values).
        self.uops: list[tuple[int, list[Uop]]] = []
        self.uop_end = 0

    def place_parameters(self) -> None:
        """Rows of bias, multiplier and shift that map accumulators to all of int8, at the end of
        the constants: random ones nearly always clamp.
        """
        block = self.params.block
        rows = np.empty((PARAMETER_ROWS // 3, 3, block), "<i4")
        rows[:, 0] = self.rng.integers(-5000, 5000, rows[:, 0].shape)
        rows[:, 1] = self.rng.integers(1 << 29, 1 << 31, rows[:, 1].shape)
        rows[:, 2] = self.rng.integers(34, 46, rows[:, 2].shape)
        # One channel halves a few times: half of its results are ties, of either sign.
        rows[:, 0, 0] %= 100
        rows[:, 1, 0] = 1 << 30
        rows[:, 2, 0] = 33 + np.arange(len(rows)) % 4
        self.constants[CONSTANT_BYTES - rows.nbytes :] = rows.reshape(-1).view(np.uint8)

    def below(self, bound: int) -> int:
        """A number in 0..bound, both included."""
        return int(self.rng.integers(0, bound + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def base(self, last: int) -> int:
        """A first entry in 0..last, mostly near the beginning."""
        return self.below(min(last, NEAR_ENTRIES) if self.chance(0.8) else last)

    def stride(self, largest: int) -> int:
        """A stride in 0..largest, mostly small."""
        return self.below(min(largest, 3) if self.chance(0.7) else largest)

    def program(self, length: int) -> Program:
        insns: list[Insn] = [self.load_uops(), *map(self.fill, ("wgt", "inp", "par")), self.param()]
        drawn = (self.any_load, self.gemm, self.vector, self.param, self.store)
        odds = np.array([0.3, 0.25, 0.25, 0.08, 0.12])
        if self.params.vector_table:
            insns.append(self.table())
            drawn, odds = (*drawn, self.table), np.array([0.28, 0.23, 0.29, 0.06, 0.1, 0.04])
        while len(insns) < length:
            insns += self.draw(drawn, odds)
        image = {0: self.constants.tobytes()}
        address = CONSTANT_BYTES + RESULT_BYTES
        address += -address % PROGRAM_ALIGN_BYTES
        ordered = self.extra_tokens(insert_tokens(insns, self.params, image))
        return Program(self.params, tuple(ordered), image, {}, address)

    def draw(self, drawn: Sequence[Callable[[], Insn]], odds: np.ndarray) -> list[Insn]:
        """The next instructions: one of a kind drawn by its odds."""
        return [drawn[int(self.rng.choice(len(drawn), p=odds))]()]

    def extra_tokens(self, insns: list[Insn]) -> list[Insn]:
        """Append one chain of tokens through random units, behind everything else."""
        units = [unit for unit in Unit if any(insn.unit == unit for insn in insns)]
        giver, taker = self.rng.choice(len(units), 2, replace=False)
        last = {unit: max(i for i, n in enumerate(insns) if n.unit == unit) for unit in units}
        first, second = units[giver], units[taker]
        if last[first] < last[second]:
            source, target = last[first], last[second]
            pushes, pops = insns[source].push, insns[target].pop
            if not (pushes >> second & 1) and not (pops >> first & 1):
                insns[source] = replace(insns[source], push=pushes | Units(1 << second))
                insns[target] = replace(insns[target], pop=pops | Units(1 << first))
        return insns

    # ---- load and store ----

    def load_uops(self) -> Load:
        """A sequence of random micro-ops, placed in constant DRAM."""
        params = self.params
        count = 1 + self.below(min(12, params.uop_depth - 1))
        if self.uop_end + count > params.uop_depth:
            self.uop_end, self.uops = 0, []
        # Few distinct accumulators make accumulation distances of one.
        spread = self.rng.choice([1, 2, 8])
        return self.place_uops([self.uop(int(spread)) for _ in range(count)])

    def uop(self, spread: int) -> Uop:
        """A micro-op on one of the first ``spread`` accumulators."""
        params = self.params
        return Uop(
            acc=self.below(min(spread, params.acc_depth) - 1),
            inp=self.base(params.inp_depth // 4 - 1),
            wgt=self.base(params.wgt_depth // 4 - 1),
            first=int(self.chance(0.3)),
        )

    def place_uops(self, uops: list[Uop]) -> Load:
        """Micro-ops placed in constant DRAM, and the load behind those that are loaded already."""
        params, count = self.params, len(uops)
        size = params.entry_bytes("uop")
        raw = b"".join(encode_uop(uop, params) for uop in uops)
        unit = max(size, params.bus_bytes)
        address = self.free + -self.free % unit
        if self.chance(0.5) and size < params.bus_bytes:
            address += size  # a row that begins inside a bus word
        self.free = address + len(raw)
        self.constants[address : self.free] = np.frombuffer(raw, np.uint8)
        insn = Load(memory="uop", base=self.uop_end, dram_addr=address, x_size=count)
        self.uops.append((self.uop_end, uops))
        self.uop_end += count
        return insn

    def any_load(self) -> Load:
        memory = LOADABLE[int(self.rng.choice(4, p=[0.45, 0.25, 0.1, 0.2]))]
        return self.load_uops() if memory == "uop" else self.load(memory)

    def fill(self, memory: str) -> Load:
        """Random numbers where most instructions read: zeros would hide most mistakes."""
        size = self.params.entry_bytes(memory)
        entries, start = 2 * NEAR_ENTRIES, CONSTANT_BYTES // 2
        if memory == "par":
            entries, start = PARAMETER_ROWS, CONSTANT_BYTES - PARAMETER_ROWS * size
        count = min(self.params.depth(memory), entries, (CONSTANT_BYTES - start) // size)
        return Load(memory=memory, base=0, dram_addr=start, x_size=count)

    def load(self, memory: str) -> Load:
        """A box with padding anywhere, from random constants."""
        params = self.params
        widen = int(memory in widened(params) and self.chance(0.4))
        size = params.dram_entry_bytes(memory, widen)
        unit = min(size, params.bus_bytes)
        room = params.depth(memory)
        budget = min(room, MAX_ITERATIONS, max(1, 8192 // size))
        pads = [self.below(3) if self.chance(0.4) else 0 for _ in range(4)]
        x = 1 + self.below(min(budget, 40) - 1)
        y = 1 + self.below(3)
        z = 1 + self.below(2)
        while z * (y + pads[0] + pads[1]) * (x + pads[2] + pads[3]) > budget:
            x, y, z = max(1, x // 2), max(1, y - 1), max(1, z - 1)
            if x == y == z == 1:
                pads = [p // 2 for p in pads]
        if self.chance(0.05) and (pads[0] or pads[1]):
            y = 0
        y_stride = unit * self.below(2048 // unit)
        z_stride = unit * self.below(8192 // unit)
        span = (z - 1) * z_stride + max(0, y - 1) * y_stride + x * size
        start, end = self.read_span
        address = start + unit * self.below((end - start - span) // unit)
        entries = z * (y + pads[0] + pads[1]) * (x + pads[2] + pads[3])
        return Load(
            memory=memory, base=self.base(room - entries), dram_addr=address,
            x_size=x, y_size=y, z_size=z, y_stride=y_stride, z_stride=z_stride,
            pad_top=pads[0], pad_bottom=pads[1], pad_left=pads[2], pad_right=pads[3],
            pad_value=self.below(255) - 128, widen=widen,
        )  # fmt: skip

    def store(self) -> Store:
        """A box of ``out`` to the result half of DRAM, rows apart so that they do not overlap."""
        params = self.params
        size = params.entry_bytes("out")
        unit = min(size, params.bus_bytes)
        x, y, z = 1 + self.below(20), 1 + self.below(3), 1 + self.below(1)
        while x * y * z > min(params.out_depth, MAX_ITERATIONS):
            x, y, z = max(1, x // 2), max(1, y - 1), 1
        y_stride = x * size + unit * self.below(64)
        z_stride = y * y_stride + unit * self.below(64)
        span = (z - 1) * z_stride + (y - 1) * y_stride + x * size
        start, end = self.written_span
        address = start + unit * self.below((end - start - span) // unit)
        return Store(
            base=self.base(params.out_depth - x * y * z), dram_addr=address, x_size=x, y_size=y,
            z_size=z, y_stride=y_stride, z_stride=z_stride,
        )  # fmt: skip

    # ---- arithmetic ----

    def gemm(self) -> Gemm:
        """Micro-ops that are loaded, inside two random loops that stay inside the memories."""
        params = self.params
        begin, uops = self.uops[int(self.rng.integers(len(self.uops)))]
        skip = self.below(len(uops) - 1)
        count = 1 + self.below(len(uops) - skip - 1)
        outer, inner = 1 + self.below(5), 1 + self.below(5)
        while outer * inner * count > MAX_ITERATIONS:
            outer, inner = max(1, outer - 1), max(1, inner - 1)
            count = max(1, count // 2) if outer == inner == 1 else count
        strides = {}
        used = uops[skip : skip + count]
        for memory in ("acc", "inp", "wgt"):
            room = params.depth(memory) - 1 - max(getattr(uop, memory) for uop in used)
            steps = (outer - 1, inner - 1)
            limit = room // max(1, sum(steps))
            for loop in ("outer", "inner"):
                largest = min(limit, (1 << params.index_bits(memory)) - 1)
                strides[f"{memory}_{loop}"] = self.stride(largest) if self.chance(0.7) else 0
        return Gemm(
            uop_begin=begin + skip, uop_count=count, outer=outer, inner=inner,
            init=int(self.chance(0.5)), **strides,
        )  # fmt: skip

    def param(self) -> Param:
        lo, hi = sorted((self.below(255) - 128, self.below(255) - 128))
        zero_point = self.below(255) - 128
        if self.chance(0.5):
            lo, hi = -128, 127
        base = self.base(self.params.par_depth - 3)
        if self.chance(0.8):
            base -= base % 3
        return Param(par_base=base, zero_point=zero_point, lo=lo, hi=hi)

    def table(self) -> Table:
        """Any entries of par, which need not look like a table."""
        return Table(par_base=self.base(self.params.par_depth - self.params.table_entries))

    def immediate(self, op: str) -> int:
        """A number of any size; for shifts often a few bits, because many of their results are
        ties."""
        if op in SHIFTS and self.chance(0.7):
            return 1 + self.below(3)
        return int(self.rng.integers(-(1 << 31), 1 << 31)) >> self.below(31)

    def vector(self) -> Vector:
        """Any operator on any operands, reductions and hazards on tmp included."""
        params, rng = self.params, self.rng
        ops = operators(params)
        op = ops[int(rng.integers(len(ops)))]
        post = POST_OPS[int(rng.integers(len(POST_OPS)))]
        extents = [1 + self.below(4) for _ in range(4)]
        while int(np.prod(extents)) > MAX_ITERATIONS:
            extents[int(rng.integers(4))] = 1
        if self.chance(0.1):
            extents = [
                1,
                1,
                1,
                1 + self.below(min(MAX_ITERATIONS, (1 << VECTOR_EXTENT_BITS) - 1) - 1),
            ]
        most = 3 if op.slides else 4
        reduce = self.below(most) if op.term is not None and self.chance(0.5) else 0
        memories = {
            "src0": SRC0_MEMORIES[int(rng.integers(len(SRC0_MEMORIES)))],
            "src1": SRC1_MEMORIES[int(rng.integers(len(SRC1_MEMORIES)))],
            "dst": DST_MEMORIES[int(rng.integers(len(DST_MEMORIES)))],
        }
        if op.name in SHIFTS and self.chance(0.6):
            # Small shifts of small numbers, written as they are: this is where results are ties.
            memories |= {"src0": "inp", "src1": "imm"}
            post = POST_OPS[0]
        fields: dict[str, Any] = {}
        for name, memory in memories.items():
            moving = [n - 1 for n in extents]
            if name == "dst":
                moving[4 - reduce :] = [0] * reduce
            if memory == "imm":
                base, strides = 0, (0, 0, 0, 0)
            else:
                limit = (params.depth(memory) - 1) // max(1, sum(moving))
                limit = min(limit, self.rng.choice([0, 1, 3, params.depth(memory)]))
                strides = tuple(self.below(int(limit)) if step else 0 for step in moving)
                reach = sum(n * s for n, s in zip(moving, strides, strict=True))
                # Small bases make tmp operands and results meet.
                base = self.below(
                    min(params.depth(memory) - 1 - reach, self.rng.choice([0, 4, 1 << 16]))
                )
            fields |= {f"{name}_base": int(base), f"{name}_strides": strides}
        imm = self.immediate(op.name)
        if op.slides:
            imm = self.below(min(params.vector_window, extents[3 - reduce]) - 1)
        return Vector(
            op=op.name, post=post.name, reduce=reduce,
            imm=imm,
            extents=tuple(extents), **memories, **fields,
        )  # fmt: skip
