"""Readers of ONNX operators: ONNX nodes become nodes of the graph."""

from __future__ import annotations

from . import (
    elementwise,
    linear,
    microsoft,
    quantized,
    recurrent,
    reduction,
    resize,
    shape,
    spatial,
)
from .call import Reader

#: One row per operator of ONNX Runtime's domain.
MICROSOFT: dict[str, Reader] = microsoft.READERS

#: One row per ONNX operator (``Constant`` apart, which makes no node).
READERS: dict[str, Reader] = (
    elementwise.READERS
    | linear.READERS
    | quantized.READERS
    | recurrent.READERS
    | reduction.READERS
    | resize.READERS
    | shape.READERS
    | spatial.READERS
)
