"""Many instructions as one, whose numbers are arrays: what holds for an instruction is then
computed for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np

from .encoding import OPCODE_MASK, Field, layout, layout_bits, unpack_all
from .insn import (
    ATTRIBUTES,
    CLASSES,
    Gemm,
    Insn,
    Load,
    Param,
    Store,
    Table,
    Vector,
    fault,
    field_values,
    names_by_code,
)
from .opcodes import Opcode, Units, opcodes
from .params import HwParams

#: The attributes that all instructions of a batch share: names, and what decides about shapes.
_SHARED: dict[type[Insn], tuple[str, ...]] = {
    Load: ("memory", "widen"),
    Gemm: (),
    Vector: ("op", "src0", "src1", "dst", "post", "reduce"),
    Param: (),
    Store: (),
    Table: (),
}
_SPREAD = ("extents", "src0_strides", "src1_strides", "dst_strides")
_NUMBERS = {
    cls: tuple(f.name for f in fields(cls) if f.name not in (*_SHARED[cls], *_SPREAD))
    for cls in CLASSES.values()
}
_KEYS = {cls: attrgetter(*names) if names else lambda insn: () for cls, names in _SHARED.items()}


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
    values: dict[str, Any] = {name: getattr(insns[0], name) for name in _SHARED[cls]}
    numbers = np.array(list(map(attrgetter(*_NUMBERS[cls]), insns)), np.int64)
    values |= zip(_NUMBERS[cls], numbers.T.copy(), strict=True)
    if cls is Vector:
        for name in _SPREAD:
            table = np.array(list(map(attrgetter(name), insns)), np.int64)
            values[name] = tuple(table.T.copy())
    return cls(**values)


def encode_all(insns: Sequence[Insn], params: HwParams) -> bytes | None:
    """:func:`~.insn.encode` of many instructions; None if one of them is not legal."""
    words = np.zeros((len(insns), params.insn_bytes // 8), np.uint64)
    try:
        found = batches(insns)
    except (OverflowError, ValueError, TypeError):
        return None
    for batch in found:
        if fault(batch.insn, params) is not None:
            return None
        words[batch.rows] = _pack(layout(batch.insn.opcode, params), batch, words.shape[1])
    return words.astype("<u8").tobytes()


def _pack(spec: tuple[Field, ...], batch: Batch, count: int) -> np.ndarray:
    """The words of a batch, uint64 [n, count]."""
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


def decode_all(encoded: bytes, params: HwParams) -> list[Insn] | None:
    """:func:`~.insn.decode` of many instructions; None if one of them does not decode."""
    words = np.frombuffer(encoded, "<u8").reshape(-1, params.insn_bytes // 8)
    codes = words[:, 0] & np.uint64(OPCODE_MASK)
    known = opcodes(params)
    if not np.isin(codes, known).all():
        return None
    found: list[Any] = [None] * len(words)
    for opcode in known:
        rows = np.flatnonzero(codes == opcode)
        decoded = _decode(opcode, words[rows], params)
        if decoded is None:
            return None
        for row, insn in zip(rows.tolist(), decoded, strict=True):
            found[row] = insn
    return found


def _decode(opcode: Opcode, words: np.ndarray, params: HwParams) -> list[Insn] | None:
    """The instructions of an opcode, uint64 [n, words]; None if one of them does not decode."""
    spec = layout(opcode, params)
    word, shift = divmod(layout_bits(spec), 64)
    above = words[:, word:].copy()
    above[:, :1] >>= np.uint64(shift)
    if above.any():
        return None
    columns = unpack_all(spec, words).T.tolist()
    raw = dict(zip((field.name for field in spec), columns, strict=True))
    attributes, values = ATTRIBUTES[opcode], dict[str, Sequence[Any]]()
    for name in attributes.numbers:
        values[name] = raw[name]
    for name, _ in attributes.named:
        names = names_by_code(opcode, name, params)
        if not names.keys() >= set(raw[name]):
            return None
        values[name] = [names[code] for code in raw[name]]
    for name, numbered in attributes.spread:
        values[name] = list(zip(*(raw[n] for n in numbered), strict=True))
    for name in ("pop", "push"):
        values[name] = [Units(mask) for mask in raw[name]]
    return [_made(CLASSES[opcode], values, row) for row in zip(*values.values(), strict=True)]


def _made(cls: type[Insn], names: Iterable[str], values: tuple[Any, ...]) -> Insn:
    """An instruction of these attributes; it has nothing to check, and ``cls(...)`` is slow."""
    insn = object.__new__(cls)
    insn.__dict__.update(zip(names, values, strict=True))
    return insn
