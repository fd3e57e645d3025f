"""What a reader of an ATen operator is given: its arguments, and ways to emit ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from .....isa.errors import VdlaError
from ....graph.ir import Tensor
from ...onnx.importer import Importer

#: The value of a node: one tensor, or several, with None for results that are not computed.
Value = Tensor | tuple[Tensor | None, ...]
Reader = Callable[["Call"], Value]


@dataclass
class Call:
    """One ATen node while it is read.

    Attributes
    ----------
    name : of the node
    arguments : by name: tensors, numbers, lists, None for absent ones, dtypes as text
    results : shape and dtype of each result, from torch
    graph, opset : the importer that reads the ONNX nodes, and their operator set
    """

    name: str
    arguments: dict[str, Any]
    results: list[tuple[tuple[int, ...], str]]
    graph: Importer
    opset: int
    count: int = 0
    first_node: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_node = len(self.graph.nodes)

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The (first) result's shape."""
        return self.results[0][0]

    @property
    def dtype(self) -> str:
        """The (first) result's dtype."""
        return self.results[0][1]

    def only(self, **supported: Any) -> None:
        """Refuse arguments with other values than these."""
        for name, value in supported.items():
            if self[name] != value:
                raise VdlaError(f"supported is {name} = {value!r}, got {self[name]!r}")

    def tensor(self, value: Any, dtype: str | None = None) -> Tensor:
        """A tensor, or a number as a constant, as ``dtype``."""
        if not isinstance(value, Tensor):
            return self.constant(value, dtype or self.dtype)
        if dtype is None or value.dtype == dtype:
            return value
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.onnx("Cast", value, to=kind)

    def constant(self, data: Any, dtype: str) -> Tensor:
        """A constant of the graph."""
        tensor = Tensor.constant(self._fresh(), np.array(data, dtype))
        self.graph.define(tensor)
        return tensor

    def integers(self, data: Any) -> Tensor:
        """A constant int64 vector: axes, sizes, positions."""
        return self.constant(list(data), "int64")

    def onnx(self, kind: str, *operands: Tensor | None, **attributes: Any) -> Tensor:
        """The first result of one ONNX node."""
        output = self._fresh()
        names = ["" if operand is None else operand.name for operand in operands]
        self.count += 1
        node = onnx.helper.make_node(kind, names, [output], output, **attributes)
        self.graph.node(node, 0, self.opset)
        return self.graph.tensors[output]

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x if x.shape == shape else self.onnx("Reshape", x, self.integers(shape), allowzero=1)

    def part(self, x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
        """Elements from start to before end along an axis."""
        if (start, end, step) == (0, x.shape[axis], 1):
            return x
        return self.onnx("Slice", x, *(self.integers([v]) for v in (start, end, axis, step)))

    def untransposed(self, x: Tensor) -> Tensor | None:
        """The matrix whose transposition ``x`` is, if the graph says so."""
        node = self.graph.producers.get(x.name)
        if node is None or getattr(node.op, "order", None) != (1, 0):
            return None
        return self.graph.tensors[node.inputs[0]]

    def named(self, value: Tensor) -> Tensor:
        """The result under the node's own name, and the node that computes it."""
        made = {node.output for node in self.graph.nodes[self.first_node :]}
        if value.name not in made or self.name in self.graph.tensors:
            return value
        old, new = value.name, self.name
        value = replace(value, name=new)
        tensors, nodes = self.graph.tensors, self.graph.nodes
        del tensors[old]
        tensors[new] = value
        for i in range(self.first_node, len(nodes)):
            node = nodes[i]
            inputs = tuple(new if name == old else name for name in node.inputs)
            if node.output == old:
                del self.graph.producers[old]
                node = replace(node, name=new, output=new)
            nodes[i] = replace(node, inputs=inputs)
            self.graph.producers[nodes[i].output] = nodes[i]
        return value

    def _fresh(self) -> str:
        name = f"{self.name}.{self.count}"
        while name in self.graph.tensors:
            self.count += 1
            name = f"{self.name}.{self.count}"
        return name
