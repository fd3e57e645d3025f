"""Windows over images in NumPy, and products that are exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Integers below this are exact in float64.
EXACT_LIMIT = 2**53

Axes = tuple[Sequence[int], Sequence[int]]


def windows(
    x: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int] | None = None,
    fill: float = 0,
) -> np.ndarray:
    """The windows [N, C, O1..On, K1..Kn] of x [N, C, D1..Dn], of its dtype, with ``fill`` outside
    the image. ``pads`` lists the padding before every dimension, then the padding after every
    dimension; negative padding cuts elements off.
    """
    rank = len(kernel)
    dilations = [1] * rank if dilations is None else dilations
    cut = [slice(max(-before, 0), size + min(after, 0)) for before, size, after in
           zip(pads[:rank], x.shape[2:], pads[rank:], strict=True)]  # fmt: skip
    spread = [(max(b, 0), max(a, 0)) for b, a in zip(pads[:rank], pads[rank:], strict=True)]
    inside = x[(slice(None), slice(None), *cut)]
    padded = np.pad(inside, [(0, 0), (0, 0), *spread], constant_values=fill)
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    axes = tuple(range(2, rank + 2))
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=axes)
    steps = [slice(None, None, n) for n in (*strides, *dilations)]
    return view[(slice(None), slice(None), *steps)]


def tensordot(a: np.ndarray, b: np.ndarray, axes: Axes) -> np.ndarray:
    """``np.tensordot`` of operands of one dtype. Floats are summed in float64 and rounded once;
    integers are exact modulo the width of the dtype.
    """
    if a.dtype.kind == "f":
        return np.tensordot(a.astype(np.float64), b.astype(np.float64), axes).astype(a.dtype)
    if _fits_float(a, b, axes):
        found = np.tensordot(a.astype(np.float64), b.astype(np.float64), axes)
        return found.astype(np.int64).astype(a.dtype)
    return np.tensordot(a.astype(np.int64), b.astype(np.int64), axes).astype(a.dtype)


def _fits_float(a: np.ndarray, b: np.ndarray, axes: Axes) -> bool:
    if not a.size or not b.size:
        return True
    terms = int(np.prod([a.shape[axis] for axis in axes[0]], dtype=np.int64))
    return _largest(a) * _largest(b) * max(terms, 1) < EXACT_LIMIT


def _largest(x: np.ndarray) -> int:
    return max(abs(int(x.min())), abs(int(x.max())))


def convolve(
    x: np.ndarray,
    weight: np.ndarray,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int = 1,
) -> np.ndarray:
    """Convolution of x [N, C, ...] and weight [OC, C/groups, ...] of one dtype, as
    :func:`tensordot` computes it."""
    kernel = weight.shape[2:]
    rank = len(kernel)
    seen = windows(x, kernel, strides, pads, dilations)
    taps = ([1, *range(2 + rank, 2 + 2 * rank)], [1, *range(2, 2 + rank)])
    parts = zip(np.split(seen, groups, axis=1), np.split(weight, groups, axis=0), strict=True)
    found = [tensordot(part, kernels, taps) for part, kernels in parts]
    return np.moveaxis(np.concatenate(found, axis=-1), -1, 1)


def convolve_transposed(
    x: np.ndarray,
    weight: np.ndarray,
    strides: Sequence[int],
    before: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    size: Sequence[int],
) -> np.ndarray:
    """Transposed convolution of x [N, C, ...] and weight [C, OC/groups, ...]: element ``s`` of the
    image and tap ``k`` of the kernel add to place ``s * stride + k * dilation - before``.

    It is the convolution of the image, zeros between its elements, with the kernel turned around.
    """
    rank = len(size)
    kernel = weight.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    spread = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], strides, strict=True)]
    after = [max(b + n - w, 0) for b, n, w in zip(before, size, spread, strict=True)]
    apart = np.zeros((*x.shape[:2], *spread), x.dtype)
    apart[(slice(None), slice(None), *(slice(None, None, s) for s in strides))] = x
    turned = weight[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
    parts = zip(np.split(apart, groups, axis=1), np.split(turned, groups, axis=0), strict=True)
    pads = (*(span - 1 for span in spans), *after)
    found = [
        convolve(part, kernels.swapaxes(0, 1), [1] * rank, pads, dilations)
        for part, kernels in parts
    ]
    inside = tuple(slice(b, b + n) for b, n in zip(before, size, strict=True))
    return np.concatenate(found, axis=1)[(slice(None), slice(None), *inside)]
