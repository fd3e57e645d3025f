"""MediaPipe's custom operators against the loops of its kernels."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

from .tflite_builder import TfliteBuilder

RNG = np.random.default_rng(17)
SAME, VALID = 1, 2


def run(data: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    graph = import_tflite(data)
    found = interpret(graph, *inputs)
    for a, b in zip(build_cpu(run_passes(graph)).run(*inputs), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return list(found)


def pads_of(n: int, k: int, s: int, padding: int) -> int:
    return max(0, k - (n - 1) % s - 1) if padding == SAME else 0


def transposed(x: np.ndarray, w: np.ndarray, bias: np.ndarray, stride: int, padding: int):  # type: ignore[no-untyped-def]
    kernel = w.shape[1:3]
    cut = [pads_of(n, k, stride, padding) for n, k in zip(x.shape[1:3], kernel, strict=True)]
    size = [stride * (n - 1) + k - c for n, k, c in zip(x.shape[1:3], kernel, cut, strict=True)]
    y = np.broadcast_to(bias, (x.shape[0], *size, w.shape[0])).astype(np.float64)
    for iy, ix in np.ndindex(*x.shape[1:3]):
        for ky, kx in np.ndindex(*kernel):
            oy, ox = iy * stride - cut[0] // 2 + ky, ix * stride - cut[1] // 2 + kx
            if 0 <= oy < size[0] and 0 <= ox < size[1]:
                y[:, oy, ox] += x[:, iy, ix] @ w[:, ky, kx].T
    return y


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize("kernel, stride", [((4, 4), 2), ((2, 2), 2), ((3, 5), 2), ((1, 1), 2)])
def test_transposed_convolution(kernel: tuple[int, int], stride: int, padding: int) -> None:
    x = RNG.normal(size=(2, 5, 6, 3)).astype(np.float32)
    weight = RNG.normal(size=(4, *kernel, 3)).astype(np.float32)
    bias = RNG.normal(size=4).astype(np.float32)
    right = transposed(x, weight, bias, stride, padding)
    b = TfliteBuilder()
    given, y = b.tensor(x.shape, "float32"), b.tensor(right.shape, "float32")
    operands = [given, *(b.tensor(v.shape, "float32", data=v) for v in (weight, bias))]
    options = struct.pack("<3i", padding, stride, stride)
    b.operator("Convolution2DTransposeBias", operands, [y], own=options)
    np.testing.assert_allclose(run(b.file([given], [y]), x)[0], right, rtol=1e-4, atol=1e-5)


def pool(b: TfliteBuilder, kind: str, inputs: list[int], outputs: list[int], *fields: int) -> None:
    b.operator(kind, inputs, outputs, own=struct.pack(f"<{len(fields)}i", *fields))


@pytest.mark.parametrize(
    "padding, kernel, stride", [(SAME, 2, 2), (VALID, 2, 2), (SAME, 3, 2), (VALID, 3, 1)]
)
def test_maxima_and_their_places(padding: int, kernel: int, stride: int) -> None:
    x = RNG.integers(-9, 9, (2, 5, 6, 3)).astype(np.float32)
    sizes, before = [], []
    for n in x.shape[1:3]:
        sizes.append(-(-n // stride) if padding == SAME else (n - kernel + stride) // stride)
        before.append(max((sizes[-1] - 1) * stride + kernel - n, 0) // 2 if padding == SAME else 0)
    shape = (2, *sizes, 3)
    largest, places = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for n, oy, ox, c in np.ndindex(*shape):
        best = None
        for ky, kx in np.ndindex(kernel, kernel):
            y, column = oy * stride - before[0] + ky, ox * stride - before[1] + kx
            inside = 0 <= y < x.shape[1] and 0 <= column < x.shape[2]
            if inside and (best is None or x[n, y, column, c] > best):
                best = x[n, y, column, c]
                largest[n, oy, ox, c] = best
                places[n, oy, ox, c] = np.float32(ky * kernel + kx) + np.float32(0.1)
    b = TfliteBuilder()
    given, y, z = b.tensor(x.shape, "float32"), *(b.tensor(shape, "float32") for _ in "yz")
    pool(b, "MaxPoolingWithArgmax2D", [given], [y, z], padding, stride, stride, kernel, kernel, 0)
    found = run(b.file([given], [y, z]), x)
    np.testing.assert_array_equal(found[0], largest)
    np.testing.assert_array_equal(found[1], places)


def test_elements_go_back_to_their_places() -> None:
    """Pooling and its inverse: each window keeps its largest element."""
    x = RNG.permutation(2 * 4 * 6 * 3).reshape(2, 4, 6, 3).astype(np.float32) + 1
    b = TfliteBuilder()
    given, y = b.tensor(x.shape, "float32"), b.tensor(x.shape, "float32")
    largest, places = (b.tensor((2, 2, 2, 3), "float32") for _ in range(2))
    pool(b, "MaxPoolingWithArgmax2D", [given], [largest, places], SAME, 3, 2, 3, 2, 0)
    pool(b, "MaxUnpooling2D", [largest, places], [y], SAME, 3, 2, 3, 2, 0)
    windows = x.reshape(2, 2, 2, 2, 3, 3)
    right = np.where(windows == windows.max((2, 4), keepdims=True), windows, 0).reshape(x.shape)
    np.testing.assert_array_equal(run(b.file([given], [y]), x)[0], right)


@pytest.mark.parametrize(
    "fields, said",
    [
        ((SAME, 2), "expected options of at least 20 bytes, got 8"),
        ((SAME, 0, 2, 2, 2), "its options are damaged: 1, "),
        ((SAME, 1, 1, 2, 2), "expected windows side by side, got"),
        ((SAME, 2, 2, 2, 2, 1), "a fused activation is not supported"),
    ],
    ids=["short", "zero", "overlap", "activation"],
)
def test_refusals(fields: tuple[int, ...], said: str) -> None:
    b = TfliteBuilder()
    x, places, y = (b.tensor((1, 2, 2, 1), "float32") for _ in range(3))
    pool(b, "MaxUnpooling2D", [x, places], [y], *fields)
    with pytest.raises(VdlaError, match=said):
        import_tflite(b.file([x, places], [y]))
