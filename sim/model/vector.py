"""The vector unit issues one pass a cycle, iteration after iteration, except that reads of tmp wait
for writes in the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from ...isa.footprint import affine_entries, written_entries
from ...isa.opcodes import DST_MEMORIES, SRC0_MEMORIES, SRC1_MEMORIES, Opcode, Unit
from ...isa.params import HwParams
from ...isa.timing import PARAM_ITERATIONS, VECTOR_DEPTH, table_iterations
from ...isa.vector_ops import VECTOR_OPS
from .dma import Kinds
from .shared import Shared
from .unit import UnitProcess

#: Writes of tmp that may still be in the pipeline: for each, the cycle of its last pass, relative
#: to some reference cycle, and the entry.
Writes = tuple[tuple[int, int], ...]


class Vector(UnitProcess):
    """Runs VECTOR, PARAM and TABLE instructions."""

    unit = Unit.VECTOR

    def __init__(self, shared: Shared):
        super().__init__(shared)
        self.patterns = patterns(shared).each()
        passes = shared.params.vector_passes
        self.busy = np.array([passes * each.iterations for each in self.patterns], np.int64)
        self.writes: Writes = ()

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction in the cycle of the last pass of the one before, or later."""
        start = max(self.ready, cycle)
        self.queue.left.put(start)
        cycles, self.writes = self.patterns[number].issue(_behind(self.writes, start - self.ready))
        self.ready = start + cycles
        self.end(number, self.ready + VECTOR_DEPTH)


def _behind(writes: Writes, cycles: int) -> Writes:
    """The writes relative to a later cycle, without those that no read from then on waits for."""
    if not cycles or not writes:
        return writes
    return tuple((c - cycles, entry) for c, entry in writes if c - cycles + VECTOR_DEPTH > 0)


class Pattern:
    """How an instruction uses tmp, which is all that its cycles depend on.

    Attributes
    ----------
    passes, iterations : cycles that each iteration takes, and how many of them it issues
    group : how many of the iterations are reduced to one result
    reads : entry of tmp in every iteration, per operand that lies there: int64 [iterations]
    written : the same of the destination, -1 where a window's results are not written; None if that
        is another memory
    """

    def __init__(
        self,
        passes: int,
        iterations: int,
        group: int,
        reads: list[np.ndarray],
        written: np.ndarray | None,
    ):
        self.passes, self.iterations, self.group = passes, iterations, group
        self.reads, self.written = reads, written
        self._known: dict[Writes, tuple[int, Writes]] = {}

    def issue(self, writes: Writes) -> tuple[int, Writes]:
        """Cycles from the start of an instruction to its last pass, and the writes that may still
        be in the pipeline then; ``writes`` are relative to the start, those returned to the last
        pass.
        """
        if writes not in self._known:
            self._known[writes] = self._issue(writes)
        return self._known[writes]

    def _issue(self, writes: Writes) -> tuple[int, Writes]:
        cycles = self.passes * np.arange(1, 1 + self.iterations)
        if self.reads and self._conflicts(writes):
            cycles = np.fromiter(self._step_by_step(writes), np.int64, self.iterations)
        last = int(cycles[-1])
        if self.written is not None:
            tail = range(self.group - 1, self.iterations, self.group)[-VECTOR_DEPTH:]
            ends = ((int(cycles[i]), int(self.written[i])) for i in tail)
            writes += tuple((cycle, entry) for cycle, entry in ends if entry >= 0)
        return last, _behind(writes, last)

    def _conflicts(self, writes: Writes) -> bool:
        """Whether any read would wait if iterations issued back to back."""
        for cycle, entry in writes:
            # Only iterations before this one can read too early.
            waiting = -(-(cycle + VECTOR_DEPTH) // self.passes)
            if any((read[:waiting] == entry).any() for read in self.reads):
                return True
        if self.written is None:
            return False
        writes_result = np.arange(self.iterations) % self.group == self.group - 1
        for distance in range(1, -(-VECTOR_DEPTH // self.passes) + 1):
            for read in self.reads:
                equal = read[distance:] == self.written[:-distance]
                if (equal & writes_result[:-distance]).any():
                    return True
        return False

    def _step_by_step(self, writes: Writes) -> Iterator[int]:
        """Cycle of the last pass of every iteration, one after another."""
        latest = {entry: cycle for cycle, entry in writes}
        cycle = 0
        for i in range(self.iterations):
            cycle += 1
            for read in self.reads:
                written = latest.get(int(read[i]), -VECTOR_DEPTH - 1)
                cycle = max(cycle, written + VECTOR_DEPTH + 1)
            cycle += self.passes - 1
            yield cycle
            if self.written is not None and i % self.group == self.group - 1:
                latest[int(self.written[i])] = cycle


def patterns(shared: Shared) -> Kinds[Pattern]:
    """How the instructions of the vector unit use tmp."""
    codes = shared.table.opcodes[shared.indices[Unit.VECTOR]]
    table = _tmp_columns(shared.table.columns(Opcode.VECTOR))
    rows = np.zeros((codes.size, 1 + table.shape[1]), np.int64)
    rows[:, 0] = codes
    rows[codes == Opcode.VECTOR, 1:] = table
    return Kinds(partial(_pattern, shared.params), rows)


def _tmp_columns(fields: dict[str, np.ndarray]) -> np.ndarray:
    """What :func:`_pattern` needs of VECTOR instructions: extents, loops to reduce, results that a
    window does not write, and for src0, src1 and dst whether it is tmp, base and strides (0 if
    not).
    """
    columns = [fields[name] for name in ("n0", "n1", "n2", "n3", "reduce")]
    slides = np.isin(fields["op"], [op.code for op in VECTOR_OPS if op.slides])
    columns.append(fields["imm"] * slides)
    operands = (("src0", SRC0_MEMORIES), ("src1", SRC1_MEMORIES), ("dst", DST_MEMORIES))
    for operand, memories in operands:
        in_tmp = fields[operand] == memories.index("tmp")
        affine = (fields[f"{operand}_{part}"] for part in ("base", "s0", "s1", "s2", "s3"))
        columns += [in_tmp, *(values * in_tmp for values in affine)]
    return np.stack(columns, 1)


def _pattern(params: HwParams, opcode: int, *row: int) -> Pattern:
    passes = params.vector_passes
    match opcode:
        case Opcode.PARAM:
            return Pattern(passes, PARAM_ITERATIONS, 1, [], None)
        case Opcode.TABLE:
            return Pattern(passes, table_iterations(params), 1, [], None)
    extents, reduce, unwritten = row[:4], row[4], row[5]
    reads = [
        affine_entries(base, tuple(strides), extents).reshape(-1)
        for in_tmp, base, *strides in (row[6:12], row[12:18])
        if in_tmp
    ]
    written, (to_tmp, base, *strides) = None, row[18:24]
    if to_tmp:
        sizes = list(extents)
        sizes[3 - reduce] -= unwritten
        entries = written_entries(base, tuple(strides), tuple(sizes), reduce, unwritten)
        written = entries.reshape(-1)
    group = prod(extents[4 - reduce :]) if reduce else 1
    return Pattern(passes, prod(extents), group, reads, written)
