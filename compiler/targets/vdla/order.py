"""The order in which instructions are fetched.

Fetch dispatches in program order, and one full queue holds up all units. So instructions are put in
the order in which their units are expected to take them, and nothing moves before what it depends
on. Loads then run ahead of arithmetic, across tiles and layers, as far as the scratchpads allow.

Operators of the tensor core and those of the vector unit alone are two tracks: each keeps its own
order, and a unit takes from either what can start first. So a depthwise convolution or a residual
addition works on the first results of the convolution before it while that is still computing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ....isa.insn import Gemm, Insn, Load, Param, Store, Vector
from ....isa.memory import MemoryParams
from ....isa.opcodes import Unit
from ....isa.params import HwParams
from ....isa.timing import GEMM_DEPTH, PARAM_ITERATIONS, VECTOR_DEPTH

#: Estimated cycles that a load takes in addition to those of its entries.
LOAD_CYCLES = 3
#: For each track, the unit that does most of its work.
ARITHMETIC = (Unit.GEMM, Unit.VECTOR)


def loads_by_need(deadlines: Sequence[int]) -> list[int]:
    """Indices of the instructions in program order, but with each load directly before the first
    instruction that must come after it (:func:`~vdla.isa.depend.deadlines`). Loads are then in the
    order in which they are needed.
    """
    return sorted(range(len(deadlines)), key=lambda i: (deadlines[i], deadlines[i] == i))


def dispatch_order(
    insns: Sequence[Insn],
    tracks: Sequence[int],
    needs: Sequence[np.ndarray],
    params: HwParams,
    memory: MemoryParams,
) -> list[int]:
    """Indices of the instructions in the order of their estimated starts.

    Parameters
    ----------
    insns : instructions in program order
    tracks : the track of each instruction; the lower track goes first where nothing else decides
    needs : for each instruction, per track and unit, the index of the latest instruction that it
        depends on, or -1 (:func:`~vdla.isa.depend.dependencies`)
    """
    queues = {(track, unit): _Queue(track, unit) for track in sorted(set(tracks)) for unit in Unit}
    for group in _groups(insns, tracks):
        queues[tracks[group[0]], insns[group[0]].unit].groups.append(group)
    work = _work_before(insns, tracks, params, memory)
    free = [0] * len(Unit)
    ends = [-1] * len(insns)

    def reserve(queue: _Queue) -> int:
        """Cycles for which the track's arithmetic is busy before it needs the next load."""
        arithmetic = queues[queue.track, ARITHMETIC[queue.track]].groups
        if queue.unit != Unit.LOAD or not arithmetic:
            return 0
        return work[queue.groups[0][0]] - work[arithmetic[0][0]]

    order: list[int] = []
    while len(order) < len(insns):
        ready = [(begin, q) for q in queues.values() if (begin := q.start(needs, ends, free)) >= 0]
        begin, queue = min(
            ready, key=lambda item: (item[0], item[1].unit, reserve(item[1]), item[1].track)
        )
        for index in queue.pop():
            busy, latency = _estimate(insns[index], params, memory)
            # Every instruction takes its unit for a cycle at least.
            free[queue.unit] = begin + max(1, busy)
            ends[index] = begin + busy + latency
            begin = free[queue.unit]
            order.append(index)
    return order


def _work_before(
    insns: Sequence[Insn], tracks: Sequence[int], params: HwParams, memory: MemoryParams
) -> list[int]:
    """For each instruction, the cycles of its track's arithmetic before it in program order."""
    total = [0] * (max(tracks, default=0) + 1)
    before = []
    for insn, track in zip(insns, tracks, strict=True):
        before.append(total[track])
        if insn.unit == ARITHMETIC[track]:
            total[track] += _estimate(insn, params, memory)[0]
    return before


class _Queue:
    """Instructions of one track and unit that have not started, in program order. The instructions
    of a group start together.
    """

    def __init__(self, track: int, unit: Unit):
        self.track, self.unit = track, unit
        self.groups: deque[list[int]] = deque()
        self._waits: list[int] | None = None
        self._ready = 0

    def start(self, needs: Sequence[np.ndarray], ends: Sequence[int], free: Sequence[int]) -> int:
        """First cycle in which the unit can start the next group; -1 when that is not known yet."""
        if not self.groups:
            return -1
        if self._waits is None:
            group = self.groups[0]
            wanted = np.unique(np.concatenate([needs[index].reshape(-1) for index in group]))
            self._waits = [i for i in wanted.tolist() if i >= 0 and i not in group]
            self._ready = 0
        while self._waits:
            end = ends[self._waits[-1]]
            if end < 0:
                return -1
            self._ready = max(self._ready, end)
            self._waits.pop()
        return max(self._ready, free[self.unit])

    def pop(self) -> list[int]:
        """Take the next group."""
        self._waits = None
        return self.groups.popleft()


def _groups(insns: Sequence[Insn], tracks: Sequence[int]) -> list[list[int]]:
    """Groups of indices, which no instruction of another track may interrupt: a PARAM and all
    instructions that use its registers are a group; any other instruction is a group by itself.
    """
    if len(set(tracks)) == 1:
        return [[index] for index in range(len(insns))]
    groups: list[list[int]] = []
    spans: dict[int, list[int]] = {}  # by track: its last PARAM and the VECTORs since then
    for index, (insn, track) in enumerate(zip(insns, tracks, strict=True)):
        groups.append([index])
        match insn:
            case Param():
                spans[track] = [index]
            case Vector(post=post) if track in spans:
                spans[track].append(index)
                if post != "none":
                    first, *rest = spans[track]
                    groups[first] = [first, *rest]
                    for member in rest:
                        groups[member] = []
    return [group for group in groups if group]


def _estimate(insn: Insn, params: HwParams, memory: MemoryParams) -> tuple[int, int]:
    """Estimated cycles for which an instruction occupies its unit, and from then to its end."""
    match insn:
        case Load():
            beats = max(1, insn.dram_entry_bytes(params) // params.bus_bytes)
            moved = insn.x_size * insn.y_size * insn.z_size
            return insn.entries + moved * (beats - 1) + LOAD_CYCLES, memory.read_latency_cycles
        case Store():
            beats = max(1, params.entry_bytes("out") // params.bus_bytes)
            return insn.entries * beats, memory.write_latency_cycles
        case Gemm():
            return insn.iterations, GEMM_DEPTH
        case Vector():
            return params.vector_passes * insn.iterations, VECTOR_DEPTH
        case Param():
            return params.vector_passes * PARAM_ITERATIONS, VECTOR_DEPTH
    raise TypeError(f"instruction expected, got {insn!r}")
