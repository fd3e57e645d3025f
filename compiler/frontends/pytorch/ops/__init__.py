"""Readers of ATen operators: each expresses one in ONNX's operators."""

from __future__ import annotations

from . import elementwise, linear, quantized, reduction, shape, spatial
from .call import Reader

#: One row per operator, whatever its overload.
READERS: dict[str, Reader] = (
    elementwise.READERS
    | linear.READERS
    | quantized.READERS
    | reduction.READERS
    | shape.READERS
    | spatial.READERS
)

#: Operators that torch is not to decompose, as they have readers of their own: products of
#: matrices that would become several nodes, and functions that ONNX has.
KEPT = (
    "aten.index_copy.default",
    "aten.linear.default",
    "aten.matmul.default",
    "aten.silu.default",
    "aten.hardswish.default",
    "aten.hardsigmoid.default",
    "aten.mish.default",
    "aten.softplus.default",
    "aten.adaptive_avg_pool2d.default",
)
