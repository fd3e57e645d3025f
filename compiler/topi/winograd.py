"""Winograd's convolution: a tile of m x m results of a 3 x 3 kernel by (m + 2)**2 products.

::

    y = A' ((G g G') * (B' d B)) A        d a tile of the image, g the kernel, * by elements

Polynomials are evaluated at the points 0, +-p for each p of ``POINTS[m]``, and infinity, multiplied
there and interpolated (Toom and Cook): a row of m results takes m + 2 products instead of 3 m. On
blocks of channels the stages are::

    tiles[i, j]    = B' image B                     for each block of channels of the input
    products[i, j] = tiles[i, j] . weight[i, j]     a product of matrices for each (i, j)
    sums           = A' products A
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..te.expr import Const, Expr, select
from ..te.tensor import Tensor, compute, reduce_axis, sum_of

FLOAT32 = "float32"

KERNEL = 3
#: Positive points, by results in a row of a tile; their negatives, 0 and infinity are added. For 4
#: results, these points have less than a third of the error of 1 and 2, and products of them are
#: exact.
POINTS = {2: (1.0,), 4: (0.625, 1.5)}


@dataclass(frozen=True, eq=False)
class Matrices:
    """The matrices for n = m + 2 points, in float64: ``image`` B' [n, n], ``kernel`` G [n, 3],
    ``result`` A' [m, n]."""

    image: np.ndarray
    kernel: np.ndarray
    result: np.ndarray


@cache
def matrices(size: int) -> Matrices:
    """The transformations of tiles of ``size`` x ``size`` results."""
    points = [0.0, *(sign * p for p in POINTS[size] for sign in (1.0, -1.0))]
    count = len(points) + 1
    image, kernel = np.zeros((count, count)), np.zeros((count, KERNEL))
    result = np.zeros((size, count))
    for row, point in enumerate(points):
        others = np.array([p for p in points if p != point])
        image[row, : count - 1] = np.poly(others)[::-1]
        kernel[row] = point ** np.arange(KERNEL) / np.prod(point - others)
        result[:, row] = point ** np.arange(size)
    image[-1] = np.poly(points)[::-1]
    kernel[-1, -1] = result[-1, -1] = 1.0
    return Matrices(image, kernel, result)


def points_of(size: int) -> int:
    """Points in a row of a tile."""
    return size + KERNEL - 1


def winograd_sums(size: int, image: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """The convolution [N, OC/B, height, width, B] of an image, whose border completes all tiles."""
    tiles = _tiles(size, image, -(-height // size), -(-width // size))
    products = _products(tiles, weight)
    transform = matrices(size).result
    count, _, n, blocks, rows, columns, lanes = products.shape

    def down(r: Expr, j: Expr, n: Expr, ob: Expr, h: Expr, w: Expr, o: Expr) -> Expr:
        column = [products[i, j, n, ob, h, w, o] for i in range(count)]
        return _element([_by_pairs(row, column) for row in transform], r)

    half = compute((size, count, n, blocks, rows, columns, lanes), down, "result_rows")

    def across(n: Expr, ob: Expr, oh: Expr, ow: Expr, o: Expr) -> Expr:
        row = [half[oh % size, j, n, ob, oh // size, ow // size, o] for j in range(count)]
        return _element([_by_pairs(each, row) for each in transform], ow % size)

    return compute((n, blocks, height, width, lanes), across, "acc")


def _tiles(size: int, image: Tensor, rows: int, columns: int) -> Tensor:
    """The tiles of an image at all points: [points, points, N, C/B, rows, columns, B]."""
    transform = matrices(size).image
    count, (n, blocks, _, width, lanes) = len(transform), image.shape

    def down(i: Expr, n: Expr, c: Expr, h: Expr, x: Expr, k: Expr) -> Expr:
        column = [image[n, c, h * size + y, x, k] for y in range(count)]
        return _element([_by_parity(row, column) for row in transform], i)

    half = compute((count, n, blocks, rows, width, lanes), down, "image_rows")

    def across(i: Expr, j: Expr, n: Expr, c: Expr, h: Expr, w: Expr, k: Expr) -> Expr:
        row = [half[i, n, c, h, w * size + x, k] for x in range(count)]
        return _element([_by_parity(each, row) for each in transform], j)

    return compute((count, count, n, blocks, rows, columns, lanes), across, "tiles")


def _products(tiles: Tensor, weight: Tensor) -> Tensor:
    """The tiles times the weights: [points, points, N, OC/B, rows, columns, B]."""
    ic, ici = reduce_axis(weight.shape[3], "ic"), reduce_axis(weight.shape[4], "ici")

    def rule(i: Expr, j: Expr, n: Expr, ob: Expr, h: Expr, w: Expr, o: Expr) -> Expr:
        return sum_of(tiles[i, j, n, ic, h, w, ici] * weight[i, j, ob, ic, ici, o], (ic, ici))

    shape = (*tiles.shape[:3], weight.shape[2], *tiles.shape[4:6], weight.shape[5])
    return compute(shape, rule, "products")


def _element(elements: Sequence[Expr], index: Expr) -> Expr:
    """The element at an index; in an unrolled loop the index is constant, and no choice is left."""
    *others, chosen = elements
    for position in reversed(range(len(others))):
        chosen = select(index.equal(position), others[position], chosen)
    return chosen


def _by_parity(row: np.ndarray, vector: Sequence[Expr]) -> Expr:
    """``row . vector`` as a sum over even places and a sum over odd places. The rows of p and -p
    share both: only the sign of the odd one differs."""
    parts = [(row[start::2], vector[start::2]) for start in (0, 1) if row[start::2].any()]
    if len(parts) == 1:
        return _dot(*parts[0])
    (even, evens), (odd, odds) = parts
    factor = odd[np.flatnonzero(odd)[-1]]
    return _dot(even, evens) + _dot(odd / factor, odds) * Const(float(factor), FLOAT32)


def _by_pairs(row: np.ndarray, vector: Sequence[Expr]) -> Expr:
    """``row . vector`` by sums and differences of the places of p and -p, which all rows share."""
    coefficients, terms = [row[0], row[-1]], [vector[0], vector[-1]]
    for place in range(1, len(row) - 1, 2):
        plus, minus = vector[place], vector[place + 1]
        same = row[place] == row[place + 1]
        coefficients.append(row[place])
        terms.append(plus + minus if same else plus - minus)
    return _dot(np.array(coefficients), terms)


def _dot(coefficients: np.ndarray, vector: Sequence[Expr]) -> Expr:
    """The sum of products. It begins with a factor of 1 if there is one: that needs no product, and
    each other product is added in one step.
    """
    terms = [(c, v) for c, v in zip(coefficients, vector, strict=True) if c]
    if not terms:
        return Const(0.0, FLOAT32)
    terms.sort(key=lambda term: term[0] != 1)
    (first, v), *rest = terms
    total = v * Const(float(first), FLOAT32)
    for c, v in rest:
        total = total + v * Const(float(c), FLOAT32)
    return total
