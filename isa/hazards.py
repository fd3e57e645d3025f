"""The static checker's memory half compares every access with the last ones to the same entries.

Two accesses of different units to the same scratchpad entry or the same four bytes of DRAM, at
least one of them a write, are safe when tokens force the first (in program order) to end before the
second starts; ``order.py`` knows that. Every scratchpad has one writer and only *store* writes
DRAM, so write after write is always in order.
"""

from __future__ import annotations

import numpy as np

from .encoding import uop_layout
from .findings import Finding
from .insn import Gemm, Insn, Load, Vector
from .native import Ints, Shorts, Table, native
from .opcodes import READERS, WRITER, Opcode, Unit
from .order import Order
from .params import MEMORIES
from .program import Program
from .steps import (
    ACTION,
    COUNT,
    DRAM,
    EXTENTS,
    FIRST,
    GRANULE_BYTES,
    INSN,
    LOAD_UOPS,
    MICRO_OPS,
    NO_PARAM,
    OPERAND,
    OUTSIDE,
    PROGRAM,
    READ,
    SPACE,
    SPACES,
    STRIDES,
    WRITE,
    list_entries,
    span,
    steps_of,
)

#: A step that stops for Python gives its number times this, plus the stage that it is in.
_STAGES = 4


def memory_findings(
    program: Program, order: Order, dram: np.ndarray | None = None, limit: int = 100
) -> list[Finding]:
    """Find hazards, reads of entries that nothing has written, and addresses out of range. The
    search stops after the instruction that brings the findings to ``limit``. Instructions must be
    legal; those that never start are left out. ``dram`` as for :func:`~.check.check`.
    """
    return _Walk(program, order, dram, limit).run()


@native
def _walk(
    steps: Table, step: int, stage: int, last: int, clocks: Table, units: Ints, position: Ints,
    offsets: Ints, roles: Table, written: Shorts, read: Shorts, defined: Shorts, uops: Table,
    known: Ints, entries: Ints,
) -> int:  # fmt: skip
    """Take steps in order until one needs Python's attention: -1 if none before ``last`` does, else
    the step and its stage (``_STAGES``).

    Parameters
    ----------
    step, stage : where to begin
    offsets : the first entry of each space in ``written``, and behind all of them their number
    roles : int64 [spaces, 3], the writer of each space, and its readers or -1
    written, read : who last wrote and read each entry: 1 + the instruction's position, 0 for never;
        ``read`` for the first reader of all entries, then for the second
    defined : whether each granule of DRAM has contents; empty where that is unknown
    uops, known : the fields of each micro-op, and whether they are known
    entries : workspace
    """
    total = offsets[len(offsets) - 1]
    while step < last:
        action = steps[step, ACTION]
        if action > MICRO_OPS:
            if stage == 0:
                return step * _STAGES
            step += 1
            stage = 0
            continue
        insn, space = steps[step, INSN], steps[step, SPACE]
        offset, mark = offsets[space], position[insn] + 1
        if action == MICRO_OPS:
            if stage == 0:
                for u in range(steps[step, COUNT]):
                    if known[steps[step, FIRST] + u] == 0:
                        return step * _STAGES
            count = list_entries(steps, step, uops, entries)
            for i in range(count):
                if entries[i] >= offsets[space + 1] - offset:
                    return step * _STAGES + 1
            step += 1
            stage = 0
            continue
        count = list_entries(steps, step, uops, entries)
        writer = roles[space, 0]
        if action == READ:
            if stage == 0:
                for i in range(count):
                    if space == DRAM:
                        if len(defined) > 0 and defined[entries[i]] == 0:
                            return step * _STAGES
                    elif written[offset + entries[i]] == 0:
                        return step * _STAGES
            if units[insn] != writer:
                if stage <= 1:
                    for i in range(count):
                        if written[offset + entries[i]] > clocks[insn, writer]:
                            return step * _STAGES + 1
                begin = offset if units[insn] == roles[space, 1] else total + offset
                for i in range(count):
                    read[begin + entries[i]] = mark
        else:
            if stage == 0 and steps[step, OPERAND] >= 0:
                for i in range(count):
                    if written[offset + entries[i]] == 0:
                        return step * _STAGES
            for reader in range(2):
                unit = roles[space, 1 + reader]
                if unit >= 0 and stage <= 1 + reader:
                    for i in range(count):
                        if read[reader * total + offset + entries[i]] > clocks[insn, unit]:
                            return step * _STAGES + 1 + reader
            for i in range(count):
                written[offset + entries[i]] = mark
            if space == DRAM and len(defined) > 0:
                for i in range(count):
                    defined[entries[i]] = 1
        step += 1
        stage = 0
    return -1


# ---- what is known of memories -------------------------------------------------------------------


class _Space:
    """One scratchpad, or DRAM in granules: who last wrote and who last read each entry.

    Entries hold 1 + the position of the instruction among those of its unit; 0 means never.
    """

    def __init__(self, name: str, written: np.ndarray, read: dict[Unit, np.ndarray]) -> None:
        self.name = name
        self.written = written
        self.read = read

    def place(self, entries: np.ndarray) -> str:
        """Entries as findings name them: their range, and their number if they do not fill it."""
        found = np.unique(entries)
        first, last = int(found[0]), int(found[-1])
        scale = GRANULE_BYTES if self.name == "dram" else 1
        gaps = f" ({found.size * scale} of them)" if found.size <= last - first else ""
        if self.name == "dram":
            return f"dram bytes {first * scale:#x}..{(last + 1) * scale - 1:#x}{gaps}"
        return f"{self.name}[{first}]" if first == last else f"{self.name}[{first}..{last}]{gaps}"


class _Memories:
    """All that is known of them during the walk."""

    def __init__(self, program: Program, dram_bytes: int) -> None:
        params = program.params
        granules = dram_bytes // GRANULE_BYTES
        sizes = [*(params.depth(name) for name in MEMORIES), granules]
        writers = {name: WRITER.get(name, Unit.STORE) for name in SPACES}
        readers = {
            name: [unit for unit in READERS.get(name, (Unit.LOAD,)) if unit != writers[name]]
            for name in SPACES
        }
        self.offsets = np.cumsum([0, *sizes])
        self.roles = np.full((len(SPACES), 3), -1)
        total = int(self.offsets[-1])
        self.written, self.read = np.zeros(total, np.int32), np.zeros(2 * total, np.int32)
        self.spaces = []
        for name, number in SPACES.items():
            first, end = self.offsets[number : number + 2].tolist()
            mine = readers[name]
            self.roles[number, : 1 + len(mine)] = writers[name], *mine
            read = {u: self.read[k * total + first : k * total + end] for k, u in enumerate(mine)}
            self.spaces.append(_Space(name, self.written[first:end], read))
        defined = _defined(program, granules)
        self.defined = np.zeros(0, np.int32) if defined is None else defined.astype(np.int32)
        self.uop_fields = uop_layout(params)
        self.uops = np.zeros((params.uop_depth, len(self.uop_fields)), np.int64)
        self.uops_known = np.ones(params.uop_depth, np.int64)

    def load_uops(self, base: int, words: np.ndarray, known: bool) -> None:
        """Micro-ops from their words in DRAM, unsigned [n]."""
        end, lsb = base + len(words), 0
        self.uops_known[base:end] = known
        words = words.astype(np.int64)
        for column, field in enumerate(self.uop_fields):
            self.uops[base:end, column] = words >> lsb & ((1 << field.bits) - 1)
            lsb += field.bits


# ---- the walk ------------------------------------------------------------------------------------


class _Walk:
    """Takes the instructions that start in program order and compares each access with the last
    ones to the same entries. Machine code takes the steps; where something may be wrong, Python
    looks at it and says what.
    """

    def __init__(self, program: Program, order: Order, dram: np.ndarray | None, limit: int) -> None:
        self.program = program
        self.params = program.params
        self.order = order
        self.limit = limit
        self.findings: list[Finding] = []
        self.contents = program.dram_image() if dram is None else dram
        self.memories = _Memories(program, len(self.contents))
        starting = order.position < np.array(order.started)[order.units]
        first_set = {}
        for opcode in (Opcode.PARAM, Opcode.TABLE):
            setting = np.flatnonzero(starting & (program.table.opcodes == opcode))
            first_set[opcode] = int(setting[0]) if setting.size else len(program.insns)
        granules = len(self.memories.spaces[DRAM].written)
        self.steps = steps_of(program, starting, granules, first_set)
        sizes = self.steps[:, EXTENTS:STRIDES].prod(axis=1)
        sizes *= np.where(self.steps[:, OPERAND] >= 0, self.steps[:, COUNT], 1)
        self.entries = np.zeros(int(sizes.max(initial=0)), np.int64)
        self.index = 0
        self.insn: Insn

    def run(self) -> list[Finding]:
        """The findings."""
        memories, step, stage, last = self.memories, 0, 0, len(self.steps)
        while True:
            stopped = _walk(
                self.steps, step, stage, last, self.order.clocks, self.order.units,
                self.order.position, memories.offsets, memories.roles, memories.written,
                memories.read, memories.defined, memories.uops, memories.uops_known, self.entries,
            )  # fmt: skip
            if stopped < 0:
                return self.findings
            step, stage = divmod(stopped, _STAGES)
            self.index = int(self.steps[step, INSN])
            self.insn = self.program.insns[self.index]
            step, stage = self._look(step, stage)
            if len(self.findings) >= self.limit:
                last = self._next(self.index)  # of this instruction, all is found

    def _next(self, index: int) -> int:
        """The first step behind those of an instruction."""
        return int(np.searchsorted(self.steps[:, INSN], index, "right"))

    def _find(self, kind: str, detail: str) -> None:
        self.findings.append(Finding.at(kind, self.index, self.insn, detail))

    def _look(self, step: int, stage: int) -> tuple[int, int]:
        """Look at a step that may be wrong. Returns where to go on."""
        space, insn = self.memories.spaces[self.steps[step, SPACE]], self.insn
        action = self.steps[step, ACTION]
        if action == READ:
            self._read(step, stage, space)
        elif action == WRITE and stage == 0:
            assert isinstance(insn, Gemm)
            self._accumulates(step, insn)
        elif action == WRITE:
            reader = Unit(self.memories.roles[self.steps[step, SPACE], stage])
            self._ordered("war", space, reader, space.read[reader], self._entries(step))
        elif action == MICRO_OPS:
            self._micro_ops(step, stage, space)
            return self._next(self.index), 0
        elif action == LOAD_UOPS:
            assert isinstance(insn, Load)
            self._load_uops(insn, step - 1 if insn.y_size else None)
        elif action == OUTSIDE:
            last, size = int(self._entries(step).max() + 1) * GRANULE_BYTES, len(self.contents)
            self._find("dram", f"bytes up to {last:#x} of DRAM with {size:#x} bytes")
        elif action == PROGRAM:
            self._spares_program(step)
        elif action == NO_PARAM:
            self._find("uninitialised", "requantises before any PARAM instruction")
        else:
            self._find("uninitialised", "looks up before any TABLE instruction")
        return step, stage + 1

    def _entries(self, step: int) -> np.ndarray:
        """Every entry of a step, int64 [n]."""
        count = list_entries(self.steps, step, self.memories.uops, self.entries)
        return self.entries[:count]

    # ---- accesses ----

    def _read(self, step: int, stage: int, space: _Space) -> None:
        entries = self._entries(step)
        if stage == 1:
            writer = Unit(self.memories.roles[SPACES[space.name], 0])
            self._ordered("raw", space, writer, space.written, entries)
            return
        insn = self.insn
        if isinstance(insn, Vector) and space.name == insn.dst:
            name = "src0" if step + 2 < self._next(self.index) or insn.src1 == "imm" else "src1"
            if self._feeds_itself(insn, name):
                return
        present = (self.memories.defined if space.name == "dram" else space.written)[entries]
        place = space.place(entries[present == 0])
        self._find("uninitialised", f"{place} is read before anything writes it")

    def _ordered(
        self, kind: str, space: _Space, other: Unit, last: np.ndarray, entries: np.ndarray
    ) -> None:
        """Say that the last accesses by ``other`` have not certainly ended."""
        positions = last[entries]
        at = positions[int(np.argmax(positions > self.order.clocks[self.index, other]))]
        culprit = int(self.order.by_unit[other][int(at) - 1])
        did, does = ("writes", "reads") if kind == "raw" else ("reads", "writes")
        mine = self.insn.unit.name.lower()
        self._find(
            kind,
            f"{space.place(entries[positions == at])}: {other.name.lower()} "
            f"{self.program.where(culprit)} {did} it, "
            f"{mine} {self.program.where(self.index)} {does} it, and no token orders them",
        )

    # ---- instructions ----

    def _micro_ops(self, step: int, stage: int, space: _Space) -> None:
        if stage == 0:
            self._find("unknown", "its micro-ops come from DRAM that the program writes")
            return
        last, depth = int(self._entries(step).max()), self.params.depth(space.name)
        self._find("address", f"micro-ops reach {space.name} entry {last}, depth {depth}")

    def _load_uops(self, insn: Load, source: int | None) -> None:
        size = self.params.entry_bytes("uop")
        pad = np.full(size, insn.pad_value, np.int8).view(f"<u{size}")[0]
        words = np.full((insn.z_size, insn.rows, insn.row_entries), pad, f"<u{size}")
        known = True
        if source is not None:
            shape = (insn.z_size, insn.y_size, insn.x_size * size)
            strides = (insn.z_stride, insn.y_stride, 1)
            data = np.ndarray(shape, np.uint8, self.contents, insn.dram_addr, strides)
            rows = slice(insn.pad_top, insn.pad_top + insn.y_size)
            columns = slice(insn.pad_left, insn.pad_left + insn.x_size)
            words[:, rows, columns] = np.ascontiguousarray(data).view(words.dtype)
            stored = self.memories.spaces[DRAM].written
            known = not stored[self._entries(source)].any()
        self.memories.load_uops(insn.base, words.reshape(-1), known)

    def _accumulates(self, step: int, insn: Gemm) -> None:
        """Accumulating needs an earlier write, by another instruction or by an earlier micro-op."""
        entries = self._entries(step)
        fresh = self.memories.spaces[SPACES["acc"]].written[entries] == 0
        firsts = self.memories.uops[insn.uop_begin : insn.uop_begin + insn.uop_count, -1]
        overwrites = np.tile(firsts.astype(bool) & bool(insn.init), insn.outer * insn.inner)
        touched, when = np.unique(entries[fresh], return_index=True)
        bad = ~overwrites[fresh][when]
        if bad.any():
            entry = int(touched[np.argmax(bad)])
            self._find("uninitialised", f"acc[{entry}] is added to before anything writes it")

    def _feeds_itself(self, insn: Vector, name: str) -> bool:
        """Whether every entry of tmp that nothing else has written is written by an earlier
        iteration of the instruction itself.
        """
        base, strides = getattr(insn, f"{name}_base"), getattr(insn, f"{name}_strides")
        reads = _every_entry(base, insn.extents, strides)
        fresh = self.memories.spaces[SPACES["tmp"]].written[reads] == 0
        writes = _every_entry(insn.dst_base, insn.written_extents, insn.dst_strides)
        fold = int(np.prod(insn.extents[4 - insn.reduce :]))
        # The iterations that write: those which end a result, but for a window's first ones.
        row = insn.extents[3 - insn.reduce] if insn.reduce < 4 else 1
        ends = np.arange(fold - 1, insn.iterations, fold)
        ends = ends[ends // fold % row >= insn.unwritten]
        never = insn.iterations
        written = np.full(self.params.tmp_depth, never)
        np.minimum.at(written, writes[::fold], ends)
        return bool((written[reads[fresh]] < np.flatnonzero(fresh)).all())

    def _spares_program(self, step: int) -> None:
        start, end = span(self.program)
        unit, entries = GRANULE_BYTES, self._entries(step)
        if ((entries >= start // unit) & (entries < end // unit)).any():
            self._find("program", f"stores into the instructions at {start:#x}")


def _every_entry(base: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The entry of every iteration of a VECTOR instruction, int64 [n]."""
    steps = (i * stride for i, stride in zip(np.indices(extents), strides, strict=True))
    return base + sum(steps, start=np.zeros(extents, np.int64)).reshape(-1)


def _defined(program: Program, granules: int) -> np.ndarray | None:
    """Granules with contents at the start: bool, or None where the program does not say."""
    if "inputs" not in program.meta:
        return None
    defined = np.zeros(granules, bool)
    spans = [(addr, addr + len(data)) for addr, data in program.image.items()]
    spans += [(r["address"], r["address"] + r["bytes"]) for r in program.meta["inputs"]]
    for start, end in spans:
        defined[start // GRANULE_BYTES : -(-end // GRANULE_BYTES)] = True
    return defined
