"""What every instruction of a program reads and writes, as runs of neighbouring entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .batch import Batch
from .footprint import MicroOps, boxes, unpack_words
from .insn import Gemm, Load
from .insn_table import InsnTable
from .native import Ints, Table, native
from .opcodes import LOADABLE, Opcode
from .params import MEMORIES, HwParams

#: Numbers of the memories, DRAM the last.
SPACES = {name: number for number, name in enumerate((*MEMORIES, "dram"))}
#: The operands of a GEMM, in the order of the columns of micro-ops.
_OPERANDS = ("acc", "inp", "wgt")
#: Loops of a box.
_LOOPS = 4
#: Columns of the table of boxes: the base; the length of a run; extents and strides of the loops
#: around it; of a GEMM's operand its number among the operands (else -1), and the first micro-op
#: and their number; of a load of micro-ops the first of the words that it loads (else -1).
_BASE, _LENGTH, _EXTENTS, _STRIDES = 0, 1, 2, 2 + _LOOPS
_OPERAND, _FIRST, _COUNT, _WORD = range(2 + 2 * _LOOPS, 6 + 2 * _LOOPS)
_COLUMNS = 6 + 2 * _LOOPS


@dataclass(frozen=True)
class Footprints:
    """The accesses of the instructions of a program. Those of DRAM outside of the range that the
    program writes are left out, because they order nothing.

    Attributes
    ----------
    order : int64 [places], which instruction is at each place; the others go by instruction
    units : int64 [n]
    bounds : int64 [n + 1]; instruction i has accesses ``bounds[i]`` to ``bounds[i + 1] - 1``
    spaces : int64 [accesses], numbers of ``SPACES``
    writes : int64 [accesses], whether it is a write
    starts : int64 [accesses + 1], the first run of each
    runs : int64 [runs, 2], first entry and length; in DRAM, an entry is the largest piece that all
        addresses and lengths are multiples of
    sizes : int64 [spaces], entries of each memory; of DRAM those up to the last one accessed
    """

    order: np.ndarray
    units: np.ndarray
    bounds: np.ndarray
    spaces: np.ndarray
    writes: np.ndarray
    starts: np.ndarray
    runs: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, insns: InsnTable, image: Mapping[int, bytes]) -> Footprints:
        """Those of a program; micro-ops are read from the ``image``, constant DRAM contents.

        Raises VdlaError for micro-ops that are not constant.
        """
        params, found = insns.params, insns.batches
        words, loaded = _micro_ops(insns, image)
        parts = [part for batch in found for part in _tables(batch, params, loaded)]
        owners, places, spaces, writes = (
            np.concatenate([part[k] for part in parts] or [np.zeros(0, np.int64)]) for k in range(4)
        )
        table = np.concatenate([part[4] for part in parts] or [np.zeros((0, _COLUMNS), np.int64)])
        # Whatever nothing writes orders nothing: weights, above all.
        in_dram = spaces == SPACES["dram"]
        ends = table[:, _BASE] + _reach(table)
        written = in_dram & (writes > 0)
        first = table[written, _BASE].min(initial=np.iinfo(np.int64).max)
        last = ends[written].max(initial=0)
        kept = np.flatnonzero(~in_dram | ((table[:, _BASE] < last) & (first < ends)))
        by_insn = kept[np.lexsort((places[kept], owners[kept]))]
        owners, spaces, writes, table = (x[by_insn] for x in (owners, spaces, writes, table))
        starts = np.zeros(len(table) + 1, np.int64)
        # Once to count the runs, once to write them.
        empty = np.full(params.uop_depth, len(words) - 1)
        runs = np.zeros((0, 2), np.int64)
        count = _find_runs(table, words, empty.copy(), starts, runs, 0)
        runs = np.zeros((count, 2), np.int64)
        _find_runs(table, words, empty, starts, runs, 1)
        sizes = np.array([*(params.depth(name) for name in MEMORIES), 0])
        in_dram = np.repeat(spaces, np.diff(starts)) == SPACES["dram"]
        grain = max(1, int(np.gcd.reduce(runs[in_dram].reshape(-1))))
        runs[in_dram] //= grain
        sizes[-1] = (runs[:, 0] + runs[:, 1])[in_dram].max(initial=0)
        bounds = np.searchsorted(owners, np.arange(len(insns) + 1))
        return cls(np.arange(len(insns)), insns.units, bounds, spaces, writes, starts, runs, sizes)

    def reordered(self, order: np.ndarray) -> Footprints:
        """Those of the instructions in another order, or of some of them."""
        return replace(self, order=self.order[order])


def _reach(table: np.ndarray) -> np.ndarray:
    """How far the entries of boxes reach from their base, int64 [boxes]."""
    extents, strides = table[:, _EXTENTS:_STRIDES], table[:, _STRIDES:_OPERAND]
    return np.einsum("ij,ij->i", extents - 1, strides) + table[:, _LENGTH]


def _micro_ops(insns: InsnTable, image: Mapping[int, bytes]) -> tuple[np.ndarray, dict[int, int]]:
    """All micro-ops that a program loads, int64 [their number, operands], and the first of each
    instruction that loads some."""
    uops, parts, loaded, count = MicroOps(insns.params, image), [], {}, 0
    loads = (insns.opcodes == Opcode.LOAD) & (insns.column("memory") == LOADABLE.index("uop"))
    indices = np.flatnonzero(loads)
    for index, insn in zip(indices.tolist(), insns.take(indices).insns(), strict=True):
        assert isinstance(insn, Load)
        uops.load(insn)
        parts.append(uops.words[insn.base : insn.base + insn.entries].copy())
        loaded[index] = count
        count += insn.entries
    # Before a program loads any, all fields are zero.
    words = unpack_words(np.concatenate([*parts, np.zeros(1, np.uint64)]), insns.params)
    return np.stack([words[name] for name in _OPERANDS], axis=1), loaded


def _tables(
    batch: Batch, params: HwParams, loaded: Mapping[int, int]
) -> list[tuple[np.ndarray, ...]]:
    """For each access of the instructions of a batch: the instruction, the place among its
    accesses, the space, whether it is a write, and its row in the table of boxes.
    """
    made = []
    for place, box in enumerate(boxes(batch.insn, params)):
        table = np.zeros((len(batch.rows), _COLUMNS), np.int64)
        table[:, _BASE] = box.base
        table[:, _LENGTH] = table[:, _EXTENTS:_STRIDES] = 1
        for k, (extent, stride) in enumerate(box.loops):
            still = np.asarray(stride) == 0
            table[:, _EXTENTS + k] = np.where(still, np.minimum(extent, 1), extent)
            table[:, _STRIDES + k] = stride
            # A loop over neighbours becomes a run.
            runs = (table[:, _STRIDES + k] == 1) & (table[:, _LENGTH] == 1)
            table[runs, _LENGTH] = table[runs, _EXTENTS + k]
            table[runs, _EXTENTS + k] = 1
        table[:, _OPERAND] = _OPERANDS.index(box.memory) if box.of_micro_ops else -1
        if isinstance(batch.insn, Gemm):
            table[:, _FIRST], table[:, _COUNT] = batch.insn.uop_begin, batch.insn.uop_count
        table[:, _WORD] = -1
        if box.memory == "uop" and box.write:
            table[:, _WORD] = [loaded[index] for index in batch.rows.tolist()]
        same = np.ones(len(batch.rows), np.int64)
        made.append(
            (batch.rows, same * place, same * SPACES[box.memory], same * int(box.write), table)
        )
    return made


@native
def _find_runs(
    table: Table, words: Table, places: Ints, starts: Ints, runs: Table, writes: int
) -> int:
    """Count the runs of all boxes, and write them to ``runs`` if ``writes`` is set. ``starts`` gets
    the first run of each box. ``places`` has, for each entry of micro-op memory, its word.
    """
    count = 0
    for box in range(len(table)):
        starts[box] = count
        if table[box, _WORD] >= 0:
            for i in range(table[box, _LENGTH]):
                places[table[box, _BASE] + i] = table[box, _WORD] + i
        operand = table[box, _OPERAND]
        turns = table[box, _COUNT] if operand >= 0 else 1
        before = -1
        for u in range(turns):
            base = table[box, _BASE]
            if operand >= 0:
                base += words[places[table[box, _FIRST] + u], operand]
                if base == before:
                    continue
                before = base
            for i in range(table[box, _EXTENTS]):
                for j in range(table[box, _EXTENTS + 1]):
                    for k in range(table[box, _EXTENTS + 2]):
                        for m in range(table[box, _EXTENTS + 3]):
                            if writes:
                                runs[count, 0] = (
                                    base + i * table[box, _STRIDES]
                                    + j * table[box, _STRIDES + 1]
                                    + k * table[box, _STRIDES + 2]
                                    + m * table[box, _STRIDES + 3]
                                )  # fmt: skip
                                runs[count, 1] = table[box, _LENGTH]
                            count += 1
    starts[len(table)] = count
    return count
