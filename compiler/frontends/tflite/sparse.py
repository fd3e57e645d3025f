"""Sparse constants of TensorFlow Lite files: their elements as a dense array.

A sparse tensor lists its dimensions in the order in which its elements are stored, those of blocks
behind the others. A dense dimension has all its places. Of a sparse one, ``segments`` says where
the places of each element of the dimensions before it begin in ``places``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tflite

from ....isa.errors import VdlaError

#: The tables of a dimension's numbers by their type.
_VECTORS = {
    tflite.SparseIndexVector.Int32Vector: tflite.Int32Vector,
    tflite.SparseIndexVector.Uint16Vector: tflite.Uint16Vector,
    tflite.SparseIndexVector.Uint8Vector: tflite.Uint8Vector,
}
Numbers = Callable[[Any, str], np.ndarray]


def places_of(sparsity: Any, shape: Sequence[int], what: str, numbers: Numbers) -> np.ndarray:
    """For each stored element, its place in the flattened dense tensor.

    ``numbers`` reads a vector of a table by its name.

    Raises
    ------
    VdlaError
        When the description does not fit ``shape``.
    """
    order = [int(v) for v in numbers(sparsity, "TraversalOrder")]
    blocks = [int(v) for v in numbers(sparsity, "BlockMap")]
    levels, rank = len(order), len(shape)
    if sorted(order) != list(range(rank + len(blocks))) or any(
        not 0 <= axis < rank for axis in blocks
    ):
        raise _damaged(what, f"it has dimensions {order} and blocks of {blocks}")
    if sparsity.DimMetadataLength() != levels:
        raise _damaged(what, f"it describes {sparsity.DimMetadataLength()} dimensions of {levels}")
    parents, found, limit = 1, np.zeros((0, 1), np.int64), math.prod(shape)
    for level in range(levels):
        source, own = _level(sparsity.DimMetadata(level), parents, what, numbers, limit)
        found = np.concatenate([found[:, source], own[None]])
        parents = own.size
    sizes = [_size(sparsity, order.index(rank + i)) for i in range(len(blocks))]
    index = [found[order.index(axis)] for axis in range(rank)]
    for i, axis in enumerate(blocks):
        index[axis] = index[axis] * sizes[i] + found[order.index(rank + i)]
    if any(((at < 0) | (at >= n)).any() for at, n in zip(index, shape, strict=True)):
        raise _damaged(what, f"an element lies outside of {list(shape)}")
    flat = np.zeros(parents, np.int64)
    for at, n in zip(index, shape, strict=True):
        flat = flat * n + at
    return flat


def _level(
    table: Any, parents: int, what: str, numbers: Numbers, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which element before it each element of a dimension belongs to, and its place."""
    if table.Format() == tflite.DimensionType.DENSE:
        size = int(table.DenseSize())
        if not 0 <= size * parents <= limit:
            raise _damaged(what, f"it has {parents} times {size} elements of {limit}")
        return np.repeat(np.arange(parents), size), np.tile(np.arange(size), parents)
    segments = _vector(table.ArraySegmentsType(), table.ArraySegments(), what, numbers)
    places = _vector(table.ArrayIndicesType(), table.ArrayIndices(), what, numbers)
    counts = np.diff(segments)
    if segments.size != parents + 1 or segments[0] or (counts < 0).any():
        raise _damaged(what, f"expected {parents + 1} rising segments")
    if segments[-1] != places.size:
        raise _damaged(what, f"expected {segments[-1]} places, got {places.size}")
    return np.repeat(np.arange(parents), counts), places


def _vector(kind: int, stored: Any, what: str, numbers: Numbers) -> np.ndarray:
    if kind not in _VECTORS or stored is None:
        raise _damaged(what, f"a list of numbers has the unknown type {kind}")
    table = _VECTORS[kind]()
    table.Init(stored.Bytes, stored.Pos)
    return numbers(table, "Values").astype(np.int64)


def _size(sparsity: Any, level: int) -> int:
    return int(sparsity.DimMetadata(level).DenseSize())


def _damaged(what: str, why: str) -> VdlaError:
    return VdlaError(f"sparsity of {what} is damaged: {why}")
