"""Products of matrices whose second factor lies in blocks of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .... import topi
from ....te.expr import Const, Expr, select
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ..base import Expression, Fusion, Op, Shape, Type, clip, expect, expect_dtypes, operands
from ..layout import in_blocks

#: Products that are added at once where factors have eight bits.
DOT_WIDTH = 4


@dataclass(frozen=True)
class PackColumns(Op):
    """Matrices [..., K, N] in blocks of ``block`` columns, [..., N/B, K, B]; columns beyond N are
    0. Dimension i of the matrices is dimension ``order[i]`` of the operand."""

    block: int
    order: tuple[int, ...]

    computes = False

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = operands(types, 1)
        ordered = sorted(self.order) == list(range(len(shape)))
        expect(ordered and len(shape) >= 2, f"matrices, and an order of {len(shape)} axes")
        *lead, depth, columns = (shape[axis] for axis in self.order)
        return (*lead, -(-columns // self.block), depth, self.block), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        matrices = args[0].transpose(self.order)
        blocks = in_blocks(matrices, self.block, matrices.ndim - 1)
        return np.ascontiguousarray(blocks.swapaxes(-3, -2))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [x] = inputs
        (shape, _) = self.infer((x.shape, x.dtype))
        columns = x.shape[self.order[-1]]

        def rule(*index: Expr) -> Expr:
            *lead, block, depth, lane = index
            column = block * self.block + lane
            positions = dict(zip(self.order, (*lead, depth, column), strict=True))
            element = x[tuple(positions[axis] for axis in range(len(positions)))]
            if columns % self.block == 0:
                return element
            return select(column < columns, element, Const(0, element.dtype))

        return Expression(compute(shape, rule, "out"), (x,))


@dataclass(frozen=True)
class PackedDense(Op):
    """``clip(x @ w + bias)``: x [..., N, K], w [..., OC/B, K, B] of the same leading dimensions,
    bias [OC/B, B], if any; result [..., N, OC]. All are float32, or int32 without bounds.

    Or products that an instruction adds by fours: x uint8, w int8 [..., OC/B, K/4, B, 4], and the
    bias and the result int32.
    """

    features: int
    lo: float = -math.inf
    hi: float = math.inf

    fusion = Fusion.REDUCTION

    def infer(self, *types: Type) -> Type:
        count, given = max(2, len(types)), types[0][1] if types else ""
        dtype = given if given == "float32" else "int32"
        dots = given == "uint8"
        factors = ("uint8", "int8") if dots else (dtype, dtype)
        x, weight, *bias = expect_dtypes(types, *factors, *[dtype] * (count - 2))
        if dots and weight[-1:] == (DOT_WIDTH,):
            weight = (*weight[:-3], weight[-3] * DOT_WIDTH, weight[-2])
        fits = len(weight) == len(x) + 1 >= 3 and (*x[:-2], x[-1]) == (*weight[:-3], weight[-2])
        expect(fits, "matrices, and packed ones that they can be multiplied by")
        *_, blocks, _, block = weight
        expect(bias in ([], [(blocks, block)]), f"a bias [{blocks}, {block}]")
        expect((blocks - 1) * block < self.features <= blocks * block, "blocks of all features")
        return (*x[:-1], self.features), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *bias = args
        if x.dtype == np.uint8:
            *lead, blocks, fours, lanes, four = weight.shape
            weight = weight.swapaxes(-2, -1).reshape(*lead, blocks, fours * four, lanes)
        wide, dtype = (np.float64, np.float32) if x.dtype.kind == "f" else (np.int64, np.int32)
        apart = weight.swapaxes(-3, -2).astype(wide)
        plain = apart.reshape(*apart.shape[:-2], -1)
        sums = (x.astype(wide) @ plain).astype(dtype)
        sums = sums + bias[0].reshape(-1) if bias else sums
        return clip(sums[..., : self.features], self.lo, self.hi)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *bias = inputs
        lead = x.shape[:-2]
        blocks, size, block = weight.shape[len(lead) :][:3]
        k, four = reduce_axis(size, "k"), reduce_axis(DOT_WIDTH, "four")

        def product(*index: Expr) -> Expr:
            *positions, n, ob, o = index
            if x.dtype != "uint8":
                return sum_of(x[(*positions, n, k)] * weight[(*positions, ob, k, o)], k)
            element = x[(*positions, n, k * DOT_WIDTH + four)].astype("int32")
            factor = weight[(*positions, ob, k, o, four)].astype("int32")
            return sum_of(element * factor, (k, four))

        acc = compute((*lead, x.shape[-2], blocks, block), product, "acc")

        def epilogue(*index: Expr) -> Expr:
            total = acc[index] + bias[0][index[-2:]] if bias else acc[index]
            return topi.clip_between(total, self.lo, self.hi)

        done = compute(acc.shape, epilogue, "blocks")

        def rule(*index: Expr) -> Expr:
            *positions, o = index
            return done[(*positions, o // block, o % block)]

        out = compute((*x.shape[:-1], self.features), rule, "out")
        return Expression(out, tuple(inputs))

    def macs(self, *shapes: Shape) -> int:
        x, *_ = shapes
        return math.prod(x) * self.features
