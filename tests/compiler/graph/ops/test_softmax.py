"""Softmax in integers against float32, and the inverses of its sums against exact division."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from vdla.compiler.graph.ops.softmax import (
    HALF_BITS,
    MASKED,
    MOST_KEYS,
    MOST_ROOM,
    ONE,
    PRODUCT_BITS,
    VISIBLE,
    QTableSoftmax,
    first_inverse,
    inverses,
    newton,
    newton_steps,
    refined,
)

SCALES = (0.02, 0.05, 0.1, 0.2, 0.5)
LIMIT = 1 << 31


def every_sum(keys: int) -> np.ndarray:
    """All sums of so many exponentials, of which one is that of 0; every fourth of 2,048."""
    return np.arange(ONE, keys * ONE + 1, max(1, keys // 512), dtype=np.int64)


@pytest.mark.short(3)
@pytest.mark.parametrize(
    "keys",
    [1, 2, 3, 16, 37, 64, *(pytest.param(n, marks=pytest.mark.slow) for n in (128, 512, 2048))],
)
def test_every_inverse_is_exact_and_fits_int32(keys: int) -> None:
    """Of every sum that a row can have. What is multiplied on the way fits int32, and so does the
    greatest exponential times the inverse."""
    total = every_sum(keys)
    inverse, most = np.full_like(total, first_inverse(keys)), 0
    for _ in range(newton_steps(keys)):
        share = (total * inverse >> HALF_BITS) + (2 << HALF_BITS)
        most = max(most, *(int(np.abs(x).max()) for x in (total * inverse, share * inverse)))
        inverse = newton(total, inverse)
    rest = (total * inverse + (1 << PRODUCT_BITS)) * inverse
    assert max(most, int(np.abs(rest).max()) + LIMIT // 4) < LIMIT
    for room in (0, MOST_ROOM):
        found = refined(total, inverse, room)
        np.testing.assert_array_equal(found, inverses(total, keys, room))
        off = np.abs(found + 2.0 ** (PRODUCT_BITS + room) / total).max()
        short, long = ((0.51, 33), (0.52, 129))
        assert off < (short if keys <= 512 else long)[room > 0]
        assert (np.minimum(ONE, total >> room) * -found).max() < LIMIT


def float32(x: np.ndarray, in_scale: float, out_scale: float, zero_point: int) -> np.ndarray:
    """Softmax between Dequantize and Quantize, in float32."""
    return of_real(x.astype(np.float32) * np.float32(in_scale), out_scale, zero_point)


def of_real(real: np.ndarray, out_scale: float, zero_point: int) -> np.ndarray:
    """Softmax of float32, quantised."""
    powers = np.exp(real - real.max(-1, keepdims=True))
    share = powers / powers.sum(-1, keepdims=True, dtype=np.float32)
    return np.clip(np.rint(share / np.float32(out_scale)) + zero_point, -128, 127).astype(np.int8)


@pytest.mark.fast(2)
@pytest.mark.parametrize("keys", [16, 37, 64, 128, 197, 512, 1500, 2048])
@pytest.mark.parametrize("spread", [1, 10, 40])
def test_it_is_softmax(keys: int, spread: int) -> None:
    """Within a step of float32, and 99 % of it (94 % of rows of 2,048), also where a row's
    probabilities are twice the largest that was calibrated; 70 % where all are nearly equal."""
    x = np.random.default_rng(keys + spread).standard_normal((600, keys)) * spread
    x = np.clip(np.rint(x), -128, 127).astype(np.int8)
    for scale in SCALES:
        powers = np.exp(scale * x.astype(np.float64))
        largest = float((powers / powers.sum(-1, keepdims=True)).max())
        for out_scale in (1 / 255, largest / 255, largest / 2 / 255):
            found = QTableSoftmax(1, scale, out_scale, -128).evaluate(x)
            wanted = float32(x, scale, out_scale, -128)
            off = np.abs(found.astype(int) - wanted)
            share = 0.7 if spread == 1 else 0.99 if keys <= 512 else 0.94
            assert off.max() <= 1 and (off == 0).mean() >= share, (scale, out_scale)


def masks(rows: int, keys: int) -> dict[str, np.ndarray]:
    """Causal, the last keys are padding, and any keys: those that are kept."""
    anywhere = np.random.default_rng(rows).random((rows, keys)) < 0.4
    anywhere[:, 3] = True
    return {
        "causal": np.tri(rows, keys, dtype=bool),
        "padding": np.arange(keys) < keys - 7,
        "anywhere": anywhere,
    }


@pytest.mark.fast(1)
@pytest.mark.parametrize("keys", [16, 64, 197])
@pytest.mark.parametrize("kind", ["causal", "padding", "anywhere"])
def test_a_mask(keys: int, kind: str) -> None:
    """As without those that are masked; what is masked is the zero point, also where it is far
    above all that is kept. ONNX Runtime takes -infinity for it: tests of models compare with it."""
    x = np.random.default_rng(keys).integers(-128, 128, (3, 400, keys)).astype(np.int8)
    kept = masks(400, keys)[kind]
    whole, mask = np.broadcast_to(kept, x.shape), np.where(kept, VISIBLE, MASKED).astype(np.int8)
    for scale, out_scale, zero in product((0.005, 0.02, 0.1), (1 / 255, 1 / 1200), (-128, 5)):
        op = QTableSoftmax(2, scale, out_scale, zero)
        found = op.evaluate(x, mask)
        assert (found[~whole] == zero).all()
        real = np.where(whole, x.astype(np.float32) * np.float32(scale), np.float32(-np.inf))
        off = np.abs(found.astype(int) - of_real(real, out_scale, zero))
        assert off.max() <= 1 and (off == 0)[whole].mean() >= 0.99, (scale, out_scale)
        all_kept = op.evaluate(x, np.full(1, VISIBLE, np.int8))
        np.testing.assert_array_equal(all_kept, op.evaluate(x))


def test_the_ends_of_int8() -> None:
    """Rows of equal elements, one far above all others, and results of any zero point."""
    rows = [[5] * 4, [-128] * 4, [127, -128, -128, -128], [127, 127, -128, -128], [0, 1, 2, 3]]
    x = np.array(rows, np.int8)
    scales, zero_points = (1 / 255, 1 / 100, 1 / 2000, 1 / 60_000), (-128, 0, 127)
    for in_scale, out_scale, zero in product((0.001, 0.1, 3.0), scales, zero_points):
        found = QTableSoftmax(1, in_scale, out_scale, zero).evaluate(x)
        assert np.abs(found.astype(int) - float32(x, in_scale, out_scale, zero)).max() <= 1


def test_any_axis() -> None:
    x = np.random.default_rng(1).integers(-128, 128, (3, 5, 7, 2), np.int8)
    for axis in range(4):
        turned = np.moveaxis(x, axis, -1)
        last = QTableSoftmax(3, 0.1, 1 / 255, -128).evaluate(turned)
        found = QTableSoftmax(axis, 0.1, 1 / 255, -128).evaluate(x)
        np.testing.assert_array_equal(found, np.moveaxis(last, -1, axis))


def test_the_table_is_int16_and_begins_with_one() -> None:
    table = QTableSoftmax(1, 0.1, 1 / 255, -128).exponentials
    assert table.dtype == np.int16 and table[0] == ONE and (np.diff(table) <= 0).all()
    assert MOST_KEYS * ONE < 1 << 26
