"""The vector unit: one iteration a cycle, except that reads of tmp wait for writes in the
pipeline."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..isa.footprint import affine_entries
from ..isa.insn import Insn
from ..isa.insn import Vector as VectorInsn
from ..isa.opcodes import Unit
from .dma import CACHED
from .timing import PARAM_ITERATIONS, VECTOR_DEPTH
from .unit import UnitProcess

if TYPE_CHECKING:
    from .core import Core

#: Writes of tmp that may still be in the pipeline: cycle of issue, counted from another, and entry.
Writes = tuple[tuple[int, int], ...]
#: An operand's base and strides.
Affine = tuple[int, tuple[int, ...]]


class Vector(UnitProcess):
    """Runs VECTOR and PARAM instructions."""

    unit = Unit.VECTOR
    drain = VECTOR_DEPTH

    def __init__(self, core: Core):
        super().__init__(core)
        self.ready = 0
        self.writes: Writes = ()

    def busy(self) -> list[int]:
        return [
            insn.iterations if isinstance(insn, VectorInsn) else PARAM_ITERATIONS
            for insn in self.insns
        ]

    def step(self, number: int, cycle: int) -> None:
        """Take an instruction in the cycle of the last iteration of the one before, or later."""
        start = max(self.ready, cycle)
        self.queue.left.put(start)
        writes = _behind(self.writes, start - self.ready)
        cycles, self.writes = issue(self.insns[number], writes)
        self.ready = start + cycles
        self.end(number, self.ready + VECTOR_DEPTH)


def _behind(writes: Writes, cycles: int) -> Writes:
    """Writes counted from a later cycle, without those that nobody in later cycles waits for."""
    return tuple(
        (cycle - cycles, entry) for cycle, entry in writes if cycle - cycles + VECTOR_DEPTH > 0
    )


def issue(insn: Insn, writes: Writes) -> tuple[int, Writes]:
    """Cycles from the start of an instruction to its last iteration, and the tmp writes that may
    still be in the pipeline then; ``writes`` are counted from the start, those returned from the
    last iteration."""
    if not isinstance(insn, VectorInsn):
        return PARAM_ITERATIONS, _behind(writes, PARAM_ITERATIONS)
    sources = (
        (insn.src0, insn.src0_base, insn.src0_strides),
        (insn.src1, insn.src1_base, insn.src1_strides),
    )
    reads = tuple((base, strides) for memory, base, strides in sources if memory == "tmp")
    written = (insn.dst_base, insn.dst_strides) if insn.dst == "tmp" else None
    if not reads and written is None:
        return insn.iterations, _behind(writes, insn.iterations)
    return _issue(insn.extents, insn.reduce, reads, written, writes)


@lru_cache(maxsize=CACHED)
def _issue(
    extents: tuple[int, ...],
    reduce: int,
    reads: tuple[Affine, ...],
    written: Affine | None,
    writes: Writes,
) -> tuple[int, Writes]:
    """As :func:`issue`, for an instruction whose operands in tmp are given."""
    count, group = prod(extents), prod(extents[4 - reduce :]) if reduce else 1
    sources = [affine_entries(*read, extents).reshape(-1) for read in reads]
    target = None if written is None else affine_entries(*written, extents).reshape(-1)
    cycles = np.arange(1, 1 + count)
    if sources and _conflicts(sources, target, group, writes):
        cycles = _step_by_step(sources, target, group, writes, count)
    last = int(cycles[-1])
    recent = writes
    if target is not None:
        tail = range(group - 1, count, group)[-VECTOR_DEPTH:]
        recent += tuple((int(cycles[i]), int(target[i])) for i in tail)
    return last, _behind(recent, last)


def _conflicts(
    reads: list[np.ndarray], written: np.ndarray | None, group: int, writes: Writes
) -> bool:
    """Whether any read would wait if iterations issued back to back."""
    for cycle, entry in writes:
        waiting = cycle + VECTOR_DEPTH  # iterations before this one come too early
        if any((read[:waiting] == entry).any() for read in reads):
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
    reads: list[np.ndarray], written: np.ndarray | None, group: int, writes: Writes, count: int
) -> np.ndarray:
    """Issue cycle of every iteration, one after another."""
    latest = {entry: cycle for cycle, entry in writes}
    cycles = np.empty(count, np.int64)
    cycle = 0
    for i in range(count):
        cycle += 1
        for read in reads:
            cycle = max(cycle, latest.get(int(read[i]), -VECTOR_DEPTH - 1) + VECTOR_DEPTH + 1)
        cycles[i] = cycle
        if written is not None and i % group == group - 1:
            latest[int(written[i])] = cycle
    return cycles
