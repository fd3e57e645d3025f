"""Operands for trials of tuners, whose values do not matter."""

from __future__ import annotations

import numpy as np

#: Arrays are filled with values around zero, of which no operator makes infinities.
_DEVIATION = 1.0


def random_array(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Small values: floats around zero, integers that are in the range of every type and are
    indices of every axis.
    """
    if np.dtype(dtype).kind == "f":
        return rng.normal(0, _DEVIATION, shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)
