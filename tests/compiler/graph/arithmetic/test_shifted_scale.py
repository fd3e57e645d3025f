"""Functions that scale and shift: integers give every value."""

from __future__ import annotations

import numpy as np
from vdla.compiler.graph.arithmetic.shifted_scale import find_constants
from vdla.compiler.graph.ops.group_matmul import QAddChannels
from vdla.compiler.graph.ops.quantisation import Dequantize, Quant, Quantize

RNG = np.random.default_rng(5)
X = np.arange(-128, 128).astype(np.int8)


def tables(scales: tuple[float, float], zeros: tuple[int, int], added: np.ndarray) -> np.ndarray:
    """What ONNX's operators make of every int8 and every constant, in float32."""
    before, after = (
        Quant(np.array([scale], np.float32), np.array([zero], np.int32))
        for scale, zero in zip(scales, zeros, strict=True)
    )
    real = Dequantize(before).evaluate(X)[None] + added[:, None].astype(np.float32)
    return Quantize(after).evaluate(real)


def test_every_value_of_every_channel() -> None:
    """Also constants so large that all values are a bound."""
    none = 0
    for _ in range(300):
        ratio = RNG.uniform(0.3, 3)
        scales = 0.02, 0.02 / ratio
        zeros = int(RNG.integers(-128, 128)), int(RNG.integers(-128, 128))
        wanted = tables(scales, zeros, RNG.standard_normal(40) * RNG.choice([1.0, 8.0]))
        found = find_constants(wanted, scales[0] / scales[1], zeros[1])
        none += found is None
        if found is not None:
            op = QAddChannels(*found, zeros[1])
            x = np.broadcast_to(X[None, None, :, None], (1, 40, 256, 1))
            np.testing.assert_array_equal(op.evaluate(x)[0, :, :, 0], wanted)
            limit = 128 * found[0] + np.abs(found[2].astype(np.int64)) + 2 ** found[1]
            assert limit.max() < 2**31
    assert none < 10


def test_what_does_not_scale_has_no_constants() -> None:
    bent = tables((0.02, 0.02), (0, 0), np.zeros(1))
    bent[0, 100] += 2
    assert find_constants(bent, 1.0, 0) is None


def test_a_scale_beyond_int32_has_none() -> None:
    assert find_constants(np.full((1, 256), 127, np.int8), 2.0**24, 0) is None
