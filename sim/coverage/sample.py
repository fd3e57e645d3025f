"""One run of a program to bins: what its instructions are, what they compute, and when they ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from ...isa.footprint import GRANULE_BYTES, Access, MicroOps, accesses, dram_rows
from ...isa.insn import Gemm, Insn, Load, Store, field_values
from ...isa.opcodes import READERS, Unit, Units
from ...isa.params import MEMORIES, HwParams
from ...isa.program import Program
from ...isa.reference import State, execute
from ..model.dma import PAGE_BYTES, cut_bursts
from . import numbers
from .bins import SIDES, choices, extremes, indexed, name
from .timeline import Timeline, Timing

#: Hits by group and bin.
Hits = Counter[tuple[str, str]]


def sample(program: Program, dram: np.ndarray, timing: Timing) -> Hits:
    """The bins that one run hits, each once for an instruction.

    Parameters
    ----------
    program : Program
        What ran.
    dram : uint8 array
        DRAM before the run; it is left as it is.
    timing : Timing
        When it ran. What has not ended is not counted.
    """
    hits: Hits = Counter()
    state = State(program.params, dram.copy())
    hazards = _Hazards(program, timing)
    for index, insn in enumerate(program.insns):
        if timing.ends[index] >= 0:
            found = accesses(insn, program.params, _LoadedUops(state))
            for group, hit in (
                ("kinds", kinds(insn)), ("pairs", pairs(insn)), ("tokens", tokens(insn)),
                ("fields", fields(insn, program.params)), ("padding", padding(insn)),
                ("dram", rows(insn, program.params)),
                ("entries", entries(insn, found, program.params)),
                ("hazards", hazards.sample(index, found)),
                ("numbers", numbers.wraps(insn, state)),
                ("distances", numbers.distances(insn, state)),
            ):  # fmt: skip
                hits.update((group, bin_name) for bin_name in set(hit))
        execute(insn, state)
    timeline = Timeline(program, timing)
    for group, hit in (
        ("waits", timeline.waits()), ("overlap", timeline.overlap()), ("stalls", timeline.stalls()),
    ):  # fmt: skip
        hits.update((group, bin_name) for bin_name in hit)
    return hits


def still(insn: Insn, params: HwParams) -> set[tuple[str, str]]:
    """The bins that an instruction hits by itself, whatever is in memory and whenever it runs."""
    found = {("kinds", b) for b in kinds(insn)} | {("pairs", b) for b in pairs(insn)}
    found |= {("fields", b) for b in fields(insn, params)}
    found |= {("padding", b) for b in padding(insn)} | {("dram", b) for b in rows(insn, params)}
    if not isinstance(insn, Gemm):
        reached = accesses(insn, params, _NoUops(params, {}))
        found |= {("entries", b) for b in entries(insn, reached, params)}
    return found


# ---- what an instruction is ----


def kinds(insn: Insn) -> Iterator[str]:
    """Opcode, and each selecting field."""
    opcode, values = insn.opcode, field_values(insn)
    yield name(opcode)
    for field, names in choices(opcode).items():
        yield f"{name(opcode)} {field}={names[values[field]]}"


def pairs(insn: Insn) -> Iterator[str]:
    """Two selecting fields together."""
    opcode, values = insn.opcode, field_values(insn)
    chosen = [f"{field}={names[values[field]]}" for field, names in choices(opcode).items()]
    yield from (f"{name(opcode)} {a} {b}" for a, b in combinations(chosen, 2))


def tokens(insn: Insn) -> Iterator[str]:
    """Both masks."""
    for mask in ("pop", "push"):
        yield f"{name(insn.opcode)} {mask} {_units(getattr(insn, mask))}"


def _units(mask: Units) -> str:
    return "+".join(name(unit) for unit in Unit if mask >> unit & 1) or "none"


def fields(insn: Insn, params: HwParams) -> Iterator[str]:
    """Fields at the ends of their ranges."""
    values = field_values(insn)
    for field, ends in extremes(insn.opcode, params).items():
        for end, value in zip(("least", "most"), ends, strict=True):
            if values[field] == value:
                yield f"{name(insn.opcode)} {field} {end}"


def padding(insn: Insn) -> Iterator[str]:
    """Padded sides."""
    if isinstance(insn, Load):
        padded = [side for side in SIDES if getattr(insn, f"pad_{side}")]
        yield f"sides {'+'.join(padded) or 'none'}"
        yield from (f"{insn.memory} {side}" for side in padded)


def rows(insn: Insn, params: HwParams) -> Iterator[str]:
    """How rows lie in DRAM."""
    match insn:
        case Load():
            size = insn.x_size * insn.dram_entry_bytes(params)
        case Store():
            size = insn.x_size * params.entry_bytes("out")
        case _:
            return
    found = set[str]()
    for offset in np.unique(dram_rows(insn) % PAGE_BYTES).tolist():
        found.update(_row(offset, size, params))
    if insn.y_size > 1:
        found.add(_relation(insn.y_stride, size))
    yield from (f"{name(insn.opcode)} {row}" for row in found)


def _row(offset: int, size: int, params: HwParams) -> Iterator[str]:
    bus, longest = params.bus_bytes, params.max_burst_beats
    bursts, end = cut_bursts(offset, size, bus, longest), offset + size
    at = offset // bus
    for number, beats in enumerate(bursts):
        at += beats
        if beats == 1:
            yield "burst of one beat"
        if beats == longest:
            yield "longest burst"
            if number + 1 < len(bursts) and at * bus % PAGE_BYTES:
                yield "cut at the longest burst"
    if end > PAGE_BYTES:
        yield "crosses a page"
    for where, place in (("begins", offset), ("ends", end)):
        if place % PAGE_BYTES == 0:
            yield f"{where} at a page"
        if place % bus:
            yield f"{where} inside a beat"


def _relation(stride: int, size: int) -> str:
    if stride == size:
        return "rows touch"
    return "rows apart" if stride > size else "rows overlap" if stride else "rows at one address"


# ---- what it reads and writes ----


class _LoadedUops(MicroOps):
    """The micro-ops that the reference has loaded."""

    def __init__(self, state: State) -> None:
        self.params, self.state = state.params, state

    def load(self, insn: Load) -> None:
        """The reference does it."""

    def fields(self, insn: Gemm) -> dict[str, np.ndarray]:
        """As :meth:`MicroOps.fields`."""
        return self.state.micro_ops(insn)


class _NoUops(MicroOps):
    """For what runs no micro-ops."""

    def load(self, insn: Load) -> None:
        """Nothing keeps them."""


def entries(insn: Insn, found: Sequence[Access], params: HwParams) -> Iterator[str]:
    """First and last entries of memories."""
    for access in found:
        if access.memory not in indexed(insn.opcode) or not access.entries.size:
            continue
        uses = ["writes" if access.write else "reads"]
        if access.write and isinstance(insn, Gemm) and not insn.init:
            uses.append("reads")  # it adds to what is there
        last = params.depth(access.memory) - 1
        ends = [(access.entries.min() == 0, "first"), (access.entries.max() == last, "last")]
        for use in uses:
            for reached, end in ends:
                if reached:
                    yield f"{name(insn.opcode)} {use} {access.memory} {end}"


class _Hazards:
    """The last write and the last reads of every entry of every memory, -1 for never."""

    def __init__(self, program: Program, timing: Timing) -> None:
        params = program.params
        self.insns, self.timing = program.insns, timing
        sizes = {m: params.depth(m) for m in MEMORIES}
        sizes["dram"] = program.dram_bytes // GRANULE_BYTES
        readers = READERS | {"dram": (Unit.LOAD,)}
        self.written = {m: np.full(size, -1) for m, size in sizes.items()}
        self.read = {m: {u: np.full(sizes[m], -1) for u in readers[m]} for m in sizes}

    def sample(self, index: int, found: Sequence[Access]) -> Iterator[str]:
        """The hazards of an instruction with earlier ones."""
        insn = self.insns[index]
        reads = [access for access in found if not access.write]
        writes = [access for access in found if access.write]
        if isinstance(insn, Gemm) and not insn.init:
            reads = [*reads, *writes]
        for access in reads:
            yield from self._of("raw", access, self.written[access.memory], index)
        for access in writes:
            yield from self._of("waw", access, self.written[access.memory], index)
            for read in self.read[access.memory].values():
                yield from self._of("war", access, read, index)
        for access in reads:
            self.read[access.memory][insn.unit][access.entries] = index
        for access in writes:
            self.written[access.memory][access.entries] = index

    def _of(self, kind: str, access: Access, last: np.ndarray, index: int) -> Iterator[str]:
        unit, start = self.insns[index].unit, self.timing.starts[index]
        for earlier in np.unique(last[access.entries]).tolist():
            if earlier < 0:
                continue
            other = self.insns[earlier].unit
            plain = f"{kind} {access.memory}: {name(other)}, {name(unit)}"
            yield plain
            end = self.timing.ends[earlier]
            if other == unit and start <= end:
                yield f"{plain}, in flight"
            if other != unit and start == end + 1:
                yield f"{plain}, at once"
