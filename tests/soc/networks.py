"""The networks that run on the system, and their images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

MODELS = Path(__file__).parents[2] / "examples" / "models"
DIGITS = MODELS / "digits_int8.onnx"
TRANSFORMER = MODELS / "digits_transformer_int8.onnx"
SAMPLES = MODELS / "digits_test.npz"


def images(count: int) -> np.ndarray:
    """float32 [count, 1, 8, 8]."""
    return np.load(SAMPLES)["x"][:count]
