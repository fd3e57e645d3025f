"""The order in which instructions are fetched.

Fetch dispatches in program order, and one full queue holds up all units. So instructions are put in
the order in which their units are expected to take them: each unit's own order stays, and nothing
moves before what it depends on. Loads then run ahead of arithmetic, across tiles and layers, as far
as the scratchpads allow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...isa.insn import Gemm, Insn, Load, Param, Store, Vector
from ...isa.memory import MemoryParams
from ...isa.opcodes import Unit
from ...isa.params import HwParams

#: Cycles from an arithmetic instruction's last iteration to its effects, for the estimate only.
PIPELINE_CYCLES = 10
#: Iterations of a PARAM instruction, for the estimate only.
PARAM_CYCLES = 4


def loads_by_need(deadlines: Sequence[int]) -> list[int]:
    """Indices of the instructions, each load directly before the first one that must come after it
    (:func:`~vdla.isa.depend.deadlines`): loads are then in the order of their need.
    """
    return sorted(range(len(deadlines)), key=lambda i: (deadlines[i], deadlines[i] == i))


def dispatch_order(
    insns: Sequence[Insn], needs: Sequence[np.ndarray], params: HwParams, memory: MemoryParams
) -> list[int]:
    """Indices of the instructions in the order of their estimated starts.

    ``needs`` : of each instruction, per unit, the latest instruction that it depends on, or -1
    (:func:`~vdla.isa.depend.dependencies`)
    """
    free = [0] * len(Unit)
    starts, ends = np.zeros(len(insns), np.int64), np.zeros(len(insns), np.int64)
    for index, (insn, need) in enumerate(zip(insns, needs, strict=True)):
        start = max((int(ends[i]) for i in need if i >= 0), default=0)
        start = max(start, free[insn.unit])
        busy, latency = _estimate(insn, params, memory)
        # Every instruction takes its unit for a cycle at least, so that its order is kept.
        free[insn.unit] = start + max(1, busy)
        starts[index], ends[index] = start, start + busy + latency
    return [int(i) for i in np.argsort(starts, kind="stable")]


def _estimate(insn: Insn, params: HwParams, memory: MemoryParams) -> tuple[int, int]:
    """Cycles for which an instruction occupies its unit, and from then to its end."""
    match insn:
        case Load():
            beats = max(1, insn.dram_entry_bytes(params) // params.bus_bytes)
            return insn.entries * beats, memory.read_latency_cycles
        case Store():
            beats = max(1, params.entry_bytes("out") // params.bus_bytes)
            return insn.entries * beats, memory.write_latency_cycles
        case Gemm():
            return insn.iterations, PIPELINE_CYCLES
        case Vector():
            return insn.iterations, PIPELINE_CYCLES
        case Param():
            return PARAM_CYCLES, PIPELINE_CYCLES
    raise TypeError(f"instruction expected, got {insn!r}")
