"""Images of few channels for tensor cores: each row of a window is one piece of memory.

A convolution of 7 x 7 on three channels, two places apart, in float16::

    image      [N, 3, 224, 224]   ->   [N, 229, 230, 4]   with its border, and a channel of zeros
    weights    [64, 3, 7, 7]      ->   [64, 7, 8, 4]      with zeros for the channel and a column

The 8 x 4 elements of a row are 64 bytes and begin at a multiple of 16. So the product has 7 taps of
32 steps, and copies of 16 bytes bring them; before, it had 147 steps, each of which brought one
element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ....graph.ops.base import Shape
from ....graph.ops.channels_last import TO_LAST, PadLast
from ....graph.ops.convolution import Conv2d, QConv2d
from ....topi import window_counts
from ..templates.product import LEAST_CHANNELS
from ..templates.tensor_gemm import COPY_BYTES
from ..tensor_cores import K_BYTES


@dataclass(frozen=True)
class WindowRows:
    """A convolution on an image that ``image`` makes of its own, of windows with ``columns``."""

    op: Conv2d | QConv2d
    image: PadLast
    columns: int

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """Weights [O, C, KH, KW] as [O, KH, columns, C'], with zeros."""
        last = weights.transpose(TO_LAST)
        more = (self.columns - last.shape[2], self.image.shape[2] - last.shape[3])
        return np.pad(last, ((0, 0), (0, 0), *((0, n) for n in more)))


def window_rows(
    op: Conv2d | QConv2d, image: Shape, weights: Shape, element_bytes: int
) -> WindowRows | None:
    """The convolution by rows of windows, where that takes fewer copies than there are elements in
    a window."""
    (_, channels, *sizes), (_, _, rows, columns) = image, weights
    if channels >= LEAST_CHANNELS or op.dilations[1] > 1:
        return None
    at_once, step = COPY_BYTES // element_bytes, K_BYTES // element_bytes
    # Windows side by side begin a whole number of copies apart.
    alike = at_once // math.gcd(at_once, op.strides[1])
    wide = _whole(channels, alike)
    whole_columns = _whole(columns, step // math.gcd(step, wide))
    if rows * whole_columns * wide // at_once >= rows * columns * channels:
        return None
    kernel = (rows, whole_columns)
    counts = window_counts(tuple(sizes), (rows, columns), op.strides, op.pads, op.dilations)
    height, width = (
        (count - 1) * stride + (size - 1) * dilation + 1
        for count, stride, size, dilation in zip(
            counts, op.strides, kernel, op.dilations, strict=True
        )
    )
    width = _whole(width, at_once // math.gcd(at_once, wide))
    zero = op.x_zero_point if isinstance(op, QConv2d) else 0
    padded = PadLast((op.pads[0], op.pads[1]), (height, width, wide), zero)
    return WindowRows(replace(op, pads=(0, 0, 0, 0)), padded, whole_columns)


def _whole(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple
