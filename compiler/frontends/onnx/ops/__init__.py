"""Readers of ONNX operators: ONNX nodes become nodes of the graph."""

from __future__ import annotations

from . import (
    deeploy,
    einsum,
    elementwise,
    grid,
    legacy,
    linear,
    microsoft,
    ml,
    optimised,
    ordering,
    qonnx,
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

#: Readers of operators in other domains than ONNX's: one row per operator.
DOMAINS: dict[str, dict[str, Reader]] = {
    "ai.onnx.ml": dict(ml.READERS),
    "com.microsoft": microsoft.READERS | optimised.OWN_READERS,
    **{domain: dict(qonnx.READERS) for domain in qonnx.DOMAINS},
}

#: Operators of ONNX Runtime whose results have the type of their first operand.
LIKE_FIRST = {*optimised.READERS, *optimised.OWN_READERS}

#: One row per ONNX operator (``Constant`` apart, which makes no node).
READERS: dict[str, Reader] = (
    elementwise.READERS
    | deeploy.READERS
    | einsum.READERS
    | grid.READERS
    | legacy.READERS
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
