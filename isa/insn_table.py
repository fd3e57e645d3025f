"""Instructions as rows of numbers: what is done for all instructions of a program is then done for
whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .batch import SHARED, Batch, batches, pack_batch
from .encoding import HEADER, OPCODE_MASK, decode_fields, layout, layout_bits
from .errors import VdlaError
from .insn import ATTRIBUTES, CLASSES, Insn, fault, field_values, names_by_code
from .opcodes import Opcode, Units, opcodes
from .params import HwParams

_POP, _PUSH = ([field.name for field in HEADER].index(name) for name in ("pop", "push"))
#: The unit of each opcode; opcodes count from 1.
_UNITS = np.array([-1, *(int(opcode.unit) for opcode in Opcode)])


@dataclass(frozen=True, eq=False)
class InsnTable:
    """Instructions of one configuration.

    Attributes
    ----------
    params : the configuration
    rows : int64 [instructions, most fields of a layout], the values of an instruction's bit fields
        in the order of its layout, then zeros
    """

    params: HwParams
    rows: np.ndarray

    @classmethod
    def of(cls, insns: Sequence[Insn], params: HwParams) -> InsnTable:
        """The table of some instructions, whose fields may be out of range.

        Raises VdlaError for a name that has no code.
        """
        rows = np.zeros((len(insns), widest(params)), np.int64)
        for batch in batches(insns):
            values = field_values(batch.insn)
            for column, field in enumerate(layout(batch.insn.opcode, params)):
                rows[batch.rows, column] = values[field.name]
        return cls(params, rows)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def opcodes(self) -> np.ndarray:
        """The opcode of each instruction, int64 [n]."""
        return np.ascontiguousarray(self.rows[:, 0])

    @cached_property
    def units(self) -> np.ndarray:
        """The unit of each instruction, int64 [n]."""
        return _UNITS[self.opcodes]

    def columns(self, opcode: Opcode) -> dict[str, np.ndarray]:
        """The values of each field in all instructions with an opcode, int64 [their number]."""
        rows = self.rows[self.opcodes == opcode]
        return {field.name: rows[:, i] for i, field in enumerate(layout(opcode, self.params))}

    def column(self, name: str) -> np.ndarray:
        """The values of a field, int64 [n]; 0 in instructions that do not have it."""
        values = np.zeros(len(self), np.int64)
        for opcode in opcodes(self.params):
            position = column_of(opcode, name, self.params)
            if position is not None:
                mine = self.opcodes == opcode
                values[mine] = self.rows[mine, position]
        return values

    @cached_property
    def batches(self) -> list[Batch]:
        """All instructions in batches."""
        return [batch for opcode in opcodes(self.params) for batch in self.batches_of(opcode)]

    def batches_of(self, opcode: Opcode) -> Iterator[Batch]:
        """The instructions with an opcode in batches."""
        own = np.flatnonzero(self.opcodes == opcode)
        names = [field.name for field in layout(opcode, self.params)]
        key = np.zeros(own.size, np.int64)
        for name in SHARED[CLASSES[opcode]]:
            shared = self.rows[own, names.index(name)]
            key = key * (int(shared.max(initial=0)) + 1) + shared
        for value in np.unique(key):
            mine = own[key == value]
            columns = dict(zip(names, self.rows[mine, : len(names)].T.copy(), strict=True))
            yield Batch(_batch_insn(opcode, columns, self.params), mine)

    def insns(self) -> list[Insn]:
        """The instructions."""
        found: list[Any] = [None] * len(self)
        for opcode in opcodes(self.params):
            own = np.flatnonzero(self.opcodes == opcode)
            values = _attributes(opcode, self.columns(opcode), self.params)
            cls, names = CLASSES[opcode], list(values)
            for row, numbers in zip(own.tolist(), zip(*values.values(), strict=True), strict=True):
                found[row] = _made(cls, names, numbers)
        return found

    def take(self, order: Sequence[int] | np.ndarray) -> InsnTable:
        """The instructions in another order, or some of them."""
        return InsnTable(self.params, self.rows[np.asarray(order, np.int64)])

    def with_tokens(self, pops: np.ndarray, pushes: np.ndarray) -> InsnTable:
        """The instructions with these masks of units, int64 [n] each."""
        rows = self.rows.copy()
        rows[:, _POP], rows[:, _PUSH] = pops, pushes
        return replace(self, rows=rows)

    def check(self) -> None:
        """Raise VdlaError if an instruction is not legal."""
        for batch in self.batches:
            if (found := fault(batch.insn, self.params)) is not None:
                raise VdlaError(found)

    def encoded(self) -> bytes:
        """What a core fetches, ``params.insn_bytes`` for each instruction, which must be legal."""
        words = np.zeros((len(self), self.params.insn_bytes // 8), np.uint64)
        for batch in self.batches:
            spec = layout(batch.insn.opcode, self.params)
            words[batch.rows] = pack_batch(spec, batch, words.shape[1])
        return words.astype("<u8").tobytes()


def widest(params: HwParams) -> int:
    """The most fields of a layout."""
    return max(len(layout(opcode, params)) for opcode in Opcode)


def column_of(opcode: Opcode, name: str, params: HwParams) -> int | None:
    """Where a field lies in the rows of an opcode; None if it does not have the field."""
    names = [field.name for field in layout(opcode, params)]
    return names.index(name) if name in names else None


def _batch_insn(opcode: Opcode, columns: Mapping[str, np.ndarray], params: HwParams) -> Any:
    """An instruction of some batch, whose numbers are these columns."""
    attributes, values = ATTRIBUTES[opcode], dict[str, Any]()
    shared = SHARED[CLASSES[opcode]]
    for name in attributes.numbers:
        values[name] = int(columns[name][0]) if name in shared else columns[name]
    for name, _ in attributes.named:
        values[name] = names_by_code(opcode, name, params)[int(columns[name][0])]
    for name, numbered in attributes.spread:
        values[name] = tuple(columns[n] for n in numbered)
    return CLASSES[opcode](**values)


def _attributes(
    opcode: Opcode, columns: Mapping[str, np.ndarray], params: HwParams
) -> dict[str, list[Any]]:
    """The values of each attribute in instructions of an opcode."""
    attributes, values = ATTRIBUTES[opcode], dict[str, list[Any]]()
    for name in attributes.numbers:
        values[name] = columns[name].tolist()
    for name, _ in attributes.named:
        names = names_by_code(opcode, name, params)
        values[name] = [names[code] for code in columns[name].tolist()]
    for name, numbered in attributes.spread:
        values[name] = list(zip(*(columns[n].tolist() for n in numbered), strict=True))
    for name in ("pop", "push"):
        values[name] = [Units(mask) for mask in values[name]]
    return values


def _made(cls: type[Insn], names: Iterable[str], values: tuple[Any, ...]) -> Insn:
    """An instruction of these attributes; it has nothing to check, and ``cls(...)`` is slow."""
    insn = object.__new__(cls)
    insn.__dict__.update(zip(names, values, strict=True))
    return insn


def encode_all(insns: Sequence[Insn], params: HwParams) -> bytes | None:
    """:func:`~.insn.encode` of many instructions; None if one of them is not legal."""
    try:
        table = InsnTable.of(insns, params)
        table.check()
    except (OverflowError, ValueError, TypeError, VdlaError):
        return None
    return table.encoded()


def decode_all(encoded: bytes, params: HwParams) -> list[Insn] | None:
    """:func:`~.insn.decode` of many instructions; None if one of them does not decode."""
    words = np.frombuffer(encoded, "<u8").reshape(-1, params.insn_bytes // 8)
    codes = words[:, 0] & np.uint64(OPCODE_MASK)
    known = opcodes(params)
    if not np.isin(codes, known).all():
        return None
    table = InsnTable(params, decode_fields(encoded, params.insn_bytes, params))
    for opcode in known:
        word, shift = divmod(layout_bits(layout(opcode, params)), 64)
        above = words[codes == opcode, word:].copy()
        above[:, :1] >>= np.uint64(shift)
        if above.any():
            return None
        columns = table.columns(opcode)
        for name, _ in ATTRIBUTES[opcode].named:
            if not names_by_code(opcode, name, params).keys() >= set(columns[name].tolist()):
                return None
    return table.insns()
