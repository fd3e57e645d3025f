"""What a reader of an ONNX operator is given: operands, attributes, and the nodes that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .....isa.errors import VdlaError
from ....graph.ir import Node, Tensor
from ....graph.ops.quantisation import Recentre
from ...builder import Builder

#: What a reader returns: its ONNX outputs in order, None for those that nobody asked for.
Outputs = Tensor | tuple[Tensor | None, ...]
Reader = Callable[["Call"], Outputs]


class ValueNeeded(VdlaError):
    """The value of the model's input ``name`` decides shapes: it must be known to compile."""

    def __init__(self, message: str, name: str):
        super().__init__(message)
        self.name = name


@dataclass
class Call(Builder):
    """One ONNX node while it is read.

    Attributes
    ----------
    label : how messages name the node
    operands : the node's inputs; None for optional ones that are absent
    attributes : as Python values
    outputs : names of the wanted outputs, "" for absent ones
    opset : the version of the operator set
    producers : every node before this one, by the name of its result
    known : values of computed tensors, as far as they were asked for
    """

    operands: tuple[Tensor | None, ...]
    attributes: dict[str, Any]
    outputs: tuple[str, ...]
    opset: int
    producers: Mapping[str, Node]
    known: dict[str, np.ndarray]

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
            given = f"--value {tensor.name}=V, in Python values="
            raise ValueNeeded(f"{self.label}: {why} {tensor.name!r} ({given})", tensor.name)
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

    def array(self, name: str, dtype: str) -> np.ndarray:
        """An attribute that is a list of any number of numbers; empty where it is absent."""
        found = self.attributes.get(name, [])
        kinds = (int, float) if dtype.startswith("float") else int
        if not isinstance(found, list | tuple) or not all(isinstance(v, kinds) for v in found):
            raise self.refuse(f"expected a list of {dtype} in {name}, got {found!r:.40}")
        return np.array(found, dtype)

    def only(self, **supported: object) -> None:
        """Refuse attributes with other values than these (an absent one is fine)."""
        for name, value in supported.items():
            got = self.attributes.get(name, value)
            if got != value:
                raise self.refuse(f"supported is {name} = {value!r}, got {got!r}")


def standard(
    readers: Mapping[str, Reader], opset: int, call: Call, kind: str, *operands: Tensor | None,
    **attributes: Any,
) -> Tensor:  # fmt: skip
    """The first result of one of ONNX's operators, as its reader makes it for ``call``."""
    inner = replace(
        call, kind=kind, operands=operands, attributes=attributes, outputs=("y",), opset=opset
    )
    result = readers[kind](inner)
    found = result if isinstance(result, Tensor) else result[0]
    assert found is not None
    return found


def signed(call: Call, x: Tensor) -> Tensor:
    """A uint8 tensor as the int8 tensor that means the same; any other tensor as it is."""
    return call.emit(Recentre(), x) if x.dtype == "uint8" else x


def as_before(call: Call, y: Tensor, dtype: str) -> Tensor:
    """Undo :func:`signed` for a result: back to uint8 where that was the operand's ``dtype``."""
    return call.emit(Recentre(), y) if dtype == "uint8" else y
