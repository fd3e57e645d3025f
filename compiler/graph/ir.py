"""The graph: named tensors, nodes in execution order, constants as NumPy arrays; and a printer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from .arithmetic.requant import Requant
from .ops.integer import Op, QConv2d, Quant

#: dtype names of tensors and the NumPy types that hold them.
DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "uint16": np.uint16,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "uint64": np.uint64,
    "bool": np.bool_,
}


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value: ``data`` is set for constants; ``quant`` says what integers mean, if known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray | None = None
    quant: Quant | None = None

    @staticmethod
    def constant(name: str, data: np.ndarray, quant: Quant | None = None) -> Tensor:
        """A constant tensor of the array's own shape and dtype."""
        return Tensor(name, tuple(data.shape), str(data.dtype), data, quant)

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def type_text(self) -> str:
        """Dtype and shape, such as ``int8[1,8,4,4]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Node:
    """One operator application. ``inputs`` and ``output`` name tensors.

    ``target`` ("accel" or "cpu") and ``reason`` are set by partitioning. Nodes with one ``group``
    may be computed together, the values between them never leaving the chip.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    output: str
    target: str = ""
    reason: str = ""
    group: str = ""


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in running order; every tensor is an input, a constant or one node's output."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def operands(self, node: Node) -> tuple[Tensor, ...]:
        """The input tensors of a node, in order."""
        return tuple(self.tensors[name] for name in node.inputs)

    def result(self, node: Node) -> Tensor:
        """The output tensor of a node."""
        return self.tensors[node.output]

    def producers(self) -> dict[str, Node]:
        """The node that computes each tensor which is neither input nor constant."""
        return {node.output: node for node in self.nodes}

    def consumers(self) -> dict[str, list[Node]]:
        """For every tensor, the nodes that read it (twice if they read it twice)."""
        readers: dict[str, list[Node]] = {name: [] for name in self.tensors}
        for node in self.nodes:
            for name in node.inputs:
                readers[name].append(node)
        return readers

    def with_nodes(self, nodes: list[Node], *tensors: Tensor) -> Graph:
        """The graph with other nodes and some tensors added or replaced."""
        return replace(
            self, nodes=tuple(nodes), tensors={**self.tensors, **{t.name: t for t in tensors}}
        )


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether a node is a convolution of every channel by itself."""
    match node.op:
        case QConv2d(groups=groups) if groups > 1:
            return graph[node.inputs[1]].shape[:2] == (groups, 1)
    return False


def dump(graph: Graph) -> str:
    """The graph as text, a line per tensor or node; equal graphs give equal text."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input  {name}: {graph[name].type_text}" for name in graph.inputs]
    for tensor in graph.tensors.values():
        if tensor.data is not None:
            quant = f" {_attribute(tensor.quant)}" if tensor.quant else ""
            lines.append(f"  const  {tensor.name}: {tensor.type_text} {_array(tensor.data)}{quant}")
    lines += [f"  {_node_text(graph, node)}" for node in graph.nodes]
    lines += [f"  output {name}" for name in graph.outputs]
    return "\n".join(lines) + "\n"


def _node_text(graph: Graph, node: Node) -> str:
    op = type(node.op).__name__
    attributes = ", ".join(_attributes(node.op))
    text = f"{node.output}: {graph[node.output].type_text} = {op}({', '.join(node.inputs)})"
    text += f" {{{attributes}}}" if attributes else ""
    text += f" @{node.target}" if node.target else ""
    text += f" group={node.group}" if node.group else ""
    return text + (f"  # {node.reason}" if node.reason else "")


def _attributes(op: object) -> Iterator[str]:
    for item in fields(op):  # pyright: ignore[reportArgumentType]
        yield f"{item.name}={_attribute(getattr(op, item.name))}"


def _attribute(value: object) -> str:
    match value:
        case Requant():
            return (
                f"({_array(value.multiplier)} >> {_array(value.shift)}"
                f" + {value.zero_point}, {value.lo}..{value.hi})"
            )
        case Quant():
            axis = "" if value.axis is None else f" axis {value.axis}"
            return f"{value.dtype}({_array(value.scale)}, {_array(value.zero_point)}{axis})"
        case tuple():
            return "x".join(map(str, value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _array(data: np.ndarray) -> str:
    """Few values in full, many as a digest."""
    if data.size <= 4:
        return ",".join(f"{v:.9g}" if data.dtype.kind == "f" else str(v) for v in data.reshape(-1))
    little = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<"))
    return "#" + hashlib.sha256(little.tobytes()).hexdigest()[:8]
