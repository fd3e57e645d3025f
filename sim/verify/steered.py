"""Random programs that are drawn towards holes in the coverage: bounds are drawn more often, and
what chance hardly ever draws has a recipe. They are as legal and free of races as all random
programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isqrt

import numpy as np

from ...isa.encoding import INT8_MIN, INT32_BITS, layout, pack
from ...isa.footprint import dram_rows
from ...isa.insn import Gemm, Insn, Load, Param, Store, Uop, Vector, decode, fault, field_values
from ...isa.opcodes import LOADABLE, Opcode, Unit, Units
from ...isa.params import HwParams
from ...isa.program import Program
from ..coverage.bins import extremes, name
from ..coverage.coverage import Bin
from ..coverage.sample import still
from .random_programs import CONSTANT_BYTES, RESULT_BYTES, Generator

INT32_MIN, INT32_MAX = -(1 << INT32_BITS - 1), (1 << INT32_BITS - 1) - 1
#: Instructions that are looked at until one hits the bin that is wanted.
TRIES = 60
#: Iterations of an instruction with a field at an end of its range, which has 4,095 at least.
MOST_ITERATIONS = 5000
#: Holes that one program is drawn towards, at most.
WANTED = 12


def steered_program(
    params: HwParams, seed: int, wanted: Sequence[Bin], length: int = 40
) -> Program:
    """A program of about ``length`` instructions towards these bins; its arguments determine it."""
    return _Steered(params, np.random.default_rng(seed), wanted).program(length)


def choose_holes(holes: Sequence[Bin], seed: int) -> list[Bin]:
    """Some holes for one program."""
    rng = np.random.default_rng(seed)
    return [holes[i] for i in sorted(rng.permutation(len(holes))[:WANTED].tolist())]


class _Steered(Generator):
    read_span = (CONSTANT_BYTES // 2, CONSTANT_BYTES + RESULT_BYTES)
    written_span = read_span

    def __init__(self, params: HwParams, rng: np.random.Generator, wanted: Sequence[Bin]) -> None:
        super().__init__(params, rng)
        self.wanted = list(wanted)

    def below(self, bound: int) -> int:
        """A number in 0..bound, the ends more often."""
        drawn = self.rng.random()
        if drawn < 0.3:
            return bound if drawn < 0.15 else 0
        return super().below(bound)

    def base(self, last: int) -> int:
        """A first entry in 0..last, often the last."""
        return last if self.chance(0.15) else super().base(last)

    def uop(self, spread: int) -> Uop:
        """A micro-op, at times on the last entries."""
        params = self.params
        if self.chance(0.2):
            return Uop(
                acc=params.acc_depth - 1, inp=params.inp_depth - 1, wgt=params.wgt_depth - 1,
                first=int(self.chance(0.5)),
            )  # fmt: skip
        return super().uop(spread)

    def draw(self, drawn: Sequence[Callable[[], Insn]], odds: np.ndarray) -> list[Insn]:
        """A recipe for one of the wanted bins, or any instruction."""
        if self.wanted and self.chance(0.6):
            group, bin_name = self.wanted[int(self.rng.integers(len(self.wanted)))]
            return self.recipe(group, bin_name)
        return super().draw(drawn, odds)

    def extra_tokens(self, insns: list[Insn]) -> list[Insn]:
        """Many tokens, or as few as other programs have."""
        asked = any(group in ("tokens", "waits") for group, _ in self.wanted)
        density = self.rng.choice([0.2, 0.6, 0.9] if asked else [0.0, 0.2, 0.6])
        return _with_tokens(super().extra_tokens(insns), self.params, density, self.rng)

    # ---- recipes ----

    def recipe(self, group: str, bin_name: str) -> list[Insn]:
        """Instructions that hit a bin, or may."""
        match group, *bin_name.split():
            case "fields", opcode, field, end:
                return self.corner(Opcode[opcode.upper()], field, end)
            case "numbers", "gemm", *_:
                return self.large_sums()
            case "numbers", "vector", post, "least", *_:
                return self.largest_product(post.rstrip(":"))
            case "numbers", "vector", op, "wraps":
                return [self.large_results(op)]
            case "dram", "store", "rows", *_:
                return [self.store_of_rows()]
            case "hazards", "waw", "uop:", *_:
                first, *_ = loaded = self.last_uops() or self.search("load", ("kinds", "load"))
                return [first, *loaded]
            case "overlap", "the", *_:
                return self.many_loads()
            case "distances", "gemm", *_, distance:
                return self.far_sums(int(distance))
            case "distances", "vector", *_, distance:
                return [self.far_reads(int(distance))]
            case "padding", "uop", side:
                return self.padded_uops(side)
            case "entries", "gemm", _, "acc" | "inp" | "wgt", "last":
                return self.last_entries()
            case ("entries", _, _, "uop", "last") | ("hazards", _, "uop:", *_):
                return self.last_uops()
            case _, opcode, *_:
                return self.search(opcode, (group, bin_name))
        return []

    def any_of(self, opcode: str) -> Insn | None:
        """A random instruction that loads no micro-ops; None for what is no opcode."""
        if opcode == "load":
            memories = [memory for memory in LOADABLE if memory != "uop"]
            return self.load(memories[int(self.rng.integers(len(memories)))])
        known = opcode in {name(code) for code in Opcode}
        return getattr(self, opcode)() if known else None

    def search(self, opcode: str, bin_: Bin) -> list[Insn]:
        """An instruction that hits a bin by itself, or else any one."""
        insn = None
        for _ in range(TRIES):
            insn = self.any_of(opcode)
            if insn is None or bin_ in still(insn, self.params):
                break
        return [] if insn is None else [insn]

    def corner(self, opcode: Opcode, field: str, end: str) -> list[Insn]:
        """An instruction with a field at an end of its range; as little as possible of it changed,
        so that it stays legal.
        """
        if (opcode, field, end) == (Opcode.GEMM, "uop_count", "most"):
            return self.all_uops()
        ends = extremes(opcode, self.params)
        value = ends[field][end == "most"]
        for _ in range(TRIES):
            insn = self.any_of(name(opcode))
            assert insn is not None
            if opcode is Opcode.LOAD and end == "most":
                insn = replace(insn, memory=max(("inp", "wgt"), key=self.params.depth), widen=0)
            plain = {other: least for other, (least, _) in ends.items()}
            plain |= {
                other: 0 for other in field_values(insn) if other.endswith(("base", "stride"))
            }
            rows = {"y_size": 1} if "y_size" in ends else {}
            for changes in ({}, plain, plain | rows):
                made = self._changed(insn, changes | {field: value})
                if made is not None:
                    return [made]
        return []

    def _changed(self, insn: Insn, changes: dict[str, int]) -> Insn | None:
        """An instruction with other values of fields, if it is legal and stays in its memories."""
        params, values = self.params, field_values(insn) | changes
        start, end = self.read_span
        if isinstance(insn, Load | Store):
            values["dram_addr"] = start
        word = pack(layout(insn.opcode, params), values)
        made = decode(word.to_bytes(params.insn_bytes, "little"), params)
        if fault(made, params) is not None:
            return None
        if isinstance(made, Gemm | Vector) and made.iterations > MOST_ITERATIONS:
            return None
        match made:
            case Load() | Store():
                size = made.x_size * (
                    made.dram_entry_bytes(params) if isinstance(made, Load)
                    else params.entry_bytes("out")
                )  # fmt: skip
                rows = dram_rows(made)
                return made if not rows.size or rows.max() + size <= end else None
            case Gemm():
                uops = next((u for b, u in self.uops if b == made.uop_begin), [])[: made.uop_count]
                known = len(uops) == made.uop_count
                return made if known and self._fits(made, uops) else None
        return made

    def _fits(self, insn: Gemm, uops: list[Uop]) -> bool:
        """Whether all iterations stay inside the memories."""
        return all(
            max(getattr(uop, memory) for uop in uops)
            + (insn.outer - 1) * getattr(insn, f"{memory}_outer")
            + (insn.inner - 1) * getattr(insn, f"{memory}_inner")
            < self.params.depth(memory)
            for memory in ("acc", "inp", "wgt")
        )

    def room(self, uops: int) -> bool:
        """Whether that many micro-ops fit into their part of the constants; the memory is filled
        from its beginning if they do not fit behind the others.
        """
        size = self.params.entry_bytes("uop")
        bytes_ = uops * size + 2 * max(size, self.params.bus_bytes)
        if uops > self.params.uop_depth or self.free + bytes_ > CONSTANT_BYTES // 2:
            return False
        if self.uop_end + uops > self.params.uop_depth:
            self.uop_end, self.uops = 0, []
        return True

    def all_uops(self) -> list[Insn]:
        """A whole memory of micro-ops, run by one instruction."""
        depth = self.params.uop_depth
        if not self.room(depth):
            return []
        self.uop_end, self.uops = 0, []
        load = self.place_uops([self.uop(8) for _ in range(depth)])
        return [load, Gemm(uop_begin=0, uop_count=depth)]

    def last_uops(self) -> list[Insn]:
        """Micro-ops in the last places, which lie there from now on, and their run."""
        count, depth = min(3, self.params.uop_depth), self.params.uop_depth
        if not self.room(count):
            return []
        self.uops = [(b, u) for b, u in self.uops if b + len(u) <= depth - count]
        self.uop_end = depth - count
        load = self.place_uops([self.uop(2) for _ in range(count)])
        return [load, Gemm(uop_begin=load.base, uop_count=count, init=int(self.chance(0.5)))]

    def padded_uops(self, side: str) -> list[Insn]:
        """Micro-ops with padding, whose bytes of 0 are micro-ops, too, on one side."""
        if not self.room(2):
            return []
        load = self.place_uops([self.uop(2)])
        begin, (loaded,) = self.uops.pop()
        zero = Uop(acc=0, inp=0, wgt=0)
        uops = [zero, loaded] if side in ("top", "left") else [loaded, zero]
        self.uops.append((begin, uops))
        self.uop_end += 1
        return [replace(load, **{f"pad_{side}": 1}), Gemm(uop_begin=begin, uop_count=2)]

    def last_entries(self) -> list[Insn]:
        """Sums in the last accumulator of the last operands."""
        if not self.room(1):
            return []
        depths = {m: self.params.depth(m) - 1 for m in ("acc", "inp", "wgt")}
        load = self.place_uops([Uop(**depths)])
        return [load, Gemm(uop_begin=load.base, uop_count=1, outer=2)]

    def large_sums(self) -> list[Insn]:
        """A sum of the largest products that leaves 32 bits."""
        if not self.room(1):
            return []
        params = self.params
        uops = self.place_uops([Uop(acc=0, inp=0, wgt=0)])
        operands = [
            Load(memory=m, base=0, dram_addr=0, x_size=1, y_size=0, pad_top=1, pad_value=INT8_MIN)
            for m in ("inp", "wgt")
        ]
        steps = isqrt((1 << 31) // (params.block_in * INT8_MIN * INT8_MIN)) + 1
        return [
            uops, *operands, Gemm(uop_begin=uops.base, uop_count=1, outer=steps, inner=steps)
        ]  # fmt: skip

    def largest_product(self, post: str) -> list[Insn]:
        """A post-operation on the least sum and the least multiplier."""
        params = self.params
        size = params.entry_bytes("par")
        unit = max(size, params.bus_bytes)
        address = self.free + -self.free % unit
        if address + 3 * size > CONSTANT_BYTES // 2:
            return []
        self.free = address + 3 * size
        rows = np.zeros((3, params.block), "<i4")
        rows[1] = INT32_MIN
        self.constants[address : self.free] = rows.reshape(-1).view(np.uint8)
        return [
            Load(memory="par", base=0, dram_addr=address, x_size=3),
            Param(par_base=0),
            Vector(op="min", src0="inp", src1="imm", dst="out", post=post, imm=INT32_MIN),
        ]

    def large_results(self, op: str) -> Vector:
        """An operator on an immediate at an end of its range, or of many bits."""
        imm = int(self.rng.choice([INT32_MIN, INT32_MAX, 30]))
        return Vector(op=op, src0="inp", src1="imm", dst="out", imm=imm, src0_base=self.below(8))

    def store_of_rows(self) -> Store:
        """Two rows of two entries, any number of entries apart."""
        size = self.params.entry_bytes("out")
        unit = min(size, self.params.bus_bytes)
        address = self.written_span[0] + unit * self.below(1000)
        return Store(
            base=self.below(4), dram_addr=address, x_size=2, y_size=2,
            y_stride=int(self.rng.choice([0, unit, 2 * size, 3 * size])),
        )  # fmt: skip

    def far_sums(self, distance: int) -> list[Insn]:
        """Sums that are added to after so many iterations."""
        if not self.room(distance):
            return []
        load = self.place_uops([Uop(acc=n, inp=n, wgt=n) for n in range(distance)])
        return [load, Gemm(uop_begin=load.base, uop_count=distance, outer=3)]

    def far_reads(self, distance: int) -> Insn:
        """A result of tmp that is read that many iterations later."""
        return Vector(
            op="add", src0="tmp", src1="imm", dst="tmp", imm=3, reduce=1,
            extents=(1, 1, 2, distance),
        )  # fmt: skip

    def many_loads(self) -> list[Insn]:
        """More loads than can be in flight, behind one that waits for memory."""
        first = self.load("inp")
        short = Load(memory="inp", base=self.params.inp_depth - 1, dram_addr=0, x_size=1,
                     y_size=0, pad_top=1, pad_value=self.below(255) - 128)  # fmt: skip
        return [first, *[short] * (self.params.loads_in_flight + 2)]


def _with_tokens(
    insns: list[Insn], params: HwParams, density: float, rng: np.random.Generator
) -> list[Insn]:
    """More tokens from earlier instructions to later ones. The n-th pop takes the token of the n-th
    push, so a pair around another would take that one's token away; such pairs are left out.
    """
    masks = [[int(insn.pop), int(insn.push)] for insn in insns]
    for giver in Unit:
        for taker in Unit:
            if giver == taker:
                continue
            pushes = [i for i, n in enumerate(insns) if n.unit == giver]
            given = [i for i in pushes if masks[i][1] >> taker & 1]
            taken = [j for j, n in enumerate(insns) if n.unit == taker and masks[j][0] >> giver & 1]
            for index, insn in enumerate(insns):
                free = [i for i in pushes if i < index and i not in given]
                if insn.unit != taker or index in taken or not free or rng.random() >= density:
                    continue
                source = free[-1]
                around = any(
                    source < i and j < index for i, j in zip(given, taken, strict=True)
                )  # fmt: skip
                if not around and len(given) < (1 << params.token_bits) - 1:
                    given, taken = sorted([*given, source]), sorted([*taken, index])
            for i in given:
                masks[i][1] |= 1 << taker
            for j in taken:
                masks[j][0] |= 1 << giver
    return [
        replace(insn, pop=Units(pop), push=Units(push))
        for insn, (pop, push) in zip(insns, masks, strict=True)
    ]
