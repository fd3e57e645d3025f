"""What an instruction's numbers are: results that wrap, saturate and clamp; and how many iterations
lie between a write and a read of the same entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ...isa.encoding import INT8_MAX, INT8_MIN, VECTOR_LOOPS
from ...isa.footprint import gemm_entries, vector_entries
from ...isa.insn import Gemm, Insn, Vector
from ...isa.reference import State, fold, operand
from ...isa.timing import GEMM_DEPTH, VECTOR_DEPTH
from ...isa.vector_ops import BY_NAME, POST_BY_NAME, NumpyKit
from .bins import INDEX_BINS

INT32 = np.iinfo(np.int32)
#: Where the ranges of ``bins.INDEX_BINS`` begin, and where the last one ends.
INDEX_LIMITS = (INT32.min, INT8_MIN, 0, INT8_MAX + 1, INT32.max + 1)


class _ExactKit(NumpyKit):
    """The kit over int64 arrays that hold numbers of 32 bits: what would wrap there does not."""

    @staticmethod
    def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b

    @staticmethod
    def sub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a - b

    @staticmethod
    def mul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b

    @staticmethod
    def shl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a << (b & 31)


class _NotingKit(NumpyKit):
    """Notes what the table is asked for."""

    def __init__(self, table: np.ndarray):
        super().__init__(table)
        self.asked: list[np.ndarray] = []

    def table(self, x: np.ndarray) -> np.ndarray:
        self.asked.append(x)
        return super().table(x)


def wraps(insn: Insn, state: State) -> Iterator[str]:
    """Bins of the numbers that an instruction computes, before it runs."""
    match insn:
        case Gemm():
            if _sum_wraps(insn, state):
                yield "gemm sum wraps"
        case Vector() if insn.dst != "tmp" or "tmp" not in (insn.src0, insn.src1):
            # What reads its own results is left out: its operands are not known before it runs.
            yield from _vector(insn, state)


def distances(insn: Insn, state: State) -> Iterator[str]:
    """Bins of the iterations between a write and a read of the same entry."""
    match insn:
        case Gemm():
            _, sums, overwrites = _iterations(insn, state)
            order = np.argsort(sums, kind="stable")
            again = sums[order][1:] == sums[order][:-1]
            again &= ~overwrites[order[1:]]
            near = np.unique((order[1:] - order[:-1])[again])
            yield from (f"gemm adds after {n}" for n in near[near <= GEMM_DEPTH].tolist())
        case Vector() if insn.dst == "tmp":
            for n in _tmp_distances(insn, VECTOR_DEPTH // state.params.vector_passes):
                yield f"vector reads tmp after {n}"


# ---- the tensor core ----


def _iterations(insn: Gemm, state: State) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Entries of every iteration by memory, those of acc again, and whether it overwrites."""
    uops = state.micro_ops(insn)
    entries = {m: e.reshape(-1) for m, e in gemm_entries(insn, uops).items()}
    shape = (insn.outer, insn.inner, insn.uop_count)
    first = np.broadcast_to(uops["first"] & insn.init, shape).reshape(-1)
    return entries, entries["acc"], first.astype(bool)


def _sum_wraps(insn: Gemm, state: State) -> bool:
    """Whether a sum leaves 32 bits; added one by one only where it may."""
    entries, sums, overwrites = _iterations(insn, state)
    before = int(np.abs(state.acc[sums].astype(np.int64)).max())
    largest = state.params.block_in * INT8_MIN * INT8_MIN
    if before + insn.iterations * largest <= INT32.max:
        return False
    total = state.acc.astype(np.int64)
    for acc, inp, wgt, overwrite in zip(
        sums.tolist(), entries["inp"].tolist(), entries["wgt"].tolist(), overwrites.tolist(),
        strict=True,
    ):  # fmt: skip
        product = state.inp[inp].astype(np.int64) @ state.wgt[wgt].astype(np.int64).T
        total[acc] = product if overwrite else total[acc] + product
        if total[acc].max() > INT32.max or total[acc].min() < INT32.min:
            return True
    return False


# ---- the vector unit ----


def _vector(insn: Vector, state: State) -> Iterator[str]:
    op, post = BY_NAME[insn.op], POST_BY_NAME[insn.post]
    groups, index = int(np.prod(insn.extents[: VECTOR_LOOPS - insn.reduce])), vector_entries(insn)
    each = (
        operand(getattr(insn, name), index[name].reshape(-1), insn, state)
        for name in ("src0", "src1")
    )
    a, b = (values.reshape(groups, -1, *values.shape[1:]) for values in each)
    kit = _NotingKit(state.table)
    if op.slides:
        yield f"vector {op.name} leaves out {insn.imm}"
        exact = result = _slid(insn, a, b)
    else:
        exact = fold(op, a.astype(np.int64), b.astype(np.int64), _ExactKit(state.table))
        result = fold(op, a, b, kit)
    if op.lut_bytes < 2 and (exact != result).any():
        yield f"vector {op.name} wraps"
    if op.lut_bytes:
        asked = np.concatenate([np.ravel(indices) for indices in kit.asked])
        ranges = zip(INDEX_BINS, pairwise(INDEX_LIMITS), strict=True)
        yield from (
            f"vector {op.name} looks up {place}"
            for place, (low, end) in ranges
            if ((low <= asked) & (asked < end)).any()
        )
    if post.rounding is None:
        if insn.dst == "out" and (result < INT8_MIN).any():
            yield "vector saturates at the least"
        if insn.dst == "out" and (result > INT8_MAX).any():
            yield "vector saturates at the greatest"
        return
    total = NumpyKit.add(result, np.broadcast_to(state.bias, result.shape))
    if (total != result.astype(np.int64) + state.bias).any():
        yield f"vector {post.name}: sum wraps"
    factors = [np.broadcast_to(v, result.shape) for v in (state.multiplier, state.shift)]
    if ((total == INT32.min) & (factors[0] == INT32.min)).any():
        yield f"vector {post.name}: least times least"  # the largest product of all
    rounded = post.rounding(total, *factors) + state.zero_point
    below, above = rounded < state.lo, rounded > state.hi
    for place, hit in (("below", below), ("inside", ~(below | above)), ("above", above)):
        if hit.any():
            yield f"vector {post.name}: {place} the clamp"


def _slid(insn: Vector, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a window writes, [results, batch, block]: the sums of each result's products with each
    weight, and of these sums those of the results before."""
    row, left_out = insn.extents[VECTOR_LOOPS - 1 - insn.reduce], insn.unwritten
    total = 0
    for i in range(left_out + 1):
        sums = NumpyKit.tap(a, b, i).sum(axis=1).astype(np.int32)
        rows = sums.reshape(-1, row, *sums.shape[1:])
        total = total + rows[:, i : row - left_out + i]
    return np.reshape(total, (-1, *a.shape[2:]))


def _tmp_distances(insn: Vector, longest: int) -> Iterator[int]:
    """How many iterations after its write an entry of tmp is read, at most ``longest``."""
    entries = {name: e.reshape(-1) for name, e in vector_entries(insn).items()}
    fold = int(np.prod(insn.extents[VECTOR_LOOPS - insn.reduce :])) if insn.reduce else 1
    written = np.full(insn.iterations, -1)
    written[fold - 1 :: fold] = entries["dst"][fold - 1 :: fold]
    for name in ("src0", "src1"):
        if getattr(insn, name) != "tmp":
            continue
        left = np.ones(insn.iterations, bool)
        for distance in range(1, min(longest, insn.iterations - 1) + 1):
            hit = left[distance:] & (entries[name][distance:] == written[:-distance])
            left[distance:] &= ~hit
            if hit.any():
                yield distance
