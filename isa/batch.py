"""Many instructions as one, whose numbers are arrays: what holds for an instruction is then
computed for all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np

from .encoding import Field
from .insn import CLASSES, Gemm, Insn, Load, Param, Store, Table, Vector, field_values

#: The attributes that all instructions of a batch share: names, and what decides about shapes.
SHARED: dict[type[Insn], tuple[str, ...]] = {
    Load: ("memory", "widen"),
    Gemm: (),
    Vector: ("op", "src0", "src1", "dst", "post", "reduce"),
    Param: (),
    Store: (),
    Table: (),
}
_SPREAD = ("extents", "src0_strides", "src1_strides", "dst_strides")
_NUMBERS = {
    cls: tuple(f.name for f in fields(cls) if f.name not in (*SHARED[cls], *_SPREAD))
    for cls in CLASSES.values()
}
_KEYS = {cls: attrgetter(*names) if names else lambda insn: () for cls, names in SHARED.items()}


@dataclass(frozen=True)
class Batch:
    """Instructions of one class with the same names.

    Attributes
    ----------
    insn : an instruction of the class, whose numbers are int64 [n]
    rows : int64 [n], the index of each in the sequence that they come from
    """

    insn: Any
    rows: np.ndarray

    def column(self, value: Any) -> np.ndarray:
        """A value of the batch for each instruction, int64 [n]."""
        return np.broadcast_to(np.asarray(value, np.int64), self.rows.shape)


def batches(insns: Sequence[Insn]) -> list[Batch]:
    """All instructions in batches.

    Raises
    ------
    OverflowError
        For a number that 64 bits do not hold.
    ValueError, TypeError
        For tuples of different lengths and for what is no number.
    """
    groups: dict[tuple, list[int]] = {}
    for index, insn in enumerate(insns):
        cls = type(insn)
        groups.setdefault((cls, _KEYS[cls](insn)), []).append(index)
    return [
        Batch(_merged(cls, [insns[i] for i in rows]), np.array(rows, np.int64))
        for (cls, _), rows in groups.items()
    ]


def _merged(cls: type[Insn], insns: Sequence[Insn]) -> Insn:
    values: dict[str, Any] = {name: getattr(insns[0], name) for name in SHARED[cls]}
    numbers = np.array(list(map(attrgetter(*_NUMBERS[cls]), insns)), np.int64)
    values |= zip(_NUMBERS[cls], numbers.T.copy(), strict=True)
    if cls is Vector:
        for name in _SPREAD:
            table = np.array(list(map(attrgetter(name), insns)), np.int64)
            values[name] = tuple(table.T.copy())
    return cls(**values)


def pack_batch(spec: tuple[Field, ...], batch: Batch, count: int) -> np.ndarray:
    """The words of a batch, uint64 [n, count]; ``spec`` is its layout."""
    values = field_values(batch.insn)
    words = np.zeros((len(batch.rows), count), np.uint64)
    lsb = 0
    for field in spec:
        raw = batch.column(values[field.name]).astype(np.uint64)
        raw &= np.uint64((1 << field.bits) - 1)
        word, shift = divmod(lsb, 64)
        words[:, word] |= raw << np.uint64(shift)
        if shift + field.bits > 64:
            words[:, word + 1] |= raw >> np.uint64(64 - shift)
        lsb += field.bits
    return words
