"""Transposed convolutions whose weights are sorted by the positions of the result that they
reach."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...te.expr import Expr
from ...te.tensor import Tensor, compute
from .base import Expression, Fusion, Op, Pair, Shape, Type, expect
from .convolution import ConvTranspose2d, QConvTranspose2d


@dataclass(frozen=True)
class InPhases(Op):
    """The transposed convolution ``op`` with weights [phase, TH, TW, OC, C] in place of
    [C, OC, KH, KW].

    Places of the result whose numbers have the same remainders by the strides are a phase. They are
    the result of an ordinary convolution of the image with TH x TW taps, zeros among them where the
    strides do not divide the kernel: position ``i`` of phase ``p`` begins at
    position     ``i + (p + before) // stride - (T - 1)`` of the image.
    """

    op: ConvTranspose2d | QConvTranspose2d

    fusion = Fusion.REDUCTION

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.op.name}, in phases"

    @property
    def phases(self) -> int:
        """How many phases there are."""
        return math.prod(self.op.strides)

    @property
    def counts(self) -> Pair:
        """Rows and columns of the largest phase."""
        (height, width), (down, right) = self.op.size, self.op.strides
        return -(-height // down), -(-width // right)

    def infer(self, *types: Type) -> Type:
        sizes = [(len(shape), shape[0]) for shape, _ in types[1:2]]
        expect(sizes == [(5, self.phases)], f"an image and a weight in {self.phases} phases")
        weight, dtype = types[1]
        return self.op.infer(types[0], (self._plain_shape(weight), dtype), *types[2:])

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        x, weight, *rest = args
        plain = np.zeros(self._plain_shape(weight.shape), weight.dtype)
        for phase, (rows, columns) in enumerate(self._taps(plain.shape)):
            plain[:, :, rows, columns] = weight[phase].transpose(3, 2, 0, 1)
        return self.op.evaluate(x, plain, *rest)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        x, weight, *rest = inputs
        (top, left), (down, right) = self.op.before, self.op.strides
        taps = weight.shape[1:3]

        def rule(c: Expr, oc: Expr, kh: Expr, kw: Expr) -> Expr:
            phase = (kh + -top % down) % down * right + (kw + -left % right) % right
            return weight[phase, taps[0] - 1 - kh // down, taps[1] - 1 - kw // right, oc, c]

        plain = compute(self._plain_shape(weight.shape), rule, "plain")
        found = self.op.expression([x, plain, *rest], [x.shape, plain.shape, *shapes[2:]])
        return Expression(found.output, (*inputs, *found.args[len(inputs) :]), found.attributes)

    def macs(self, *shapes: Shape) -> int:
        return self.op.macs(shapes[0], self._plain_shape(shapes[1]), *shapes[2:])

    def sorted_weight(self, weight: np.ndarray) -> np.ndarray:
        """The weight [C, OC, KH, KW] of ``op`` in phases."""
        channels, outputs, *kernel = weight.shape
        taps = [-(-k // s) for k, s in zip(kernel, self.op.strides, strict=True)]
        shape = self._plain_shape((self.phases, *taps, outputs, channels))
        beyond = [(0, whole - size) for size, whole in zip(weight.shape, shape, strict=True)]
        whole = np.pad(weight, beyond)
        parts = [whole[:, :, rows, columns] for rows, columns in self._taps(shape)]
        return np.ascontiguousarray(np.stack(parts).transpose(0, 3, 4, 2, 1))

    def _plain_shape(self, weight: Shape) -> Shape:
        """The shape of the weight of ``op``, whose kernel is a multiple of the strides."""
        _, rows, columns, outputs, channels = weight
        return channels, outputs, rows * self.op.strides[0], columns * self.op.strides[1]

    def _taps(self, weight: Shape) -> Iterator[tuple[slice, slice]]:
        """The taps of each phase in a weight of that shape, the last one first."""
        axes = zip(self.op.strides, self.op.before, weight[2:], strict=True)
        rows, columns = (
            [_backwards((p + before) % stride, stride, size) for p in range(stride)]
            for stride, before, size in axes
        )
        return product(rows, columns)


def _backwards(first: int, step: int, size: int) -> slice:
    """Every ``step``-th of ``size`` positions, a multiple of it, from the last one down to
    ``first``."""
    return slice(size - step + first, None, -step)
