"""Bit layouts of instructions and micro-ops as functions of the scratchpads' sizes.

This is the one place that knows a field's width. Encoder, decoder, the RTL's structures, assembler
and docs derive from :func:`layout`; fields lie in the listed order, least significant first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

import numpy as np

from .opcodes import (  # fmt: skip
    DST_MEMORIES,
    LOADABLE,
    SRC0_MEMORIES,
    SRC1_MEMORIES,
    Features,
    Opcode,
    Unit,
    opcodes,
)
from .vector_ops import POST_OPS, VECTOR_OP_BITS, operators

#: The code in the lowest bits of every instruction.
OPCODE_BITS = 3
#: Loop extents and row counts are at most 2**bits - 1.
SIZE_BITS = 12
VECTOR_EXTENT_BITS = 10
PAD_BITS = 5
DRAM_ADDR_BITS = 32
Y_STRIDE_BITS = 24
Z_STRIDE_BITS = 32
#: Loops of a VECTOR instruction.
VECTOR_LOOPS = 4
#: Entries of par that PARAM reads: bias, multiplier and shift.
PARAM_ENTRIES = 3
#: Bits of an element of inp, wgt and out, and of an element of acc, tmp and par.
INT8_BITS, INT32_BITS = 8, 32
INT8_MIN, INT8_MAX = -(1 << INT8_BITS - 1), (1 << INT8_BITS - 1) - 1

#: Selects the opcode of an instruction's word.
OPCODE_MASK = (1 << OPCODE_BITS) - 1


class Scratchpads(Protocol):
    """The sizes that layouts depend on. :class:`~.params.HwParams` has them."""

    def index_bits(self, memory: str) -> int:
        """Bits of an index into a scratchpad."""
        ...


class Machine(Scratchpads, Features, Protocol):
    """What a whole instruction set depends on."""


@dataclass(frozen=True)
class Field:
    """One field of a layout: name, width in bits, whether two's complement, and a line for the
    documentation.
    """

    name: str
    bits: int
    doc: str
    signed: bool = False

    @cached_property
    def minimum(self) -> int:
        """Smallest value the field holds."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @cached_property
    def maximum(self) -> int:
        """Largest value the field holds."""
        return (1 << (self.bits - self.signed)) - 1


HEADER: tuple[Field, ...] = (
    Field("opcode", OPCODE_BITS, "which instruction"),
    Field(
        "pop",
        len(Unit),
        "units to take a token from before starting: bit "
        + ", ".join(f"{unit} {unit.name.lower()}" for unit in Unit),
    ),
    Field("push", len(Unit), "units to give a token to when ended, same bits"),
)


def _index_bits(params: Scratchpads, memories: tuple[str, ...]) -> int:
    return max(params.index_bits(memory) for memory in memories if memory != "imm")


def _code(name: str, doc: str, names: Sequence[object]) -> Field:
    """A field that selects one of ``names``."""
    return Field(name, (len(names) - 1).bit_length(), doc)


def _memory(name: str, doc: str, memories: tuple[str, ...]) -> Field:
    """A field that selects a memory."""
    codes = ", ".join(f"{code} {memory}" for code, memory in enumerate(memories))
    return _code(name, f"{doc}: {codes}", memories)


def _load(params: Scratchpads) -> tuple[Field, ...]:
    return (
        _memory("memory", "destination", LOADABLE),
        Field("widen", 1, "DRAM holds less: int8 for the int32 of par, packed weights for wgt"),
        Field("pad_value", INT8_BITS, "every byte of a padding entry", signed=True),
        Field("base", _index_bits(params, LOADABLE), "first entry written"),
        Field("dram_addr", DRAM_ADDR_BITS, "byte address of the first row"),
        Field("x_size", SIZE_BITS, "entries of a row, without padding"),
        Field("y_size", SIZE_BITS, "rows of a plane read from DRAM, without padding"),
        Field("z_size", SIZE_BITS, "planes"),
        Field("y_stride", Y_STRIDE_BITS, "bytes from row to row"),
        Field("z_stride", Z_STRIDE_BITS, "bytes from plane to plane"),
        Field("pad_top", PAD_BITS, "padding rows before each plane"),
        Field("pad_bottom", PAD_BITS, "padding rows after each plane"),
        Field("pad_left", PAD_BITS, "padding entries before each row"),
        Field("pad_right", PAD_BITS, "padding entries after each row"),
    )


def _gemm(params: Scratchpads) -> tuple[Field, ...]:
    strides = tuple(
        Field(
            f"{memory}_{loop}",
            params.index_bits(memory),
            f"entries that {memory} advances per {loop} iteration",
        )
        for memory in ("acc", "inp", "wgt")
        for loop in ("outer", "inner")
    )
    return (
        Field(
            "init", 1, "micro-ops flagged `first` overwrite the accumulator instead of adding to it"
        ),
        Field("uop_begin", params.index_bits("uop"), "first micro-op"),
        Field(
            "uop_count",
            params.index_bits("uop") + 1,
            "micro-ops run for every (outer, inner) iteration",
        ),
        Field("outer", SIZE_BITS, "extent of the outer loop"),
        Field("inner", SIZE_BITS, "extent of the inner loop"),
        *strides,
    )


def _vector(params: Scratchpads) -> tuple[Field, ...]:
    operands = (("src0", SRC0_MEMORIES), ("src1", SRC1_MEMORIES), ("dst", DST_MEMORIES))
    return (
        Field("op", VECTOR_OP_BITS, "row of the operator table"),
        _code("post", "row of the post-operation table", POST_OPS),
        _code(
            "reduce",
            f"how many of the innermost loops fold into one result: 0 to {VECTOR_LOOPS}",
            range(VECTOR_LOOPS + 1),
        ),
        _memory("src0", "first operand", SRC0_MEMORIES),
        _memory("src1", "second operand", SRC1_MEMORIES),
        _memory("dst", "destination", DST_MEMORIES),
        Field("imm", INT32_BITS, "immediate, the second operand when src1 = imm", signed=True),
        *(
            Field(f"n{i}", VECTOR_EXTENT_BITS, f"extent of loop {i} (0 is the outermost)")
            for i in range(VECTOR_LOOPS)
        ),
        *(
            field
            for name, memories in operands
            for field in (
                Field(f"{name}_base", _index_bits(params, memories), f"first entry of {name}"),
                *(
                    Field(
                        f"{name}_s{i}", _index_bits(params, memories), f"{name} stride of loop {i}"
                    )
                    for i in range(VECTOR_LOOPS)
                ),
            )
        ),
    )


def _param(params: Scratchpads) -> tuple[Field, ...]:
    return (
        Field(
            "par_base",
            params.index_bits("par"),
            "par entries base, +1, +2 become bias, multiplier and shift",
        ),
        Field("zero_point", INT8_BITS, "output zero point", signed=True),
        Field("lo", INT8_BITS, "lower clamp", signed=True),
        Field("hi", INT8_BITS, "upper clamp", signed=True),
    )


def _table(params: Scratchpads) -> tuple[Field, ...]:
    return (Field("par_base", params.index_bits("par"), "first par entry of the table"),)


def _store(params: Scratchpads) -> tuple[Field, ...]:
    return (
        Field("base", params.index_bits("out"), "first entry read"),
        Field("dram_addr", DRAM_ADDR_BITS, "byte address of the first row"),
        Field("x_size", SIZE_BITS, "entries of a row"),
        Field("y_size", SIZE_BITS, "rows of a plane"),
        Field("z_size", SIZE_BITS, "planes"),
        Field("y_stride", Y_STRIDE_BITS, "bytes from row to row"),
        Field("z_stride", Z_STRIDE_BITS, "bytes from plane to plane"),
    )


_BODIES = {
    Opcode.LOAD: _load,
    Opcode.GEMM: _gemm,
    Opcode.VECTOR: _vector,
    Opcode.PARAM: _param,
    Opcode.STORE: _store,
    Opcode.TABLE: _table,
}


@cache
def layout(opcode: Opcode, params: Scratchpads) -> tuple[Field, ...]:
    """All fields of an instruction, header first, least significant first."""
    return HEADER + _BODIES[opcode](params)


@cache
def uop_layout(params: Scratchpads) -> tuple[Field, ...]:
    """Fields of a GEMM micro-op."""
    return (
        Field("acc", params.index_bits("acc"), "accumulator entry"),
        Field("inp", params.index_bits("inp"), "activation entry"),
        Field("wgt", params.index_bits("wgt"), "weight tile"),
        Field("first", 1, "overwrite instead of accumulate when the instruction says `init`"),
    )


def layout_bits(fields: tuple[Field, ...]) -> int:
    """Width of a layout."""
    return sum(field.bits for field in fields)


def widest_layout_bits(params: Scratchpads) -> int:
    """Width of the widest instruction of a configuration."""
    return max(layout_bits(layout(opcode, params)) for opcode in Opcode)


def fingerprint(params: Machine) -> list:
    """Names, widths and codes of the whole instruction set, JSON-ready: what a program and a core
    must agree on.
    """
    known = opcodes(params)
    layouts = {opcode.name: layout(opcode, params) for opcode in known} | {
        "uop": uop_layout(params)
    }
    return [
        {name: [[field.name, field.bits] for field in fields] for name, fields in layouts.items()},
        {opcode.name: opcode.value for opcode in known},
        [[row.name, row.code] for row in (*operators(params), *POST_OPS)],
    ]


def pack(fields: tuple[Field, ...], values: dict[str, int]) -> int:
    """Field values to one little-endian integer. Values must be in range (see ``insn.py``)."""
    word, offset = 0, 0
    for field in fields:
        word |= (int(values[field.name]) & ((1 << field.bits) - 1)) << offset
        offset += field.bits
    return word


def unpack(fields: tuple[Field, ...], word: int) -> dict[str, int]:
    """The inverse of :func:`pack`."""
    values = {}
    for field in fields:
        raw = word & ((1 << field.bits) - 1)
        values[field.name] = (
            raw - (1 << field.bits) if field.signed and raw >> (field.bits - 1) else raw
        )
        word >>= field.bits
    return values


def unpack_all(fields: tuple[Field, ...], words: np.ndarray) -> np.ndarray:
    """:func:`unpack` of many at once.

    Parameters
    ----------
    fields : of at most 63 bits each
    words : uint64 [n, words], little-endian

    Returns
    -------
    int64 [n, fields]
    """
    padded = np.concatenate([words, np.zeros((len(words), 1), np.uint64)], axis=1)
    values = np.empty((len(words), len(fields)), np.int64)
    lsb = 0
    for column, field in enumerate(fields):
        word, shift = divmod(lsb, 64)
        raw = padded[:, word] >> np.uint64(shift)
        if shift + field.bits > 64:
            raw |= padded[:, word + 1] << np.uint64(64 - shift)
        # Shift to the top and back again: this drops the bits above the field and extends its sign.
        top = (raw << np.uint64(64 - field.bits)).view(np.int64 if field.signed else np.uint64)
        values[:, column] = top >> (64 - field.bits)
        lsb += field.bits
    return values


def decode_fields(encoded: bytes, insn_bytes: int, params: Scratchpads) -> np.ndarray:
    """Decode instructions of ``insn_bytes`` bytes each into a table: a row has the values of an
    instruction's fields in the order of its layout, then zeros; int64 [instructions, most fields of
    a layout].
    """
    words = np.frombuffer(encoded, np.uint64).reshape(-1, insn_bytes // 8)
    opcodes = words[:, 0] & np.uint64(OPCODE_MASK)
    layouts = {opcode: layout(opcode, params) for opcode in Opcode}
    table = np.zeros((len(words), max(map(len, layouts.values()))), np.int64)
    for opcode, fields in layouts.items():
        rows = np.flatnonzero(opcodes == opcode)
        table[rows, : len(fields)] = unpack_all(fields, words[rows])
    return table
