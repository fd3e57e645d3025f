"""Rows of int32 that are clamped and stored as bytes side by side: four vectors as one.

The units that move elements take two operations to store one row by itself, and products need one
of these units, too. Four rows together take four operations: three that narrow two vectors to one,
and one that puts the elements in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ...te.expr import Binary, Cast, Const, Expr
from ...tir.ir import For, Stmt, Store
from .llvm_vector import find_stores, split_offset
from .processor import Processor

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

#: Rows that are stored together, and elements in each.
ROWS, LANES = 4, 16
#: The same register, as 16 elements, as 32 and as 64.
_INTS, _WORDS, _BYTES = (ir.VectorType(ir.IntType(bits), 512 // bits) for bits in (32, 16, 8))


@dataclass(frozen=True, eq=False)
class NarrowRow:
    """``store`` stores ``int8(clamp(value, low, high))``; with a ``lift``, this is added and the
    sum is uint8."""

    loop: For
    store: Store
    value: Expr
    low: int
    high: int
    lift: int


def has_packs(processor: Processor) -> bool:
    """Whether a processor has the instructions that narrow vectors."""
    return processor.has("avx512bw")


def narrow_rows(stmts: Sequence[Stmt]) -> list[NarrowRow] | None:
    """Statements as rows whose bytes lie one behind another, or None if they are something else.

    No row reads what another row stores: of a buffer that it writes, a vector reads only the place
    that it writes.
    """
    rows: list[NarrowRow] = []
    for stmt in stmts:
        row = _narrow_row(stmt)
        if row is None:
            return None
        rows.append(row)
    if len(rows) < ROWS:
        return None
    kinds = [(row.store.buffer, row.low, row.high, row.lift) for row in rows]
    if kinds != kinds[:1] * ROWS:
        return None
    places = [split_offset(row.store.buffer, row.store.indices, row.loop.var) for row in rows]
    start, terms = places[0]
    fits = places == [(start + LANES * i, terms) for i in range(ROWS)]
    return rows if fits else None


def _narrow_row(stmt: Stmt) -> NarrowRow | None:
    match stmt:
        case For(extent=16, kind="vectorized", body=Store() as store):
            value, lift = store.value, 0
        case _:
            return None
    match value:
        case Binary("+", Cast("uint8", clamped), Const(lift)):
            value = clamped
    match value:
        case Cast("int8", Binary("min", Binary("max", value, Const(low)), Const(high))) if (
            value.dtype == "int32" and -128 <= low <= high <= 127 and find_stores(stmt)
        ):
            return NarrowRow(stmt, store, value, int(low), int(high), int(lift))
    return None


def packed(builder: Value, vectors: Sequence[Value], row: NarrowRow) -> Value:
    """The bytes of four vectors of int32, in order, clamped and lifted as the row says."""
    a, b, c, d = vectors
    words = [_pack(builder, "packssdw", _WORDS, *pair) for pair in ((a, b), (c, d))]
    mixed = builder.bitcast(_pack(builder, "packsswb", _BYTES, *words), _INTS)
    # Packing works within 128 bits: the i-th have elements 4 * i to 4 * i + 3 of each row.
    order = ir.Constant(_INTS, [4 * (k % ROWS) + k // ROWS for k in range(LANES)])
    found = builder.bitcast(builder.shuffle_vector(mixed, mixed, order), _BYTES)
    for limit, beyond, bound in ((-128, "<", row.low), (127, ">", row.high)):
        if bound != limit:
            bounds = _BYTES([bound] * _BYTES.count)
            found = builder.select(builder.icmp_signed(beyond, found, bounds), bounds, found)
    return builder.add(found, _BYTES([row.lift] * _BYTES.count)) if row.lift else found


def _pack(builder: Value, name: str, kind: Value, a: Value, b: Value) -> Value:
    full = f"llvm.x86.avx512.{name}.512"
    callee = builder.module.globals.get(full)
    if callee is None:
        callee = ir.Function(builder.module, ir.FunctionType(kind, [a.type, b.type]), full)
    return builder.call(callee, [a, b])
