"""Arrays as batches of images of the size that a model was compiled for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..isa.errors import VdlaError
from .native import TensorType


def are_batches(inputs: Sequence[TensorType], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether arrays of these shapes differ from the inputs in the number of images only, which is
    as many times as large in all of them."""
    counts = set()
    for tensor, shape in zip(inputs, shapes, strict=True):
        if len(shape) != len(tensor.shape):
            return False
        if any(n != m for i, (n, m) in enumerate(zip(shape, tensor.shape)) if i != tensor.axis):  # noqa: B905
            return False
        if tensor.axis is not None and shape:
            counts.add(shape[tensor.axis] / max(tensor.shape[tensor.axis], 1))
    return len(counts) <= 1


def count_batches(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], arrays: Sequence[np.ndarray]
) -> int:
    """How many batches the arrays have.

    Raises
    ------
    VdlaError
        For arrays that do not fit, and for several batches of a model without images.
    """
    types = ", ".join(f"{t.name} {t.dtype}{list(t.shape)}" for t in inputs)
    scalars = [t.name for t in (*inputs, *outputs) if not t.shape and t.axis is not None]
    if scalars:
        raise VdlaError(
            f"run: {scalars[0]!r} is a scalar, so the model runs on arrays of exactly its own"
            f" shapes: {types}"
        )
    counts = set()
    for array, tensor in zip(arrays, inputs, strict=True):
        sizes = ["N" if i == tensor.axis else str(n) for i, n in enumerate(tensor.shape)]
        fits = are_batches([tensor], [array.shape])
        empty = fits and tensor.axis is not None and not array.shape[tensor.axis]
        if not fits or str(array.dtype) != tensor.dtype or empty:
            raise VdlaError(
                f"input {tensor.name!r}: expected {tensor.dtype} of shape"
                f" ({', '.join(sizes)}), got {array.dtype} of {array.shape}"
            )
        if tensor.axis is None:
            continue
        size, given = tensor.shape[tensor.axis], array.shape[tensor.axis]
        if given % size:
            which = "first dimension" if not tensor.axis else f"dimension {tensor.axis}"
            raise VdlaError(
                f"input {tensor.name!r}: expected a multiple of {size} in the {which}, got {given}"
            )
        counts.add(given // size)
    if len(counts) != 1:
        raise VdlaError(f"run: expected as many batches of every input, got {sorted(counts)}")
    return counts.pop()
