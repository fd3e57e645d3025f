"""What the static checker looks at: the steps of every instruction of a program.

A step reads or writes entries of one memory. The steps are made of the instructions as the core
decodes them, apart from the compiler's own account of what instructions touch (``footprint.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .encoding import VECTOR_LOOPS
from .native import Ints, Table, native
from .opcodes import DST_MEMORIES, LOADABLE, SRC0_MEMORIES, SRC1_MEMORIES, Opcode
from .params import MEMORIES, HwParams
from .program import Program
from .vector_ops import POST_BY_NAME, VECTOR_OPS

#: Every DRAM address and stride of a legal instruction is a multiple of this.
GRANULE_BYTES = 4

#: Numbers of the memories; a granule of DRAM is an entry of four bytes.
SPACES = {name: number for number, name in enumerate((*MEMORIES, "dram"))}
DRAM = SPACES["dram"]

#: What a step does: it reads or writes entries; it needs micro-ops to be known and their entries to
#: exist. The others are for Python: it loads micro-ops, leaves DRAM, may store into the program,
#: requantises before there are parameters, or looks up before there is a table.
READ, WRITE, MICRO_OPS, LOAD_UOPS, OUTSIDE, PROGRAM, NO_PARAM, NO_TABLE = range(8)
#: Columns of the table of steps: instruction, action, space, base, extents and strides of the
#: loops; first micro-op, number of micro-ops, and the operand (else -1) whose field each adds.
INSN, ACTION, SPACE, BASE, EXTENTS, STRIDES = 0, 1, 2, 3, 4, 8
FIRST, COUNT, OPERAND = 12, 13, 14
_COLUMNS = 15
#: The operands of a GEMM, in the order of the columns of micro-ops.
OPERANDS = ("acc", "inp", "wgt")


@dataclass(frozen=True)
class Part:
    """The same step of many instructions.

    Attributes
    ----------
    insns : int64 [n]
    place : the place of the step among those of its instruction
    table : int64 [n, columns]
    """

    insns: np.ndarray
    place: int
    table: np.ndarray

    @classmethod
    def of(
        cls,
        insns: np.ndarray,
        place: int,
        action: int,
        memory: str | np.ndarray = "dram",
        base: Any = 0,
        extents: Sequence[Any] = (),
        strides: Sequence[Any] = (),
    ) -> Part:
        """Steps at ``base + sum(i_k * strides[k])``. Loops that do not move run once."""
        table = np.zeros((len(insns), _COLUMNS), np.int64)
        table[:, INSN], table[:, ACTION], table[:, BASE] = insns, action, base
        table[:, SPACE] = SPACES[memory] if isinstance(memory, str) else memory
        table[:, EXTENTS:STRIDES], table[:, OPERAND] = 1, -1
        for k, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
            table[:, EXTENTS + k] = np.where(np.asarray(stride) == 0, 1, extent)
            table[:, STRIDES + k] = stride
        return cls(insns, place, table)

    def operand(self, columns: Mapping[str, np.ndarray], memory: str) -> Part:
        """The steps for each micro-op of GEMM instructions. All loops of an accumulator run: what
        comes first counts."""
        table, operand = self.table, OPERANDS.index(memory)
        table[:, FIRST], table[:, COUNT] = columns["uop_begin"], columns["uop_count"]
        table[:, OPERAND] = operand
        if memory == "acc":
            table[:, EXTENTS] = columns["outer"]
            table[:, EXTENTS + 1] = columns["inner"]
        return self

    def where(self, mask: np.ndarray, action: int | None = None) -> Part:
        """Some of them, perhaps with another action."""
        part = Part(self.insns[mask], self.place, self.table[mask])
        if action is not None:
            part.table[:, ACTION] = action
        return part

    @property
    def last(self) -> np.ndarray:
        """The highest entry of each, int64 [n]."""
        loops = (self.table[:, EXTENTS:STRIDES] - 1) * self.table[:, STRIDES:FIRST]
        return self.table[:, BASE] + loops.sum(axis=1)


def _parts(program: Program, granules: int, first_set: Mapping[Opcode, int]) -> Iterator[Part]:
    """All steps of all instructions, as the core decodes them. DRAM has ``granules``; no parameters
    and no table are there before the instructions ``first_set``.
    """
    params = program.params
    rows = {op: np.flatnonzero(program.table.opcodes == op) for op in Opcode}
    for opcode, insns in rows.items():
        columns = program.table.columns(opcode)
        match opcode:
            case Opcode.LOAD:
                yield from _load_parts(insns, columns, params, granules)
            case Opcode.GEMM:
                yield from _gemm_parts(insns, columns)
            case Opcode.VECTOR:
                yield from _vector_parts(insns, columns, first_set)
            case Opcode.PARAM:
                yield Part.of(insns, 0, READ, "par", columns["par_base"], (3,), (1,))
            case Opcode.TABLE:
                entries = params.table_entries
                yield Part.of(insns, 0, READ, "par", columns["par_base"], (entries,), (1,))
            case Opcode.STORE:
                size = columns["x_size"] * columns["y_size"] * columns["z_size"]
                yield Part.of(insns, 0, READ, "out", columns["base"], (size,), (1,))
                rows = _dram_part(insns, 2, WRITE, columns, params.entry_bytes("out"))
                first, end = (at // GRANULE_BYTES for at in span(program))
                near = (rows.table[:, BASE] < end) & (rows.last >= first)
                inside = rows.last < granules
                yield rows.where(~inside, OUTSIDE)
                yield replace(rows, place=1).where(inside & near, PROGRAM)
                yield rows.where(inside)


def span(program: Program) -> tuple[int, int]:
    """Bytes of DRAM where the instructions lie: the first, and that behind the last."""
    return program.program_addr, program.program_end


def _load_parts(
    insns: np.ndarray, columns: Mapping[str, np.ndarray], params: HwParams, granules: int
) -> Iterator[Part]:
    each = [[params.dram_entry_bytes(name, widen) for widen in (0, 1)] for name in LOADABLE]
    sizes = np.array(each)[columns["memory"], columns["widen"]]
    data = _dram_part(insns, 0, READ, columns, sizes)
    moves = columns["y_size"] > 0
    outside = moves & (data.last >= granules)
    yield data.where(outside, OUTSIDE)
    yield data.where(moves & ~outside)
    of_uops = columns["memory"] == LOADABLE.index("uop")
    yield Part.of(insns, 1, LOAD_UOPS).where(of_uops & ~outside)
    rows = columns["pad_top"] + columns["y_size"] + columns["pad_bottom"]
    row_entries = columns["pad_left"] + columns["x_size"] + columns["pad_right"]
    entries = columns["z_size"] * rows * row_entries
    spaces = np.array([SPACES[name] for name in LOADABLE])[columns["memory"]]
    yield Part.of(insns, 2, WRITE, spaces, columns["base"], (entries,), (1,))


def _gemm_parts(insns: np.ndarray, columns: Mapping[str, np.ndarray]) -> Iterator[Part]:
    yield Part.of(insns, 0, READ, "uop", columns["uop_begin"], (columns["uop_count"],), (1,))

    def operand(place: int, action: int, memory: str) -> Part:
        extents = columns["outer"], columns["inner"]
        strides = columns[f"{memory}_outer"], columns[f"{memory}_inner"]
        part = Part.of(insns, place, action, memory, 0, extents, strides)
        return part.operand(columns, memory)

    for k, memory in enumerate(OPERANDS):
        yield operand(1 + k, MICRO_OPS, memory)
    yield operand(4, READ, "inp")
    yield operand(5, READ, "wgt")
    yield operand(6, WRITE, "acc")


def _vector_parts(
    insns: np.ndarray, columns: Mapping[str, np.ndarray], first_set: Mapping[Opcode, int]
) -> Iterator[Part]:
    extents = [columns[f"n{k}"] for k in range(VECTOR_LOOPS)]
    requantises = columns["post"] != POST_BY_NAME["none"].code
    looks_up = np.isin(columns["op"], [op.code for op in VECTOR_OPS if op.lut_bytes])
    yield Part.of(insns, 0, NO_PARAM).where(requantises & (insns < first_set[Opcode.PARAM]))
    yield Part.of(insns, 0, NO_TABLE).where(looks_up & (insns < first_set[Opcode.TABLE]))
    actions = (("src0", SRC0_MEMORIES, READ), ("src1", SRC1_MEMORIES, READ),
               ("dst", DST_MEMORIES, WRITE))  # fmt: skip
    for place, (name, memories, action) in enumerate(actions, 1):
        spaces = np.array([SPACES.get(memory, -1) for memory in memories])[columns[name]]
        strides = [columns[f"{name}_s{k}"] for k in range(VECTOR_LOOPS)]
        sizes = _written(columns, extents) if action == WRITE else extents
        part = Part.of(insns, place, action, spaces, columns[f"{name}_base"], sizes, strides)
        yield part.where(spaces >= 0)


def _written(columns: Mapping[str, np.ndarray], extents: list[np.ndarray]) -> list[np.ndarray]:
    """How often each loop moves what is written: a window's first results, which the immediate
    counts, are not, in the innermost loop that is not reduced."""
    slides = np.isin(columns["op"], [op.code for op in VECTOR_OPS if op.slides])
    innermost = VECTOR_LOOPS - 1 - columns["reduce"]
    return [
        np.where(slides & (innermost == k), n - columns["imm"], n) for k, n in enumerate(extents)
    ]


def _dram_part(
    insns: np.ndarray,
    place: int,
    action: int,
    columns: Mapping[str, np.ndarray],
    entry_bytes: int | np.ndarray,
) -> Part:
    """The granules that a LOAD or STORE moves."""
    unit = GRANULE_BYTES
    extents = columns["z_size"], columns["y_size"], columns["x_size"] * entry_bytes // unit
    strides = columns["z_stride"] // unit, columns["y_stride"] // unit, 1
    return Part.of(insns, place, action, "dram", columns["dram_addr"] // unit, extents, strides)


@native
def list_entries(steps: Table, step: int, uops: Table, entries: Ints) -> int:
    """Write all entries of a step to ``entries``; returns how many there are."""
    count = 0
    operand, first = steps[step, OPERAND], steps[step, FIRST]
    turns = steps[step, COUNT] if operand >= 0 else 1
    for i in range(steps[step, EXTENTS]):
        for j in range(steps[step, EXTENTS + 1]):
            for k in range(steps[step, EXTENTS + 2]):
                for m in range(steps[step, EXTENTS + 3]):
                    base = (
                        steps[step, BASE] + i * steps[step, STRIDES]
                        + j * steps[step, STRIDES + 1] + k * steps[step, STRIDES + 2]
                        + m * steps[step, STRIDES + 3]
                    )  # fmt: skip
                    for u in range(turns):
                        added = uops[first + u, operand] if operand >= 0 else 0
                        entries[count] = base + added
                        count += 1
    return count


def steps_of(
    program: Program, starting: np.ndarray, granules: int, first_set: Mapping[Opcode, int]
) -> np.ndarray:
    """The steps of the instructions that start, in order: int64 [steps, columns].

    Parameters
    ----------
    starting : bool [instructions]
    granules : the size of DRAM
    first_set : the first PARAM and the first TABLE instruction that starts, or behind all
    """
    found = [part.where(starting[part.insns]) for part in _parts(program, granules, first_set)]
    table = np.concatenate([part.table for part in found])
    places = np.concatenate([np.full(len(part.insns), part.place) for part in found])
    return np.ascontiguousarray(table[np.lexsort((places, table[:, INSN]))])
