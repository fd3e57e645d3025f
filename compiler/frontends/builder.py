"""What readers of every format share: ways to make the nodes of one operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...isa.errors import VdlaError
from ..graph.ir import Node, Tensor, infer
from ..graph.ops.base import Op
from ..graph.ops.elementwise import Map
from ..graph.ops.movement import Gather, Reshape, Slice, Transpose
from ..graph.ops.quantisation import Quantize
from ..graph.ops.reduction import Reduce
from ..te.expr import Expr, Var, wrap

MAX_ELEMENTS = 2**31 - 1
#: The most elements of a constant that is not in the file but made while it is read.
MAX_MADE_ELEMENTS = 2**27


@dataclass
class Builder:
    """Makes the nodes of one operator of a model.

    Attributes
    ----------
    name, kind : of the operator in the model
    tensors : every value before this one, by name
    nodes : where nodes are added, in order
    made : the tensors that this operator has made, by name
    """

    name: str
    kind: str
    tensors: Mapping[str, Tensor]
    nodes: list[Node] = field(default_factory=list, kw_only=True)
    made: dict[str, Tensor] = field(default_factory=dict, kw_only=True)

    def refuse(self, why: str) -> VdlaError:
        """An error that says why the operator is not supported."""
        return VdlaError(why)

    def emit(self, op: Op, *operands: Tensor) -> Tensor:
        """Append a node; its result, under a provisional name."""
        shape, dtype = infer(op, operands, self.name)
        self.check_size(shape)
        quant = op.quant if isinstance(op, Quantize) else None
        name = self._fresh()
        tensor = Tensor(name, shape, dtype, quant=quant)
        self.made[name] = tensor
        self.nodes.append(Node(name, op, tuple(t.name for t in operands), name))
        return tensor

    def check_size(self, shape: Sequence[int], limit: int = MAX_ELEMENTS) -> None:
        """Refuse a tensor of a negative size or of more than ``limit`` elements, by default as many
        as a signed index of 32 bits reaches."""
        if min(shape, default=0) < 0 or math.prod(shape) > limit:
            raise self.refuse(f"expected a tensor of at most {limit} elements, got {list(shape)}")

    def check_made(self, shape: Sequence[int]) -> None:
        """Refuse a constant that is too large to make while a model is read."""
        self.check_size(shape, MAX_MADE_ELEMENTS)

    def value(self, data: Any, dtype: str | None = None) -> Tensor:
        """A constant."""
        array = np.array(data, dtype, order="C")  # a copy of its own, of the same rank
        tensor = Tensor.constant(self._fresh(), array)
        self.made[tensor.name] = tensor
        return tensor

    def _fresh(self) -> str:
        """A provisional name."""
        name = f"{self.name}.{len(self.made)}"
        while name in self.tensors:
            name += "'"
        return name

    def map(self, rule: Callable[..., Any], *operands: Tensor, label: str = "") -> Tensor:
        """Element by element, with broadcasting; ``rule`` works on expressions."""
        args = tuple(Var(f"x{i}", t.dtype) for i, t in enumerate(operands))
        try:
            body = rule(*args)
        except VdlaError as error:
            raise self.refuse(str(error)) from None
        body = body if isinstance(body, Expr) else wrap(body, operands[0].dtype)
        return self.emit(Map(label or self.kind, args, body), *operands)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """The same numbers in another dtype; integers wrap."""
        return x if x.dtype == dtype else self.map(lambda v: v.astype(dtype), x, label="Cast")

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x if x.shape == shape else self.emit(Reshape(shape), x)

    def transpose(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        return x if order == tuple(range(len(order))) else self.emit(Transpose(order), x)

    def reduce(self, kind: str, x: Tensor, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
        return self.emit(Reduce(kind, axes, keepdims), x)

    def gather(self, x: Tensor, indices: Any, axis: int) -> Tensor:
        """Elements at constant indices."""
        return self.emit(Gather(axis), x, self.value(indices, "int64"))

    def part(self, x: Tensor, axis: int, start: int, count: int) -> Tensor:
        """``count`` elements along an axis."""
        if (start, count) == (0, x.shape[axis]):
            return x
        rank = len(x.shape)
        starts = tuple(start if d == axis else 0 for d in range(rank))
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return self.emit(Slice(starts, (1,) * rank, shape), x)
