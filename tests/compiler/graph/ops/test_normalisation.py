"""Layer and RMS normalisation in integers against float32, and that all values fit int32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vdla.compiler.graph.ops.normalisation import (
    DIGITS,
    FACTOR_LIMIT,
    MOST_WIDTH,
    Numbers,
    QLayerNorm,
    Steps,
    combine_digits,
    digits,
    find_root_index,
    normaliser,
    roots,
)

LIMIT = 1 << 31
WIDTHS = (16, 37, 64, 192, 256, 384, 512, 768, MOST_WIDTH)
#: Squared steps of the input.
EPSILONS = (0.0, 1e-7, 0.004, 1.0, 1e4)


class Wide:
    """int64 arrays whose operators assert that results fit int32; shifts take 5 bits."""

    def __init__(self, values: Any):
        self.values = np.asarray(values, np.int64)
        assert -LIMIT <= self.values.min() and self.values.max() < LIMIT

    @staticmethod
    def raw(other: Any) -> Any:
        return other.values if isinstance(other, Wide) else other

    def __add__(self, other: Any) -> Wide:
        return Wide(self.values + self.raw(other))

    def __sub__(self, other: Any) -> Wide:
        return Wide(self.values - self.raw(other))

    def __mul__(self, other: Any) -> Wide:
        return Wide(self.values * self.raw(other))

    __rmul__ = __mul__

    def __lshift__(self, other: Any) -> Wide:
        return Wide(self.values << (self.raw(other) & 31))

    def __rshift__(self, other: Any) -> Wide:
        return Wide(self.values >> (self.raw(other) & 31))


WIDE = Steps(
    lambda a, b: Wide(np.minimum(a.values, b)),
    lambda index: Wide(roots()[index.values]),
    lambda value: value,
)


def extreme_sums(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and sums of squares of rows of one, two or three different elements: of all variances
    from 0 to the greatest, with means at both ends; and of random rows."""
    rng = np.random.default_rng(width)
    rows = [np.full((1, width), v) for v in (-128, -1, 0, 127)]
    for low, high in ((-128, 127), (-128, -127), (126, 127), (-1, 0), (-128, 0), (0, 127)):
        counts = np.unique(np.linspace(0, width, 60).astype(int))
        rows.append(np.where(np.arange(width) < counts[:, None], low, high))
    for spread in (0.5, 1, 3, 10, 40, 300):
        centre = rng.integers(-128, 128, (100, 1))
        rows.append(np.clip(rng.standard_normal((100, width)) * spread + centre, -128, 127))
    x = np.concatenate(rows).astype(np.int64)
    return x.sum(1), (x * x).sum(1)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_all_that_is_computed_fits_int32(width: int, epsilon: float) -> None:
    """And the factor is that of real numbers, within what it, and the energy, are rounded by, and
    the offset is the mean times it."""
    numbers = Numbers(width, epsilon)
    assert numbers.fits
    total, squares = extreme_sums(width)
    factor, offset = (v.values for v in normaliser(Wide(total), Wide(squares), numbers, WIDE))
    mean, variance = total / width, squares / width - (total / width) ** 2
    vary = variance > 1e-9
    wanted = 2.0**numbers.bits / np.sqrt(variance[vary] + epsilon)
    assert wanted.max() < FACTOR_LIMIT
    energy = width * (variance[vary] + epsilon) * 2.0**numbers.fraction_bits
    off = np.abs(factor[vary] / wanted - 1)
    assert (off < 2**-13 + 0.6 / wanted + 1 / energy).all()
    assert (factor >= 0).all() and factor.max() <= FACTOR_LIMIT
    assert np.abs(offset + mean * factor).max() <= factor.max() * 2.0**-11 + 1024 / width + 3
    # What an element adds to, for the greatest and the least that a row of this mean can have.
    assert 128 * factor.max() < LIMIT
    far = np.sqrt(width - 1) * 2.0**numbers.bits * 1.001
    assert far + (1 << 30) < LIMIT
    found = np.stack(digits(offset.astype(np.int32)))
    assert found.shape[0] == DIGITS and found.min() >= -128 and found.max() <= 127
    np.testing.assert_array_equal(combine_digits(found), offset)
    np.testing.assert_array_equal(combine_digits(np.stack(digits(factor.astype(np.int32)))), factor)


@pytest.mark.parametrize("centre", [-128, -3, 0, 127])
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_around_a_centre_all_fits_int32(width: int, epsilon: float, centre: int) -> None:
    """And the factor is that of real numbers, as above, and the offset the centre times it."""
    numbers = Numbers(width, epsilon, centre)
    assert numbers.fits
    total, squares = extreme_sums(width)
    factor, offset = (v.values for v in normaliser(Wide(total), Wide(squares), numbers, WIDE))
    around = (squares - 2 * centre * total) / width + centre**2
    vary = around > 1e-9
    wanted = 2.0**numbers.bits / np.sqrt(around[vary] + epsilon)
    assert wanted.max() < FACTOR_LIMIT
    energy = width * (around[vary] + epsilon) * 2.0**numbers.fraction_bits
    assert energy.max() < 2**30
    off = np.abs(factor[vary] / wanted - 1)
    assert (off < 2**-13 + 0.6 / wanted + 1 / energy).all()
    assert (factor >= 0).all() and factor.max() <= FACTOR_LIMIT
    np.testing.assert_array_equal(offset, -centre * factor)
    # An element of such a row is at most this far from the centre.
    far = np.sqrt(width) * 2.0**numbers.bits * 1.001
    assert far + (1 << 30) < LIMIT
    np.testing.assert_array_equal(combine_digits(np.stack(digits(offset.astype(np.int32)))), offset)


def test_every_first_root_is_near_and_its_energy_fits() -> None:
    """At both ends of what the table's index stands for, which are all energies of 30 bits."""
    units = (64 ** np.arange(5)[:, None] * np.arange(1, 64)).reshape(-1)
    energies = np.unique(np.concatenate([units, units - 1, [2**30 - 1]]))
    energies = energies[(energies > 0) & (energies < 2**30)]
    index = find_root_index(energies, np.minimum)
    assert (np.diff(index) >= 0).all() and index.max() == 250 and len(np.unique(index)) == 250
    first = roots()[index].astype(np.int64)
    shifted = energies << 2 * (first & 31)
    assert shifted.max() < 2**30 and shifted.min() >= 2**27 - 2**20
    assert np.abs(first / (2**28.5 / np.sqrt(shifted)) - 1).max() < 0.2


def float32(op: QLayerNorm, x: np.ndarray) -> np.ndarray:
    """The normalisation of rows in float32, before it is quantised. What rounding them lost, and a
    second tensor has, is in ``x`` then."""
    real = (x.astype(np.float32) - np.float32(op.centre or 0)) * np.float32(op.in_scale)
    mean = real.mean(-1, keepdims=True, dtype=np.float32)
    apart = real - mean if op.centre is None else real
    variance = (apart * apart).mean(-1, keepdims=True, dtype=np.float32)
    return apart * (1 / np.sqrt(variance + np.float32(op.epsilon))) * op.gain + op.bias


def differences(op: QLayerNorm, x: np.ndarray) -> np.ndarray:
    """How many steps of float32's result the integers are away."""
    wanted = np.rint(float32(op, x) / np.float32(op.out_scale)) + op.zero_point
    return np.abs(op.evaluate(x).astype(int) - np.clip(wanted, -128, 127).astype(int))


def normalisation(
    x: np.ndarray, in_scale: float, epsilon: float, gain: np.ndarray | None = None,
    centre: int | None = None,
) -> QLayerNorm:  # fmt: skip
    """One of these rows, whose greatest result is 127 steps from 0."""
    rng = np.random.default_rng(x.shape[-1])
    gains, bias = (rng.standard_normal(x.shape[-1]).astype(np.float32) for _ in range(2))
    gains = gains if gain is None else gain
    first = QLayerNorm(1, in_scale, epsilon, gains, bias, 1.0, 0, centre)
    out_scale = float(np.abs(float32(first, x)).max()) / 127
    return QLayerNorm(1, in_scale, epsilon, gains, bias, out_scale, 3, centre)


@pytest.mark.parametrize("width", [64, 192, 256, 384, 512, 768])
@pytest.mark.parametrize("spread", [3, 10, 30, 60, 300])
def test_it_is_layer_normalisation(width: int, spread: int) -> None:
    """Within a step of float32, and 99 % of it, at any mean."""
    rng = np.random.default_rng(width + spread)
    centre = rng.integers(-60, 60, (400, 1))
    x = np.clip(np.rint(rng.standard_normal((400, width)) * spread + centre), -128, 127)
    x = x.astype(np.int8)
    for in_scale, epsilon in ((0.02, 1e-5), (0.05, 1e-12), (0.001, 1e-5), (0.5, 1e-3)):
        off = differences(normalisation(x, in_scale, epsilon), x)
        assert off.max() <= 1 and (off == 0).mean() >= 0.99, (in_scale, epsilon)


@pytest.mark.parametrize("width", [64, 288, 576, MOST_WIDTH])
@pytest.mark.parametrize("centre", [-128, -20, 0, 7, 127])
def test_it_is_rms_normalisation(width: int, centre: int) -> None:
    """Within a step of float32, and 99 % of it, around any zero point; a row of zeros is the
    bias."""
    rng = np.random.default_rng((width, 128 + centre))
    spread = rng.uniform(2, 90, (400, 1))
    x = np.clip(np.rint(rng.standard_normal((400, width)) * spread + centre), -128, 127)
    x[0] = centre
    x = x.astype(np.int8)
    for in_scale, epsilon in ((0.02, 1e-5), (0.05, 1e-12), (0.5, 1e-3)):
        op = normalisation(x, in_scale, epsilon, centre=centre)
        off = differences(op, x)
        assert off.max() <= 1 and (off == 0).mean() >= 0.99, (in_scale, epsilon)
        steps = np.rint(op.bias / np.float32(op.out_scale)) + op.zero_point
        assert (op.evaluate(x[:1]) == np.clip(steps, -128, 127).astype(np.int8)).all()


@pytest.mark.parametrize("centre", [None, 0, -20])
@pytest.mark.parametrize("low_bits", [1, 4, 8])
def test_a_second_tensor_has_what_rounding_lost(centre: int | None, low_bits: int) -> None:
    """Rows whose elements are a few steps of the first: with both, most results are float32's."""
    rng = np.random.default_rng(low_bits)
    real = np.rint(rng.standard_normal((400, 576)) * 4 * 2**low_bits) / 2**low_bits + (centre or 0)
    x = np.rint(real)
    low = ((real - x) * 2**low_bits).clip(-128, 127)
    first = normalisation(x.astype(np.int8), 0.05, 1e-5, centre=centre)
    op = replace(first, out_scale=first.out_scale * 1.1, low_bits=low_bits)
    wanted = np.rint(float32(op, x + low / 2**low_bits) / np.float32(op.out_scale)) + op.zero_point
    off = np.abs(op.evaluate(x.astype(np.int8), low.astype(np.int8)).astype(int) - wanted)
    assert off.max() <= 1 and (off == 0).mean() > 0.95
    alone = replace(op, low_bits=None).evaluate(x.astype(np.int8)).astype(int)
    assert np.abs(alone - wanted).mean() > 5 * off.mean()


def test_constant_rows_and_outliers() -> None:
    """A row of equal elements is the bias, with and without epsilon; one element far from all
    others is right, as are rows that differ in one step."""
    width = 256
    x = np.repeat(np.array([-128, -1, 0, 5, 127], np.int8)[:, None], width, axis=1)
    outliers = x.copy()
    outliers[:, 7] = [127, 0, -128, 6, 126]
    for epsilon in (0.0, 1e-12, 1e-5, 1e-2):
        op = normalisation(outliers, 0.05, epsilon)
        # Exactly: float32's mean of equal elements is not always one of them.
        steps = np.rint(op.bias / np.float32(op.out_scale)) + op.zero_point
        assert (op.evaluate(x) == np.clip(steps, -128, 127).astype(np.int8)).all()
        off = differences(op, outliers)
        assert off.max() <= 1 and (off == 0).mean() >= 0.99


def test_small_and_negative_gains() -> None:
    """A gain of 0 gives the bias; a small one, whose bias divided by it does not fit, is at most a
    step off."""
    x = np.random.default_rng(3).integers(-128, 128, (200, 64)).astype(np.int8)
    gain = np.random.default_rng(4).standard_normal(64).astype(np.float32)
    gain[:6] = [0, -0.0, 1e-9, -1e-5, 1e-3, -1]
    op = normalisation(x, 0.05, 1e-5, gain)
    off = differences(op, x)
    assert off.max() <= 1 and (off == 0).mean() >= 0.99
    steps = np.clip(np.rint(op.bias[:2] / op.out_scale) + op.zero_point, -128, 127)
    assert np.abs(op.evaluate(x)[:, :2] - steps).max() <= 1


FIELDS = ("in_scale", "epsilon", "gain", "bias", "out_scale", "zero_point")


def test_any_axis() -> None:
    x = np.random.default_rng(1).integers(-128, 128, (3, 16, 7, 2), np.int8)
    turned = np.moveaxis(x, 1, -1)
    op = normalisation(np.ascontiguousarray(turned).reshape(-1, 16), 0.05, 1e-5)
    last = QLayerNorm(3, *(getattr(op, n) for n in FIELDS)).evaluate(turned)
    np.testing.assert_array_equal(
        QLayerNorm(1, *(getattr(op, n) for n in FIELDS)).evaluate(x), np.moveaxis(last, -1, 1)
    )


@pytest.mark.parametrize(("width", "epsilon"), [(15, 0.1), (MOST_WIDTH + 1, 0.1), (64, 2.0**30)])
def test_rows_that_are_too_long_or_too_small(width: int, epsilon: float) -> None:
    assert not Numbers(width, epsilon).fits
