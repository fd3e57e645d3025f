"""The vector unit's operators: one table, each row's semantics written once against a small
arithmetic kit.

A *kit* is anything with the methods of :class:`NumpyKit` (two's complement, 32 bits, wrapping).
NumPy interprets the table in the reference; ``sim/model/llvm_kit.py`` brings a kit that builds LLVM
IR, ``hw/core/vector/kits.py`` one that says what a lane computes. The decoder, the assembler, the
random program generator and ``docs/isa.md`` iterate :data:`VECTOR_OPS`; so adding a row is all it
takes, here or by :func:`register_vector_op`.

An instruction with ``reduce`` = r folds its r innermost loops into one result: the first iteration
of a result computes ``first(a, b)``, every later one ``term(a, b)``, and ``combine(result, term)``
merges them. Without reduction every iteration is a first one. A row whose ``term`` is None cannot
reduce.

A row that ``slides`` computes several results at once: convolutions along a row of an image, one
entry of the image an iteration. A lane keeps ``vector_window`` sums. Iteration by iteration,
``kit.tap(a, b, i)``, the product of the lowest byte of ``a`` and byte i of ``b``, is added to sum
i. Before the first iteration of a result the sums move on: sum i becomes sum i + 1, and sum 0 is 0.
The result is sum ``imm``, to which the iterations of ``imm`` results before have contributed, too.
So the first ``imm`` results of each run of the innermost loop that is not reduced are not written,
and no entries are left out for them: the result behind them goes to the first entry. For a row of
an image, reduced over a column of a kernel of three columns, with the weights of a row of the
kernel in bytes 0 to 2 and ``imm`` = 2, these are the two columns before the first whole window.
With ``imm`` = 0, it is a sum of products of bytes, as ``first``, ``term`` and ``combine`` say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .additions import check_free, note
from .errors import VdlaError
from .opcodes import Features

Binary = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class VectorOp:
    """One row: ``first(kit, a, b)``, and for reductions ``term(kit, a, b)`` and ``combine(kit,
    result, term)``. ``lut_bytes`` is the smallest ``vector_table`` that the operator needs. An
    operator that ``slides`` needs a ``vector_window``.
    """

    name: str
    code: int
    doc: str
    first: Binary
    term: Binary | None = None
    combine: Binary | None = None
    lut_bytes: int = 0
    slides: bool = False


def _left(_kit: Any, a: Any, _b: Any) -> Any:
    return a


VECTOR_OPS: list[VectorOp] = [
    VectorOp("min", 0, "min(a, b); reduces to the minimum of b and every a",
             lambda k, a, b: k.min(a, b), _left, lambda k, r, t: k.min(r, t)),
    VectorOp("max", 1, "max(a, b); reduces to the maximum of b and every a",
             lambda k, a, b: k.max(a, b), _left, lambda k, r, t: k.max(r, t)),
    VectorOp("add", 2, "a + b; reduces to b plus the sum of every a",
             lambda k, a, b: k.add(a, b), _left, lambda k, r, t: k.add(r, t)),
    VectorOp("sub", 3, "a - b", lambda k, a, b: k.sub(a, b)),
    VectorOp("mul", 4, "a * b (low 32 bits); reduces to the sum of products",
             lambda k, a, b: k.mul(a, b), lambda k, a, b: k.mul(a, b), lambda k, r, t: k.add(r, t)),
    VectorOp("shr", 5, "a >> b, arithmetic, b modulo 32", lambda k, a, b: k.shr(a, b)),
    VectorOp("rshr", 6, "a / 2**b rounded half to even, b modulo 32", lambda k, a, b: k.rshr(a, b)),
    VectorOp("shl", 7, "a << b (low 32 bits), b modulo 32", lambda k, a, b: k.shl(a, b)),
    VectorOp("window", 8, "the sum of int8(a) * int8(b >> 8 i) over the iterations of the result "
             "`imm` - i before, for i = 0 to `imm`; the first `imm` results of each run of the "
             "innermost loop that is not reduced are not written",
             lambda k, a, b: k.tap(a, b, 0), lambda k, a, b: k.tap(a, b, 0),
             lambda k, r, t: k.add(r, t), slides=True),
    VectorOp("table_diff", 14, "table[(b - a) modulo 256]; reduces to the sum of the "
             "table's values for every b - a", lambda k, a, b: k.table(k.sub(b, a)),
             lambda k, a, b: k.table(k.sub(b, a)), lambda k, r, t: k.add(r, t), lut_bytes=2),
    VectorOp("table", 15, "table[a modulo 256] + b; reduces to b plus the sum of the table's "
             "values for every a", lambda k, a, b: k.add(k.table(a), b), lambda k, a, _: k.table(a),
             lambda k, r, t: k.add(r, t), lut_bytes=1),
]  # fmt: skip

BY_NAME = {op.name: op for op in VECTOR_OPS}
BY_CODE = {op.code: op for op in VECTOR_OPS}
OP_CODES = {op.name: op.code for op in VECTOR_OPS}
#: Codes of operators have so many bits.
VECTOR_OP_BITS = 4
#: Values of the table, one for each value of a byte.
TABLE_VALUES = 256


def operators(params: Features) -> tuple[VectorOp, ...]:
    """The operators of a configuration."""
    return tuple(
        op
        for op in VECTOR_OPS
        if op.lut_bytes <= params.vector_table and (params.vector_window or not op.slides)
    )


def register_vector_op(op: VectorOp) -> None:
    """Add an operator to the table. Configurations with it have other hashes than those without.

    Raises
    ------
    VdlaError
        For a name or a code that is taken, and a code that does not fit its field.
    """
    check_free("vector operator", op.name, BY_NAME)
    free = [code for code in range(1 << VECTOR_OP_BITS) if code not in BY_CODE]
    if op.code not in free:
        raise VdlaError(
            f"vector operator {op.name!r}: expected a code that is not taken "
            f"({', '.join(map(str, free))}), got {op.code!r}"
        )
    VECTOR_OPS.append(op)
    BY_NAME[op.name] = BY_CODE[op.code] = op
    OP_CODES[op.name] = op.code

    def undo() -> None:
        VECTOR_OPS.remove(op)
        del BY_NAME[op.name], BY_CODE[op.code], OP_CODES[op.name]

    note(f"vector operator {op.name}", undo)


class _TextKit:
    """The kit whose results are texts: what a row computes, written down."""

    def __getattr__(self, name: str) -> Callable[..., str]:
        return lambda *operands: f"{name}({', '.join(map(str, operands))})"


def semantics() -> str:
    """What all operators compute, as text. Tables with equal texts compute the same."""
    kit = _TextKit()
    return "\n".join(
        f"{op.code} {op.name}: "
        + "; ".join(
            function(kit, "a", "b")
            for function in (op.first, op.term, op.combine)
            if function is not None
        )
        for op in VECTOR_OPS
    )


class NumpyKit:
    """The kit over int32 arrays. An instance has a table, int8 or int16 [256]; the class has
    none."""

    def __init__(self, table: np.ndarray) -> None:
        self._table = table

    def table(self, a: np.ndarray) -> np.ndarray:
        return self._table[a % TABLE_VALUES].astype(np.int32)

    @staticmethod
    def min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.minimum(a, b)

    @staticmethod
    def max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.maximum(a, b)

    @staticmethod
    def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.int64) + b).astype(np.int32)

    @staticmethod
    def sub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.int64) - b).astype(np.int32)

    @staticmethod
    def mul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.int64) * b).astype(np.int32)

    @staticmethod
    def tap(a: np.ndarray, b: np.ndarray, i: int) -> np.ndarray:
        return a.astype(np.int8).astype(np.int32) * (b >> 8 * i).astype(np.int8)

    @staticmethod
    def shr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a >> (b & 31)

    @staticmethod
    def rshr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return shift_right_half_even(a.astype(np.int64), (b & 31).astype(np.int64)).astype(np.int32)

    @staticmethod
    def shl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.int64) << (b & 31)).astype(np.int32)


def shift_right_half_even(value: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """``value / 2**shift`` rounded to nearest, ties to even; int64 arrays, 0 <= shift <= 63.

    floor(v / 2**s) plus one when the dropped bits exceed one half, or equal it and the quotient is
    odd.
    """
    shift = np.asarray(shift, np.int64)
    floor = value >> shift
    below = np.maximum(shift - 1, 0)
    half = ((value >> below) & 1).astype(bool) & (shift > 0)
    sticky = (value & ((np.int64(1) << below) - 1)) != 0
    return floor + (half & (sticky | ((floor & 1) == 1)))


def requantize_even(acc: np.ndarray, multiplier: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """``acc * multiplier / 2**shift`` rounded half to even (ONNX's definition of QuantizeLinear),
    before zero point and clamp.

    ``acc`` int32, ``multiplier`` int32, ``shift`` int32 of which the low 6 bits count; returns
    int64 (exact).
    """
    product = acc.astype(np.int64) * multiplier.astype(np.int64)
    return shift_right_half_even(product, shift.astype(np.int64) & 63)


def requantize_tflite(acc: np.ndarray, multiplier: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """TensorFlow Lite's reference: saturating rounding doubling high multiply, then rounding divide
    by a power of two.

    ``shift`` int32: s >= 0 divides by 2**s after the multiply (low 5 bits), s < 0 shifts left by -s
    before (low 5 bits). Returns int64 within int32 range.
    """
    left = np.where(shift < 0, -shift.astype(np.int64) & 31, 0)
    right = np.where(shift < 0, 0, shift.astype(np.int64) & 31)
    value = (acc.astype(np.int64) << left).astype(np.int32).astype(np.int64)
    factor = multiplier.astype(np.int64)
    product = value * factor
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    total = product + nudge
    high = np.where(total >= 0, total >> 31, -((-total) >> 31))
    both_lowest = (value == -(1 << 31)) & (factor == -(1 << 31))
    high = np.where(both_lowest, (1 << 31) - 1, high)
    mask = (np.int64(1) << right) - 1
    remainder = high & mask
    threshold = (mask >> 1) + (high < 0)
    return (high >> right) + (remainder > threshold)


@dataclass(frozen=True)
class PostOp:
    """What happens to a result before it is written: name, code and the rounding (int32 in, int64
    out) or None.
    """

    name: str
    code: int
    doc: str
    rounding: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None


POST_OPS: tuple[PostOp, ...] = (
    PostOp("none", 0, "nothing; a result for out saturates to int8", None),
    PostOp("even", 1, "requantise: clamp(half_to_even((r + bias) * multiplier / 2**shift) "
           "+ zero_point, lo, hi)", requantize_even),
    PostOp("tflite", 2, "requantise with TensorFlow Lite's double rounding, otherwise as even",
           requantize_tflite),
)  # fmt: skip

POST_BY_NAME = {post.name: post for post in POST_OPS}
