"""What a run was measured to do, over time: instructions, memory on chip, tensors in DRAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..isa.insn import Load, Store
from ..isa.native import Ints, Table, native
from ..isa.params import MEMORIES
from ..isa.program import Program
from ..isa.runs import Footprints
from ..runtime.result import SimResult

#: Time is cut into at most so many cells when memory on chip is counted.
CELLS = 1 << 18


@dataclass(frozen=True)
class Run:
    """The programs of a model, in the order of running, and how they ran, all as one."""

    programs: Sequence[Program]
    timing: SimResult

    @property
    def has_times(self) -> bool:
        """Whether every instruction's start and end are known; a board only counts cycles."""
        return bool(len(self.timing.ends))

    def parts(self) -> Iterator[tuple[Program, np.ndarray, np.ndarray]]:
        """Each program, with starts and ends of its instructions (int64, in cycles of the run)."""
        done = 0
        for program in self.programs:
            mine = slice(done, done + len(program.insns))
            done = mine.stop
            yield program, np.asarray(self.timing.starts[mine]), np.asarray(self.timing.ends[mine])


# ---- instructions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instructions:
    """All instructions of a run. Arrays are int64 [instructions]: the unit, the layer and the text
    (numbers of ``layers`` and ``texts``), start and end, both included.
    """

    layers: list[str]
    texts: list[str]
    unit: np.ndarray
    layer: np.ndarray
    text: np.ndarray
    start: np.ndarray
    end: np.ndarray


def instructions(run: Run) -> Instructions:
    """The instructions of a run, each with the layer that it is for, and what it does there."""
    layers: dict[str, int] = {}
    texts: dict[str, int] = {}
    rows = []
    for program, starts, ends in run.parts():
        notes = program.notes or [None] * len(program.insns)
        for insn, note, start, end in zip(program.insns, notes, starts, ends, strict=True):
            layer = "" if note is None else note.layer
            words = insn.opcode.name.lower()
            if note is not None:
                words += f", {note.stage}" + (f", {note.tensor}" if note.tensor else "")
            numbers = layers.setdefault(layer, len(layers)), texts.setdefault(words, len(texts))
            rows.append((insn.unit, *numbers, start, end))
    table = np.array(rows, np.int64).reshape(-1, 5).T
    return Instructions(list(layers), list(texts), *table)


@dataclass(frozen=True)
class Joined:
    """Slices of a timeline, int64 [slices] each. A slice has instructions of one unit and layer
    between which at most ``gap`` cycles pass; ``active`` are those cycles of it in which one runs.
    ``text`` is that of its first instruction. They are sorted by unit and start.
    """

    gap: int
    unit: np.ndarray
    layer: np.ndarray
    text: np.ndarray
    start: np.ndarray
    cycles: np.ndarray
    count: np.ndarray
    active: np.ndarray


def joined(found: Instructions, most: int) -> Joined:
    """At most ``most`` slices, as near to single instructions as that allows; at least one for each
    unit and layer.
    """
    begun = found.start >= 0
    order = np.lexsort((found.start, found.layer, found.unit, ~begun))[: int(begun.sum())]
    start, end = found.start[order], found.end[order]
    group = found.unit[order] * (found.layer.max(initial=0) + 1) + found.layer[order]
    fresh = np.r_[True, group[1:] != group[:-1]][: len(order)]
    until = _latest_ends(end, fresh)
    distance = np.r_[0, start[1:] - until[:-1] - 1][: len(order)]
    counted = np.where(fresh, start - 1, np.maximum(np.r_[0, until[:-1]][: len(order)], start - 1))
    active = np.maximum(0, end - counted)  # cycles that no earlier instruction has covered
    gap, first = -1, np.ones(len(order), bool)  # nothing is joined
    while first.sum() > most and gap <= distance.max():
        gap = max(gap + 1, 2 * gap)
        first = fresh | (distance > gap)
    if gap < 0:
        active = end - start + 1
    heads = np.flatnonzero(first)
    if not len(heads):
        return Joined(gap, *(np.zeros(0, np.int64),) * 7)
    table = np.stack([
        found.unit[order][heads], found.layer[order][heads], found.text[order][heads],
        start[heads], np.maximum.reduceat(end, heads) - start[heads] + 1,
        np.diff(np.r_[heads, len(order)]), np.add.reduceat(active, heads),
    ])  # fmt: skip
    by_unit = np.lexsort((start[heads], table[0]))
    return Joined(gap, *np.ascontiguousarray(table[:, by_unit]))


def _latest_ends(end: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """The latest end so far in each group, whose first element is ``fresh``."""
    shift = (np.cumsum(fresh) - 1) * (int(end.max(initial=0)) + 1)
    return np.maximum.accumulate(end + shift) - shift


def lanes(slices: Joined) -> np.ndarray:
    """For each slice the first lane of its unit that is free when it starts, int64 [slices]."""
    found = np.zeros(len(slices.start), np.int64)
    _find_lanes(
        slices.unit, slices.start,
        slices.start + slices.cycles, np.zeros(len(found) + 1, np.int64), found,
    )  # fmt: skip
    return found


@native
def _find_lanes(units: Ints, starts: Ints, ends: Ints, free: Ints, found: Ints) -> int:
    """``found`` gets the lanes of slices; ``free`` has, for each lane, when it is free."""
    used = 0
    unit = -1
    for this in range(len(units)):
        if units[this] != unit:
            unit = units[this]
            used = 0
        lane = 0
        while lane < used and free[lane] > starts[this]:
            lane += 1
        if lane == used:
            used += 1
        free[lane] = ends[this]
        found[this] = lane
    return 0


# ---- memory on chip ------------------------------------------------------------------------------


def occupancy(run: Run, most: int) -> dict[str, np.ndarray]:
    """How many entries of each scratchpad are held: the most in each of at most ``most`` pieces of
    the run, float64 [pieces]. The key is the scratchpad's name.

    An entry is held from the instruction that writes it to the last one that reads it. A sum in acc
    is held from its first product on.
    """
    shift = max(0, (run.timing.cycles // CELLS).bit_length())
    cells = (run.timing.cycles >> shift) + 2
    changes = np.zeros((len(MEMORIES), cells), np.int64)
    for program, starts, ends in run.parts():
        found = Footprints.of(program.table, program.image)
        order = np.argsort(starts, kind="stable")
        depths = found.sizes[: len(MEMORIES)]
        state = np.full((int(depths.sum()), 2), -1, np.int64)
        _count_held(
            order[starts[order] >= 0], starts >> shift, ends >> shift, found.bounds, found.spaces,
            found.writes, found.starts, found.runs, np.r_[0, np.cumsum(depths)], state, changes,
            MEMORIES.index("acc"),
        )  # fmt: skip
    held = np.cumsum(changes[:, :-1], axis=1)
    edges = np.unique(np.linspace(0, held.shape[1], most + 1).astype(int)[:-1])
    most_held = np.maximum.reduceat(held, edges, axis=1)
    return {name: most_held[number] for number, name in enumerate(MEMORIES)}


@native
def _count_held(
    order: Ints, starts: Ints, ends: Ints, bounds: Ints, spaces: Ints, writes: Ints,
    firsts: Ints, runs: Table, bases: Ints, state: Table, changes: Table, sums: int,
) -> int:  # fmt: skip
    """Add to ``changes`` by how many held entries a cell has more than the one before it.
    ``state`` has, for each entry, until when it was counted (-1: not written yet) and whether a
    write was the last access.
    """
    for place in range(len(order)):
        insn = order[place]
        for access in range(bounds[insn], bounds[insn + 1]):
            space = spaces[access]
            if space >= len(changes):
                continue  # DRAM
            for run in range(firsts[access], firsts[access + 1]):
                for step in range(runs[run, 1]):
                    entry = bases[space] + runs[run, 0] + step
                    if writes[access]:
                        if not (space == sums and state[entry, 1] == 1):
                            state[entry, 0] = max(state[entry, 0], starts[insn])
                        state[entry, 1] = 1
                    elif state[entry, 0] >= 0:
                        state[entry, 1] = 0
                        until = ends[insn] + 1
                        if until > state[entry, 0]:
                            changes[space, state[entry, 0]] += 1
                            changes[space, until] -= 1
                            state[entry, 0] = until
    return 0


# ---- DRAM ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """A tensor between operators as a program accesses it in DRAM: its bytes, from ``begin`` to
    ``end`` (not included), in the cycles from ``first`` to ``last``. Inputs of a program are there
    from its first cycle, outputs to its last.
    """

    name: str
    begin: int
    end: int
    first: int
    last: int
    read_bytes: int
    written_bytes: int


def tensors(run: Run) -> list[Tensor]:
    """The tensors of all programs, by when they are first accessed; constants left out."""
    found, begun = [], 0
    for program, starts, ends in run.parts():
        over = int(ends.max(initial=begun))
        found += _program_tensors(program, starts, ends, begun, over)
        begun = over + 1
    return sorted(found, key=lambda tensor: (tensor.first, tensor.begin))


def _program_tensors(
    program: Program, starts: np.ndarray, ends: np.ndarray, begun: int, over: int
) -> list[Tensor]:
    if not program.notes:
        return []
    names = program.meta["names"]
    constants = {constant["name"] for constant in names.get("constants", ())}
    given = {region["name"] for region in program.meta.get("inputs", ())}
    kept = {region["name"] for region in program.meta.get("outputs", ())}
    spans: dict[str, list[int]] = {}
    for insn, note, start, end in zip(
        program.insns, program.notes, starts.tolist(), ends.tolist(), strict=True
    ):
        if not isinstance(insn, Load | Store) or note.tensor in constants or not note.tensor:
            continue
        begin, stop, moved = _dram_span(insn, program)
        read, written = (moved, 0) if isinstance(insn, Load) else (0, moved)
        old = spans.get(note.tensor, [begin, stop, start, end, 0, 0])
        spans[note.tensor] = [
            min(old[0], begin), max(old[1], stop), min(old[2], start), max(old[3], end),
            old[4] + read, old[5] + written,
        ]  # fmt: skip
    for name, span in spans.items():
        span[2] = begun if name in given else span[2]
        span[3] = over if name in kept else span[3]
    return [Tensor(name, *span) for name, span in spans.items()]


def _dram_span(insn: Load | Store, program: Program) -> tuple[int, int, int]:
    """The first byte of DRAM that an instruction accesses, the one behind the last, and how many it
    moves.
    """
    size = insn.dram_entry_bytes(program.params) if isinstance(insn, Load) else (
        program.params.entry_bytes("out"))  # fmt: skip
    row = insn.x_size * size
    reach = (insn.z_size - 1) * insn.z_stride + (insn.y_size - 1) * insn.y_stride + row
    return insn.dram_addr, insn.dram_addr + reach, row * insn.y_size * insn.z_size
