"""The arrays that a command reads from an ``.npz`` file, or makes at random."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from ..isa.errors import VdlaError

if TYPE_CHECKING:
    from ..module import Module


def model_inputs(module: Module, path: Path | None, seed: int) -> list[np.ndarray]:
    """One array per input of the model, from a file or random."""
    types = module.compiled.inputs
    if path is None:
        return [_random(tensor.shape, tensor.dtype, seed) for tensor in types]
    return read_arrays(path, [tensor.name for tensor in types])


def read_arrays(path: Path, names: list[str]) -> list[np.ndarray]:
    """The named arrays of a file, in this order.

    A single array may also have the name ``x``, or any name if the file holds no other.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, AttributeError, TypeError, BadZipFile) as error:
        raise VdlaError(f"{path}: expected arrays in an .npz file ({error})") from None
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise VdlaError(f"{path}: expected numbers, got {array.dtype} in {name!r}")
    if len(names) == 1 and names[0] not in arrays:
        only = arrays.get("x", next(iter(arrays.values())) if len(arrays) == 1 else None)
        if only is not None:
            return [only]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise VdlaError(f"{path}: expected an array {missing[0]!r}, got {', '.join(arrays)}")
    return [arrays[name] for name in names]


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Normally distributed numbers for a float input, uniformly distributed ones otherwise."""
    rng = np.random.default_rng(seed)
    if np.issubdtype(np.dtype(dtype), np.floating):
        return rng.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
