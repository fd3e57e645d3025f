"""What a reader of an ONNX operator is given: operands, attributes, and the nodes that it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Node, Tensor, infer
from ....graph.ops.base import Op
from ....graph.ops.elementwise import Map
from ....graph.ops.movement import Gather, Reshape, Slice, Transpose
from ....graph.ops.quantisation import Quantize, Recentre
from ....graph.ops.reduction import Reduce
from ....te.expr import Expr, Var, wrap

MAX_ELEMENTS = 2**31 - 1
#: The most elements of a constant that is not in the file but made while it is read.
MAX_MADE_ELEMENTS = 2**27
#: What a reader returns: its ONNX outputs in order, None for those that nobody asked for.
Outputs = Tensor | tuple[Tensor | None, ...]
Reader = Callable[["Call"], Outputs]


class ValueNeeded(VdlaError):
    """The value of the model's input ``name`` decides shapes: it must be known to compile."""

    def __init__(self, message: str, name: str):
        super().__init__(message)
        self.name = name


@dataclass
class Call:
    """One ONNX node while it is read.

    Attributes
    ----------
    label : how messages name the node
    operands : the node's inputs; None for optional ones that are absent
    attributes : as Python values
    outputs : names of the wanted outputs, "" for absent ones
    opset : the version of the operator set
    tensors, producers : every value and node before this one, by name
    known : values of computed tensors, as far as they were asked for
    nodes, made : what the reader has made, in order
    """

    name: str
    kind: str
    operands: tuple[Tensor | None, ...]
    attributes: dict[str, Any]
    outputs: tuple[str, ...]
    opset: int
    tensors: Mapping[str, Tensor]
    producers: Mapping[str, Node]
    known: dict[str, np.ndarray]
    nodes: list[Node] = field(default_factory=list)
    made: dict[str, Tensor] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"node {self.name!r} ({self.kind})"

    def refuse(self, why: str) -> VdlaError:
        return VdlaError(f"{self.label}: {why}")

    # ---- operands ----

    def operand(self, index: int) -> Tensor:
        """A required operand."""
        value = self.optional(index)
        if value is None:
            raise self.refuse(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Tensor | None:
        return self.operands[index] if index < len(self.operands) else None

    def all_operands(self) -> list[Tensor]:
        """At least one operand, none absent."""
        return [self.operand(i) for i in range(max(1, len(self.operands)))]

    def constant(self, index: int, what: str) -> np.ndarray:
        """The value of an operand, computed now if it depends on constants only.

        Raises
        ------
        ValueNeeded
            When it depends on an input of the model.
        """
        return self.value_of(self.operand(index), what)

    def value_of(self, tensor: Tensor, what: str) -> np.ndarray:
        """The value of a tensor, as :meth:`constant` has it."""
        return self._value(tensor, f"expected a constant {what}, got the computed tensor")

    def scalar(self, index: int, what: str) -> Any:
        """The one number of a constant operand."""
        value = self.constant(index, what)
        if value.size != 1:
            raise self.refuse(f"expected one number as {what}, got shape {list(value.shape)}")
        return value.item()

    def _value(self, tensor: Tensor, why: str) -> np.ndarray:
        if tensor.data is not None:
            return tensor.data
        node = self.producers.get(tensor.name)
        if node is None:
            raise ValueNeeded(f"{self.label}: {why} {tensor.name!r}", tensor.name)
        if tensor.name not in self.known:
            self.check_made(tensor.shape)
            values = [self._value(self.tensors[name], why) for name in node.inputs]
            self.known[tensor.name] = node.op.evaluate(*values)
        return self.known[tensor.name]

    def integers_of(self, index: int, name: str) -> list[int] | None:
        """Integers that are an operand in recent operator sets and were an attribute before; None
        where absent."""
        value = self.attributes.get(name)
        if value is None and self.optional(index) is not None:
            value = self.constant(index, name).reshape(-1).tolist()
        if value is None:
            return None
        if not isinstance(value, list | tuple) or any(int(v) != v for v in value):
            raise self.refuse(f"expected integers in {name}, got {value!r}")
        return [int(v) for v in value]

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the start."""
        if not -rank <= value < rank:
            raise self.refuse(f"axis {value!r} is outside a tensor of rank {rank}")
        return value % rank if rank else 0

    # ---- attributes ----

    def integer(self, name: str, default: int) -> int:
        """An attribute that is one integer."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise self.refuse(f"expected an integer {name}, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int | float):
            raise self.refuse(f"expected a number {name}, got {value!r}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        """An attribute that is text."""
        value = self.attributes.get(name, default.encode())
        if not isinstance(value, bytes):
            raise self.refuse(f"expected text in {name}, got {value!r}")
        return value.decode() or default

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """An attribute that is a list of as many integers as the default."""
        value = self.attributes.get(name) or default
        is_list = isinstance(value, list | tuple) and all(isinstance(v, int) for v in value)
        if not is_list or len(value) != len(default):
            raise self.refuse(f"expected {len(default)} integers in {name}, got {value}")
        return tuple(value)

    def only(self, **supported: object) -> None:
        """Refuse attributes with other values than these (an absent one is fine)."""
        for name, value in supported.items():
            got = self.attributes.get(name, value)
            if got != value:
                raise self.refuse(f"supported is {name} = {value!r}, got {got!r}")

    # ---- nodes ----

    def emit(self, op: Op, *operands: Tensor) -> Tensor:
        """Append a node; its result, under a provisional name."""
        shape, dtype = infer(op, operands, self.name)
        self.check_size(shape)
        quant = op.quant if isinstance(op, Quantize) else None
        name = f"{self.name}.{len(self.made)}"
        while name in self.tensors:
            name += "'"
        tensor = Tensor(name, shape, dtype, quant=quant)
        self.made[name] = tensor
        self.nodes.append(Node(self.name, op, tuple(t.name for t in operands), name))
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
        array = np.array(data, dtype)  # a copy of its own: contiguous, and of the same rank
        name = f"{self.name}.{len(self.made)}"
        while name in self.tensors:
            name += "'"
        tensor = Tensor.constant(name, array)
        self.made[name] = tensor
        return tensor

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


def signed(call: Call, x: Tensor) -> Tensor:
    """A uint8 tensor as the int8 tensor that means the same; any other tensor as it is."""
    return call.emit(Recentre(), x) if x.dtype == "uint8" else x


def as_before(call: Call, y: Tensor, dtype: str) -> Tensor:
    """Undo :func:`signed` for a result: back to uint8 where that was the operand's ``dtype``."""
    return call.emit(Recentre(), y) if dtype == "uint8" else y
