"""The vector unit: one iteration a cycle, except that reads of tmp wait for writes in the
pipeline."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from ..isa.footprint import vector_entries
from ..isa.insn import Insn
from ..isa.insn import Vector as VectorInsn
from ..isa.opcodes import Unit
from .timing import PARAM_ITERATIONS, VECTOR_DEPTH
from .unit import UnitProcess


class Vector(UnitProcess):
    """Runs VECTOR and PARAM instructions."""

    unit = Unit.VECTOR

    def run(self) -> Generator[Any, Any, None]:
        """Take an instruction in the cycle of the last iteration of the one before, or later."""
        ready = 0
        #: Issue cycle and tmp entry of writes that may still be in the pipeline.
        writes: list[tuple[int, int]] = []
        while True:
            taken = yield from self.take()
            start = max(ready, taken.earliest)
            yield from self.start(taken, start)
            self.account.wait(start, taken.visible, taken.tokens)
            if start == self.account.cursor:
                self.account.add("busy", 1)
            iterations, ready, writes = issue(taken.insn, start, writes)
            self.account.add("busy", iterations)
            self.account.add("stalled", ready - start - iterations)
            self.end(taken, ready + VECTOR_DEPTH)


def issue(
    insn: Insn, start: int, writes: list[tuple[int, int]]
) -> tuple[int, int, list[tuple[int, int]]]:
    """Iterations of an instruction taken in ``start``, the cycle in which the last one issues, and
    the tmp writes (issue cycle, entry) that may still be in the pipeline then."""
    if not isinstance(insn, VectorInsn):
        return PARAM_ITERATIONS, start + PARAM_ITERATIONS, writes
    count = insn.iterations
    group = int(np.prod(insn.extents[4 - insn.reduce :])) if insn.reduce else 1
    entries = None
    reads: list[np.ndarray] = []
    if insn.dst == "tmp" or "tmp" in (insn.src0, insn.src1):
        entries = {name: e.reshape(-1) for name, e in vector_entries(insn).items()}
        reads = [entries[name] for name in ("src0", "src1") if getattr(insn, name) == "tmp"]
    written = entries["dst"] if entries is not None and insn.dst == "tmp" else None
    cycles = np.arange(start + 1, start + 1 + count)
    if reads and _conflicts(reads, written, group, start, writes):
        cycles = _step_by_step(reads, written, group, start, writes, count)
    last = int(cycles[-1])
    recent = [(cycle, entry) for cycle, entry in writes if cycle >= last - VECTOR_DEPTH]
    if written is not None:
        tail = range(group - 1, count, group)[-(VECTOR_DEPTH + 1) :]
        recent += [(int(cycles[i]), int(written[i])) for i in tail]
    return count, last, recent


def _conflicts(
    reads: list[np.ndarray],
    written: np.ndarray | None,
    group: int,
    start: int,
    writes: list[tuple[int, int]],
) -> bool:
    """Whether any read would wait if iterations issued back to back."""
    for cycle, entry in writes:
        waiting = cycle + VECTOR_DEPTH - start  # iterations before this one come too early
        if waiting > 0 and any((read[:waiting] == entry).any() for read in reads):
            return True
    if written is None:
        return False
    writes_result = np.arange(written.size) % group == group - 1
    for distance in range(1, VECTOR_DEPTH + 1):
        for read in reads:
            equal = read[distance:] == written[:-distance]
            if (equal & writes_result[:-distance]).any():
                return True
    return False


def _step_by_step(
    reads: list[np.ndarray],
    written: np.ndarray | None,
    group: int,
    start: int,
    writes: list[tuple[int, int]],
    count: int,
) -> np.ndarray:
    """Issue cycle of every iteration, one after another."""
    latest = {entry: cycle for cycle, entry in writes}
    cycles = np.empty(count, np.int64)
    cycle = start
    for i in range(count):
        cycle += 1
        for read in reads:
            cycle = max(cycle, latest.get(int(read[i]), -VECTOR_DEPTH - 1) + VECTOR_DEPTH + 1)
        cycles[i] = cycle
        if written is not None and i % group == group - 1:
            latest[int(written[i])] = cycle
    return cycles
