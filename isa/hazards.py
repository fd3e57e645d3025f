"""The static checker's memory half compares every access with the last ones to the same entries.

Two accesses of different units to the same scratchpad entry or the same four bytes of DRAM, at
least one of them a write, are safe when tokens force the first (in program order) to end before the
second starts; ``order.py`` knows that. Every scratchpad has one writer and only *store* writes
DRAM, so write after write is always in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .encoding import uop_layout
from .findings import Finding
from .insn import Gemm, Insn, Load, Param, Store, Vector
from .opcodes import READERS, WRITER, Unit
from .order import Clock, Order
from .params import MEMORIES, HwParams
from .program import Program

#: Every DRAM address and stride of a legal instruction is a multiple of this.
_GRANULE_BYTES = 4


def memory_findings(
    program: Program, order: Order, dram: np.ndarray | None = None, limit: int = 100
) -> list[Finding]:
    """Find hazards, reads of entries that nothing has written, and addresses out of range. The
    search stops after the instruction that brings the findings to ``limit``. Instructions must be
    legal; those that never start are left out. ``dram`` as for :func:`~.check.check`.
    """
    return _Walk(program, order, dram, limit).run()


# ---- where instructions read and write ----


@dataclass(frozen=True)
class _Box:
    """Entries base + sum(i_k * strides[k]) for 0 <= i_k < extents[k]."""

    base: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, base: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> _Box:
        """The box without the loops that do not move (extent 1 or stride 0)."""
        moving = [(n, s) for n, s in zip(extents, strides, strict=True) if n > 1 and s]
        return cls(base, tuple(n for n, _ in moving), tuple(s for _, s in moving))

    def view(self, array: np.ndarray) -> np.ndarray:
        """The elements of a one-dimensional array, as a view."""
        size = array.itemsize
        strides = tuple(s * size for s in self.strides)
        return np.ndarray(self.extents, array.dtype, array, self.base * size, strides)

    @property
    def last(self) -> int:
        """The highest entry."""
        return self.base + sum((n - 1) * s for n, s in zip(self.extents, self.strides, strict=True))

    def entries(self) -> np.ndarray:
        """Every entry, int64 of shape ``extents``."""
        return self.base + sum(
            (
                np.arange(n).reshape((-1,) + (1,) * (len(self.extents) - 1 - k)) * s
                for k, (n, s) in enumerate(zip(self.extents, self.strides, strict=True))
            ),
            start=np.zeros(self.extents, np.int64),
        )


#: A set of entries: affine, or an index array.
_Where = _Box | np.ndarray


def _get(array: np.ndarray, where: _Where) -> np.ndarray:
    return where.view(array) if isinstance(where, _Box) else array[where]


def _set(array: np.ndarray, where: _Where, value: int) -> None:
    if isinstance(where, _Box):
        where.view(array)[...] = value
    else:
        array[where] = value


def _entries(where: _Where) -> np.ndarray:
    return where.entries() if isinstance(where, _Box) else where


class _Space:
    """One scratchpad, or DRAM in granules: who last wrote and who last read each entry.

    Entries hold 1 + the position of the instruction among those of its unit; 0 means never.
    """

    def __init__(self, name: str, size: int, writer: Unit, readers: tuple[Unit, ...]) -> None:
        self.name = name
        self.writer = writer
        self.written = np.zeros(size, np.int32)
        self.read = {r: np.zeros(size, np.int32) for r in readers if r != writer}

    def place(self, entries: np.ndarray) -> str:
        """Entries as findings name them: their range, and their number if they do not fill it."""
        found = np.unique(entries)
        first, last = int(found[0]), int(found[-1])
        scale = _GRANULE_BYTES if self.name == "dram" else 1
        gaps = f" ({found.size * scale} of them)" if found.size <= last - first else ""
        if self.name == "dram":
            return f"dram bytes {first * scale:#x}..{(last + 1) * scale - 1:#x}{gaps}"
        return f"{self.name}[{first}]" if first == last else f"{self.name}[{first}..{last}]{gaps}"


class _Uops:
    """The micro-op memory as the program fills it."""

    def __init__(self, params: HwParams) -> None:
        self.fields = uop_layout(params)
        self.values = {f.name: np.zeros(params.uop_depth, np.int64) for f in self.fields}
        self.known = np.ones(params.uop_depth, bool)

    def load(self, base: int, words: np.ndarray, known: bool) -> None:
        """Micro-ops from their words in DRAM, unsigned [n]."""
        end, lsb = base + len(words), 0
        self.known[base:end] = known
        words = words.astype(np.int64)
        for field in self.fields:
            self.values[field.name][base:end] = words >> lsb & ((1 << field.bits) - 1)
            lsb += field.bits


# ---- the walk ----


class _Walk:
    """Takes the instructions that start in program order and compares each access with the last
    ones to the same entries.
    """

    def __init__(self, program: Program, order: Order, dram: np.ndarray | None, limit: int) -> None:
        self.program = program
        self.params = program.params
        self.order = order
        self.limit = limit
        self.findings: list[Finding] = []
        self.spaces = {m: _Space(m, self.params.depth(m), WRITER[m], READERS[m]) for m in MEMORIES}
        self.contents = program.dram_image() if dram is None else dram
        granules = len(self.contents) // _GRANULE_BYTES
        self.spaces["dram"] = _Space("dram", granules, Unit.STORE, (Unit.LOAD,))
        self.defined = _defined(program, granules)
        self.uops = _Uops(self.params)
        self.param_seen = False
        self.index = 0
        self.insn: Insn
        self.clock: Clock

    def run(self) -> list[Finding]:
        """The findings."""
        for index, insn in enumerate(self.program.insns):
            clock = self.order.clocks[index]
            if clock is None:
                continue
            self.index, self.insn, self.clock = index, insn, clock
            match insn:
                case Load():
                    self._load(insn)
                case Gemm():
                    self._gemm(insn)
                case Vector():
                    self._vector(insn)
                case Param():
                    self.param_seen = True
                    self._read("par", _Box.of(insn.par_base, (3,), (1,)))
                case Store():
                    self._store(insn)
            if len(self.findings) >= self.limit:
                break
        return self.findings

    def _find(self, kind: str, detail: str) -> None:
        self.findings.append(Finding.at(kind, self.index, self.insn, detail))

    # ---- accesses ----

    def _read(self, memory: str, where: _Where) -> None:
        space, unit = self.spaces[memory], self.insn.unit
        self._initialised(space, where)
        if unit == space.writer:
            return
        self._ordered("raw", space, space.writer, space.written, where)
        _set(space.read[unit], where, self.order.position[self.index] + 1)

    def _write(self, memory: str, where: _Where) -> None:
        space = self.spaces[memory]
        for reader, read in space.read.items():
            self._ordered("war", space, reader, read, where)
        _set(space.written, where, self.order.position[self.index] + 1)

    def _ordered(
        self, kind: str, space: _Space, other: Unit, last: np.ndarray, where: _Where
    ) -> None:
        """Report a hazard unless the last accesses by ``other`` have certainly ended."""
        positions = _get(last, where)
        if positions.max(initial=0) <= self.clock[other]:
            return
        at = positions.flat[int(np.argmax(positions > self.clock[other]))]
        culprit = self.order.by_unit[other][int(at) - 1]
        shared = _entries(where)[positions == at]
        did, does = ("writes", "reads") if kind == "raw" else ("reads", "writes")
        mine = self.insn.unit.name.lower()
        self._find(
            kind,
            f"{space.place(shared)}: {other.name.lower()} {self.program.where(culprit)} {did} it, "
            f"{mine} {self.program.where(self.index)} {does} it, and no token orders them",
        )

    def _initialised(self, space: _Space, where: _Where) -> None:
        if space.name == "dram":
            if self.defined is None:
                return
            present = _get(self.defined, where)
        else:
            present = _get(space.written, where)
        if not present.all():
            place = space.place(_entries(where)[present == 0])
            self._find("uninitialised", f"{place} is read before anything writes it")

    # ---- instructions ----

    def _dram_box(self, insn: Load | Store, entry_bytes: int) -> _Box | None:
        """The granules of an instruction; None, and a finding, if they leave DRAM."""
        unit = _GRANULE_BYTES
        box = _Box.of(
            insn.dram_addr // unit,
            (insn.z_size, insn.y_size, insn.x_size * entry_bytes // unit),
            (insn.z_stride // unit, insn.y_stride // unit, 1),
        )
        size = len(self.spaces["dram"].written)
        if box.last < size:
            return box
        self._find(
            "dram",
            f"bytes up to {(box.last + 1) * unit:#x} of DRAM with {size * unit:#x} bytes",
        )
        return None

    def _load(self, insn: Load) -> None:
        if insn.y_size:
            box = self._dram_box(insn, insn.dram_entry_bytes(self.params))
            if box is not None:
                self._read("dram", box)
                if insn.memory == "uop":
                    self._load_uops(insn, box)
        if insn.memory == "uop" and not insn.y_size:
            self._load_uops(insn, None)
        self._write(insn.memory, _Box.of(insn.base, (insn.entries,), (1,)))

    def _load_uops(self, insn: Load, source: _Box | None) -> None:
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
            known = not source.view(self.spaces["dram"].written).any()
        self.uops.load(insn.base, words.reshape(-1), known)

    def _gemm(self, insn: Gemm) -> None:
        span = slice(insn.uop_begin, insn.uop_begin + insn.uop_count)
        self._read("uop", _Box.of(insn.uop_begin, (insn.uop_count,), (1,)))
        if not self.uops.known[span].all():
            self._find("unknown", "its micro-ops come from DRAM that the program writes")
            return
        where = {m: self._gemm_entries(insn, m, span) for m in ("acc", "inp", "wgt")}
        for memory, entries in where.items():
            last, depth = int(entries.max()), self.params.depth(memory)
            if last >= depth:
                self._find("address", f"micro-ops reach {memory} entry {last}, depth {depth}")
                return
        self._read("inp", where["inp"])
        self._read("wgt", where["wgt"])
        self._accumulates(insn, where["acc"], self.uops.values["first"][span])
        self._write("acc", where["acc"])

    def _gemm_entries(self, insn: Gemm, memory: str, span: slice) -> np.ndarray:
        """Entries of one operand, int64 [outer, inner, uop_count]."""
        outer = np.arange(insn.outer)[:, None, None] * getattr(insn, f"{memory}_outer")
        inner = np.arange(insn.inner)[:, None] * getattr(insn, f"{memory}_inner")
        return outer + inner + self.uops.values[memory][span]

    def _accumulates(self, insn: Gemm, entries: np.ndarray, first: np.ndarray) -> None:
        """Accumulating needs an earlier write, by another instruction or by an earlier micro-op."""
        fresh = self.spaces["acc"].written[entries] == 0
        if not fresh.any():
            return
        overwrites = np.broadcast_to(first.astype(bool) & bool(insn.init), entries.shape)
        touched, when = np.unique(entries[fresh], return_index=True)
        bad = ~overwrites[fresh][when]
        if bad.any():
            entry = int(touched[np.argmax(bad)])
            self._find("uninitialised", f"acc[{entry}] is added to before anything writes it")

    def _vector(self, insn: Vector) -> None:
        if insn.post != "none" and not self.param_seen:
            self._find("uninitialised", "requantises before any PARAM instruction")
        target = _Box.of(insn.dst_base, insn.extents, insn.dst_strides)
        for name in ("src0", "src1"):
            memory = getattr(insn, name)
            if memory == "imm":
                continue
            base, strides = getattr(insn, f"{name}_base"), getattr(insn, f"{name}_strides")
            box = _Box.of(base, insn.extents, strides)
            if memory == insn.dst and self._feeds_itself(insn, base, strides):
                continue
            self._read(memory, box)
        self._write(insn.dst, target)

    def _feeds_itself(self, insn: Vector, base: int, strides: tuple[int, ...]) -> bool:
        """Whether every entry of tmp that nothing else has written is written by an earlier
        iteration of the instruction itself.
        """
        reads = _Box(base, insn.extents, strides).entries().reshape(-1)
        fresh = self.spaces["tmp"].written[reads] == 0
        if not fresh.any():
            return False
        writes = _Box(insn.dst_base, insn.extents, insn.dst_strides).entries().reshape(-1)
        fold = int(np.prod(insn.extents[4 - insn.reduce :]))
        never = len(writes)
        written = np.full(self.params.tmp_depth, never)
        np.minimum.at(written, writes[::fold], np.arange(never)[fold - 1 :: fold])
        return bool((written[reads[fresh]] < np.flatnonzero(fresh)).all())

    def _store(self, insn: Store) -> None:
        self._read("out", _Box.of(insn.base, (insn.entries,), (1,)))
        box = self._dram_box(insn, self.params.entry_bytes("out"))
        if box is None:
            return
        self._spares_program(box)
        self._write("dram", box)
        if self.defined is not None:
            _set(self.defined, box, True)

    def _spares_program(self, box: _Box) -> None:
        start = self.program.program_addr // _GRANULE_BYTES
        end = self.program.program_end // _GRANULE_BYTES
        if box.base >= end or box.last < start:
            return
        entries = box.entries()
        if ((entries >= start) & (entries < end)).any():
            self._find("program", f"stores into the instructions at {start * _GRANULE_BYTES:#x}")


def _defined(program: Program, granules: int) -> np.ndarray | None:
    """Granules with contents at the start: bool, or None where the program does not say."""
    if "inputs" not in program.meta:
        return None
    defined = np.zeros(granules, bool)
    spans = [(addr, addr + len(data)) for addr, data in program.image.items()]
    spans += [(r["address"], r["address"] + r["bytes"]) for r in program.meta["inputs"]]
    for start, end in spans:
        defined[start // _GRANULE_BYTES : -(-end // _GRANULE_BYTES)] = True
    return defined
