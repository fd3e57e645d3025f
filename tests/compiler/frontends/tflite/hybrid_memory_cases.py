"""SVDF and LSTM of floats with weights of int8, always the same ones by number."""

from __future__ import annotations

import numpy as np
import tflite

from .tflite_builder import TfliteBuilder

RUNS = 3
_CODES = tflite.ActivationFunctionType


def hybrid_memory_case(number: int) -> tuple[bytes, list[np.ndarray]]:
    """A model's file and the inputs of several runs; even numbers are SVDF. Some rows are 0."""
    rng, b = np.random.default_rng(number), TfliteBuilder()
    x, y, shape = (_lstm if number % 2 else _svdf)(b, rng)
    runs = [rng.normal(size=shape) * rng.choice([0.1, 1, 3]) for _ in range(RUNS)]
    runs[1][0] *= number % 3 != 0
    return b.file([x], [y]), [value.astype(np.float32) for value in runs]


def _matrix(b: TfliteBuilder, rng: np.random.Generator, *shape: int) -> int:
    data = rng.integers(-127, 128, shape).astype(np.int8)
    return b.tensor(shape, "int8", [float(rng.uniform(0.002, 0.02))], [0], data=data)


def _floats(b: TfliteBuilder, rng: np.random.Generator, *shape: int) -> int:
    return b.tensor(shape, "float32", data=rng.normal(size=shape).astype(np.float32))


def _svdf(b: TfliteBuilder, rng: np.random.Generator) -> tuple[int, int, tuple[int, ...]]:
    batch, width, units, rank, memory = (int(rng.integers(1, n)) for n in (4, 9, 6, 3, 6))
    filters = units * rank
    x, y = b.tensor((batch, width), "float32"), b.tensor((batch, units), "float32")
    weights = [_matrix(b, rng, filters, n) for n in (width, memory)]
    state = b.tensor((batch, memory * filters), "float32", variable=True)
    b.operator(
        "SVDF", [x, *weights, _floats(b, rng, units), state], [y], "SVDFOptions", Rank=rank,
        FusedActivationFunction=int(rng.choice([_CODES.NONE, _CODES.RELU])),
        AsymmetricQuantizeInputs=int(rng.integers(2)),
    )  # fmt: skip
    return x, y, (batch, width)


def _lstm(b: TfliteBuilder, rng: np.random.Generator) -> tuple[int, int, tuple[int, ...]]:
    batch, steps, width, units = (int(rng.integers(1, n)) for n in (4, 5, 9, 7))
    major = bool(rng.integers(2))
    shape = (steps, batch) if major else (batch, steps)
    x, y = (b.tensor((*shape, n), "float32") for n in (width, units))
    weights = [_matrix(b, rng, units, n) for n in (*[width] * 4, *[units] * 4)]
    biases = [_floats(b, rng, units) for _ in range(4)]
    states = [b.tensor((batch, units), "float32", variable=True) for _ in range(2)]
    b.operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", [x, *weights, -1, -1, -1, *biases, -1, -1, *states], [y],
        "UnidirectionalSequenceLSTMOptions", FusedActivationFunction=_CODES.TANH,
        CellClip=float(rng.choice([0.0, 0.5])), TimeMajor=major,
        AsymmetricQuantizeInputs=int(rng.integers(2)),
    )  # fmt: skip
    return x, y, (*shape, width)
