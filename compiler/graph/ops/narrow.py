"""Operators of float32 on tensors that are stored in fewer bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...te.expr import HALF_DTYPES, Expr
from ...te.tensor import Tensor, compute
from .base import Elementwise, Expression, Fusion, Op, Shape, Type


@dataclass(frozen=True)
class Narrow(Op):
    """The operator ``op`` on operands of float16, bfloat16 or float32. It computes in float32 and
    rounds its result to ``result``, one of these dtypes."""

    op: Op
    result: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.op.name if self.result == "float32" else f"{self.op.name} to {self.result}"

    @property
    def fusion(self) -> Fusion:  # type: ignore[override]
        return self.op.fusion

    def infer(self, *types: Type) -> Type:
        shape, _ = self.op.infer(*((s, "float32" if d in HALF_DTYPES else d) for s, d in types))
        return shape, self.result

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        wide = (a.astype(np.float32) if a.dtype.name in HALF_DTYPES else a for a in args)
        return self.op.evaluate(*wide).astype(self.result)

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        found = self.op.expression([_wide(tensor) for tensor in inputs], shapes)
        args = (*inputs, *found.args[len(inputs) :])
        if self.result == "float32":
            return Expression(found.output, args, found.attributes)
        wide = found.output
        stored = compute(wide.shape, lambda *i: wide[i].astype(self.result), "stored")
        return Expression(stored, args, found.attributes)

    def macs(self, *shapes: Shape) -> int:
        return self.op.macs(*shapes)


@dataclass(frozen=True)
class Copy(Elementwise):
    """The operand of float32, in memory of its own."""

    computes = False

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return args[0]

    def element(self, x: Expr) -> Expr:
        return x


def without_narrow(op: Op) -> Op:
    """The operator of float32."""
    return op.op if isinstance(op, Narrow) else op


def _wide(tensor: Tensor) -> Tensor:
    if tensor.dtype not in HALF_DTYPES:
        return tensor
    name = f"{tensor.name}.wide"
    return compute(tensor.shape, lambda *i: tensor[i].astype("float32"), name)
