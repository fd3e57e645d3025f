"""Operators on images whose channels lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...te.expr import Const, Expr, all_of, select
from ...te.tensor import Tensor, compute
from .base import Expression, Fusion, Op, Pair, Shape, Type, expect

#: The axes of [N, C, H, W] in the order [N, H, W, C], and back.
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass(frozen=True)
class ChannelsLast(Op):
    """The operator ``op``, which is one of images [N, C, H, W], on images [N, H, W, C]; weights
    [O, C, KH, KW] are [O, KH, KW, C]. Operands of other ranks stay as they are."""

    op: Op

    fusion = Fusion.REDUCTION

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.op.name}, channels last"

    def infer(self, *types: Type) -> Type:
        shape, dtype = self.op.infer(*((channels_first(s), d) for s, d in types))
        return channels_last(shape), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        made = self.op.evaluate(*(a.transpose(TO_FIRST) if a.ndim == 4 else a for a in args))
        return np.ascontiguousarray(made.transpose(TO_LAST))

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        found = self.op.expression(
            [_first(tensor) for tensor in inputs], [channels_first(shape) for shape in shapes]
        )
        inner = found.output
        args = (*inputs, *found.args[len(inputs) :])
        shape = channels_last(inner.shape)

        def rule(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
            return inner[n, c, h, w]

        return Expression(compute(shape, rule, "last"), args, found.attributes)

    def macs(self, *shapes: Shape) -> int:
        return self.op.macs(*(channels_first(shape) for shape in shapes))


@dataclass(frozen=True)
class PadLast(Op):
    """An image [N, C, H, W] as [N, H', W', C'], where ``shape`` is [H', W', C']: with ``before``
    rows and columns in front of it, with channels behind it, and with rows and columns behind it or
    without its last ones. All that is no element of the image is ``value``."""

    before: Pair
    shape: tuple[int, int, int]
    value: int

    computes = False

    def infer(self, *types: Type) -> Type:
        [(shape, dtype)] = types
        expect(len(shape) == 4 and shape[1] <= self.shape[2], "an image of as many channels")
        return (shape[0], *self.shape), dtype

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        [image] = (a.transpose(TO_LAST) for a in args)
        result = np.full((len(image), *self.shape), self.value, image.dtype)
        inside = result[:, self.before[0] :, self.before[1] :]
        rows, columns, channels = np.minimum(image.shape[1:], inside.shape[1:])
        inside[:, :rows, :columns, :channels] = image[:, :rows, :columns]
        return result

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        [image], [(images, *sizes)] = inputs, [channels_last(shape) for shape in shapes]

        def rule(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
            h, w = (i - b if b else i for i, b in zip((y, x), self.before, strict=True))
            inside = [i >= 0 for i, b in zip((h, w), self.before, strict=True) if b]
            ends = zip((h, w, c), sizes, (*self.before, 0), self.shape, strict=True)
            inside += [i < size for i, size, b, whole in ends if b + size < whole]
            element = image[n, c, h, w]
            other = Const(self.value, image.dtype)
            return select(all_of(*inside), element, other) if inside else element

        return Expression(compute((images, *self.shape), rule, "padded"), tuple(inputs))


def channels_first(shape: Shape) -> Shape:
    """The shape of an image [N, H, W, C] as [N, C, H, W]; others stay."""
    return tuple(shape[axis] for axis in TO_FIRST) if len(shape) == 4 else shape


def channels_last(shape: Shape) -> Shape:
    """The shape of an image [N, C, H, W] as [N, H, W, C]."""
    return tuple(shape[axis] for axis in TO_LAST)


def _first(tensor: Tensor) -> Tensor:
    if len(tensor.shape) != 4:
        return tensor
    return compute(
        channels_first(tensor.shape), lambda n, c, h, w: tensor[n, h, w, c], f"{tensor.name}.first"
    )
