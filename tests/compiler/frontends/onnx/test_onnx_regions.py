"""Boxes, moved taps and transforms where random cases seldom go, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.isa.errors import VdlaError

from .cases.draw import Operand, Sample, constant

RNG = np.random.default_rng(3)


def same(sample: Sample) -> None:
    """The interpreter's result is ONNX Runtime's."""
    model, feeds = sample.model(), sample.feeds()
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    graph = import_onnx(model)
    (made,) = interpret(graph, *(feeds[name] for name in graph.inputs))
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)


def given(values: np.ndarray) -> Operand:
    return Operand(values, is_constant=False)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("samples", [0, 2])
def test_boxes_outside_of_the_image(mode: str, samples: int) -> None:
    """Beside, around and half outside of it; a box of no size."""
    x = RNG.uniform(0.5, 1, (1, 2, 6, 5)).astype(np.float32)
    boxes = [[-9, -9, -2, -2], [-3, -3, 20, 20], [3, 2, 12, 9], [2.5, 2.5, 2.5, 2.5]]
    boxes = boxes if samples else boxes[:3]
    rois = constant(np.array(boxes), "float32")
    images = constant(np.zeros(len(boxes)), "int64")
    attributes = {"mode": mode, "output_height": 3, "output_width": 2, "sampling_ratio": samples,
                  "coordinate_transformation_mode": "half_pixel"}  # fmt: skip
    same(Sample("RoiAlign", [given(x), rois, images], attributes, opset=16))


def test_taps_far_outside_are_zero() -> None:
    x, weight = RNG.normal(size=(1, 1, 3, 3)), RNG.normal(size=(1, 1, 2, 2))
    offset = RNG.choice([-1.0, 0.0, 0.25, 2.75, 40.0, -40.0], (1, 8, 2, 2))
    operands = [given(v.astype(np.float32)) for v in (x, weight, offset)]
    same(Sample("DeformConv", operands, {"kernel_shape": [2, 2]}, opset=19))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_singular_matrix(size: int) -> None:
    x = RNG.integers(-3, 4, (4, size, size)).astype(np.float32)
    x[0, :, 0] = 0
    x[1, size // 2] = x[1, 0]
    same(Sample("Det", [given(x)], opset=11))


def test_boxes_that_depend_on_inputs_are_refused() -> None:
    operands = [given(RNG.uniform(0, 1, (1, 3, 4)).astype(np.float32)),
                given(RNG.uniform(0, 1, (1, 1, 3)).astype(np.float32)),
                constant([2], "int64")]  # fmt: skip
    with pytest.raises(VdlaError, match="whose elements decide the result's shape"):
        import_onnx(Sample("NonMaxSuppression", operands).model())


def transform(x: np.ndarray, inverse: int) -> np.ndarray:
    """The discrete Fourier transform along the second dimension."""
    sample = Sample("DFT", [given(x)], {"axis": 1, "inverse": inverse}, opset=19)
    return interpret(import_onnx(sample.model()), x)[0]


@pytest.mark.parametrize("length", [9, 13, 16, 34, 120, 251])
def test_stages_of_transforms_are_numpys(length: int) -> None:
    """Powers of a prime, several primes, and primes that have a matrix. Where no stage has four
    numbers in NumPy and none has a matrix here, an inverse transform has the same bits."""
    x = RNG.normal(size=(2, length, 2)).astype(np.float32)
    for inverse, of_numpy in ((0, np.fft.fft), (1, np.fft.ifft)):
        made = transform(x, inverse)
        wanted = of_numpy(x[..., 0] + 1j * x[..., 1], axis=1)
        close = np.abs(made[..., 0] + 1j * made[..., 1] - wanted).max() / np.abs(wanted).max()
        assert made.dtype == np.float32 and close < (1e-6 if inverse else 1e-7)
        if inverse and length == 9:
            np.testing.assert_array_equal(made[..., 0] + 1j * made[..., 1], wanted)


@pytest.mark.parametrize("length", [4099, 1 << 17])
def test_transforms_that_are_too_long_are_refused(length: int) -> None:
    with pytest.raises(VdlaError, match=f"no prime factor above 4096, got {length}"):
        transform(np.zeros((1, length, 1), np.float32), 0)
