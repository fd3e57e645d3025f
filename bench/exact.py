"""ONNX's definition of quantised networks in exact numbers.

The definition is float operators between dequantisation and quantisation. In float32 their sums are
rounded, in an order that nobody defines, so a result next to a tie depends on who computes it. Here
ONNX's reference evaluator computes in float64, which holds every product and sum of quantised
numbers: what is left is the definition itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

#: Numbers of steps that are so near to a tie are ties: float64 divides with an error of 1e-16, and
#: sums of float32 are wrong by 1e-5 of a step.
_TIE = 1e-9


def exact_answers(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The model's first output in float64, by the definitions of its operators.

    An input of float32 is quantised in float32: IEEE defines a single division.
    """
    found: Any = ReferenceEvaluator(model, new_ops=[QuantizeLinear, DequantizeLinear])
    return found.run(None, dict(inputs))[0]


class QuantizeLinear(OpRun):
    """Quantisation of float64, whose quotients next to a tie are ties."""

    op_domain = ""

    def _run(self, x: np.ndarray, *parameters: np.ndarray, axis: int | None, **_: Any):  # type: ignore[override]
        scale, zero = (_along(p, axis, x.ndim) for p in parameters)
        steps = x / scale.astype(x.dtype)
        if x.dtype == np.float64:
            halves = np.rint(2 * steps)
            steps = np.where(np.abs(2 * steps - halves) < _TIE, halves / 2, steps)
        limits = np.iinfo(zero.dtype)
        return (np.clip(np.rint(steps) + zero, limits.min, limits.max).astype(zero.dtype),)


class DequantizeLinear(OpRun):
    """Dequantisation to float64."""

    op_domain = ""

    def _run(self, x: np.ndarray, *parameters: np.ndarray, axis: int | None, **_: Any):  # type: ignore[override]
        scale, *zero = (_along(p, axis, x.ndim).astype(np.float64) for p in parameters)
        return ((x - (zero[0] if zero else 0.0)) * scale,)


def _along(value: np.ndarray, axis: int | None, rank: int) -> np.ndarray:
    """Scales or zero points of an axis, 1 where none is given, to be broadcast."""
    along = (1 if axis is None else axis) % rank
    return value.reshape([-1 if i == along else 1 for i in range(rank)] if value.ndim else ())
