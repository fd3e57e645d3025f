"""What work must take at least, and what it moves: bytes, roofline bounds, active cycles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..isa.encoding import PARAM_ENTRIES, VECTOR_LOOPS
from ..isa.insn import Gemm, Insn, Load, Param, Store, Vector
from ..isa.memory import MemoryParams
from ..isa.params import MEMORIES, HwParams
from ..isa.program import Program
from ..runtime.executable import LayerInfo
from ..runtime.result import SimResult


def dram_traffic(program: Program) -> dict[str, int]:
    """Bytes that one run of a program reads (data and instructions) and writes."""
    moved = moved_bytes(program.insns, program.params)
    fetched = len(program.insns) * program.params.insn_bytes
    return moved | {"read_bytes": moved["read_bytes"] + fetched}


def moved_bytes(insns: Iterable[Insn], params: HwParams) -> dict[str, int]:
    """Bytes of data that instructions read and write."""
    read = written = 0
    for insn in insns:
        match insn:
            case Load():
                entries = insn.x_size * insn.y_size * insn.z_size
                read += entries * insn.dram_entry_bytes(params)
            case Store():
                written += insn.entries * params.entry_bytes("out")
    return {"read_bytes": read, "written_bytes": written}


def scratchpad_accesses(insns: Iterable[Insn]) -> dict[str, dict[str, int]]:
    """How often instructions read and write entries of each scratchpad (``read``, ``written``).

    A step of the tensor core reads a micro-op, an activation, a weight tile and an accumulator, and
    writes the accumulator. A step of the vector unit reads its operands; the result of a reduction
    is written once.
    """
    found = {name: {"read": 0, "written": 0} for name in MEMORIES}
    for insn in insns:
        match insn:
            case Load():
                found[insn.memory]["written"] += insn.entries
            case Store():
                found["out"]["read"] += insn.entries
            case Gemm():
                for name in ("uop", "inp", "wgt", "acc"):
                    found[name]["read"] += insn.iterations
                found["acc"]["written"] += insn.iterations
            case Vector():
                for name in (insn.src0, insn.src1):
                    if name != "imm":
                        found[name]["read"] += insn.iterations
                group = prod(insn.extents[VECTOR_LOOPS - insn.reduce :])
                row = insn.extents[VECTOR_LOOPS - 1 - insn.reduce] if insn.unwritten else 1
                results = insn.iterations // group
                found[insn.dst]["written"] += results - results // row * insn.unwritten
            case Param():
                found["par"]["read"] += PARAM_ENTRIES
    return found


@dataclass(frozen=True)
class Bound:
    """The least cycles that work can take, by what would take them."""

    compute_cycles: float  # of the tensor core
    vector_cycles: float
    read_cycles: float
    write_cycles: float
    channel_bytes: int  # of the busier of the two channels of the bus

    @property
    def cycles(self) -> float:
        """The least cycles in all: everything at the same time."""
        return max(self._named.values())

    @property
    def by(self) -> str:
        """What the least cycles come from: ``compute``, ``vector``, ``reads`` or ``writes``; empty
        where there is nothing to do.
        """
        return max(self._named, key=self._named.__getitem__) if self.cycles else ""

    @property
    def _named(self) -> dict[str, float]:
        return {
            "compute": self.compute_cycles, "vector": self.vector_cycles,
            "reads": self.read_cycles, "writes": self.write_cycles,
        }  # fmt: skip

    @staticmethod
    def of(layers: Sequence[LayerInfo], program: Program, memory: MemoryParams) -> Bound:
        """The bound of layers of a program, all of them as one."""
        params = program.params
        bytes_per_cycle = params.bus_bytes / memory.cycles_per_beat
        must_read = must_write = iterations = 0
        for layer in layers:
            insns = [program.insns[i] for i in insns_of(layer)]
            iterations += sum(insn.iterations for insn in insns if isinstance(insn, Vector))
            moved = moved_bytes(insns, params)
            must_read += min(moved["read_bytes"], layer.compulsory_read_bytes)
            must_write += min(moved["written_bytes"], layer.compulsory_written_bytes)
        return Bound(
            sum(core_macs(layer, program) for layer in layers) / params.peak_macs_per_cycle,
            iterations * params.vector_passes,
            must_read / bytes_per_cycle,
            must_write / bytes_per_cycle,
            max(must_read, must_write),
        )


def core_macs(layer: LayerInfo, program: Program) -> int:
    """Those of a layer's MACs that the tensor core does; the vector unit does the others."""
    on_core = any(isinstance(program.insns[i], Gemm) for i in insns_of(layer))
    return layer.macs - layer.window_macs if on_core else 0


def insns_of(layer: LayerInfo) -> list[int]:
    """Indices of a layer's instructions, in order."""
    return [i for first, last in layer.runs or () for i in range(first, last + 1)]


def active_cycles(timing: SimResult, insns: Sequence[int]) -> int:
    """Cycles in which at least one of the instructions runs, from its start to its end, both
    included.
    """
    if not insns:
        return 0
    starts, ends = np.asarray(timing.starts)[insns], np.asarray(timing.ends)[insns]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    seen = np.r_[starts[0] - 1, ends[:-1]]  # the last cycle that was counted before each
    return int(np.maximum(0, ends - np.maximum(seen, starts - 1)).sum())
