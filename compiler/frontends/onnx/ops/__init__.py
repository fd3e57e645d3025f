"""Readers of ONNX operators: ONNX nodes become nodes of the graph."""

from __future__ import annotations

from . import (
    einsum,
    elementwise,
    grid,
    linear,
    microsoft,
    optimised,
    ordering,
    quantized,
    recurrent,
    reduction,
    regions,
    resize,
    scatter,
    shape,
    spatial,
    spectral,
)
from .call import Reader

#: One row per operator of ONNX Runtime's domain.
MICROSOFT: dict[str, Reader] = microsoft.READERS | optimised.OWN_READERS

#: One row per ONNX operator (``Constant`` apart, which makes no node).
READERS: dict[str, Reader] = (
    elementwise.READERS
    | einsum.READERS
    | grid.READERS
    | linear.READERS
    | optimised.READERS
    | ordering.READERS
    | quantized.READERS
    | recurrent.READERS
    | reduction.READERS
    | regions.READERS
    | resize.READERS
    | scatter.READERS
    | shape.READERS
    | spatial.READERS
    | spectral.READERS
)
