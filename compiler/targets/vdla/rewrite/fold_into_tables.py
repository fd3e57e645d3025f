"""Fold a chain of element-wise operators between QDQ pairs into one table.

ONNX Runtime's quantiser puts a QDQ pair behind every operator. So ``x * (1 + erf(x / sqrt(2))) /
2`` is four operators with int8 results. Together they map 256 values of one int8 tensor: a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ....graph.ir import Graph, Node
from ....graph.ops.elementwise import Add, Clip, Map, Relu
from ....graph.ops.integer import QTable
from ....graph.ops.quantisation import Dequantize, Quantize
from ....graph.passes.fuse_tables import EVERY_INT8, is_int8


def find_table_function(
    graph: Graph, producers: Mapping[str, Node], node: Node
) -> tuple[QTable, str] | None:
    """The table of a chain that ends in a Quantize, and the int8 tensor that the chain begins with.
    None if there is no such chain.
    """
    if not (isinstance(node.op, Quantize) and is_int8(node.op.quant)):
        return None
    found = _Function(graph, producers, graph.result(node).shape)
    table = found.value(node)
    return None if table is None or not found.source else (QTable(table), found.source)


@dataclass
class _Function:
    """Values of tensors for every int8 of ``source``, on which all of them depend."""

    graph: Graph
    producers: Mapping[str, Node]
    shape: tuple[int, ...]
    source: str = ""
    known: dict[str, np.ndarray] = field(default_factory=dict)

    def value(self, node: Node) -> np.ndarray | None:
        """The values of a node's result; None if it is no function of one int8 tensor."""
        match node.op:
            case Quantize() | Dequantize() as op if not is_int8(op.quant):
                return None
            case Quantize() | Dequantize() | QTable() | Map() | Relu() | Clip() | Add():
                operands = []
                for name in node.inputs:
                    value = self.operand(name)
                    if value is None:
                        return None
                    operands.append(value)
                return node.op.evaluate(*operands)
        return None

    def operand(self, name: str) -> np.ndarray | None:
        """The values of an operand: of a constant number one, of any other tensor 256."""
        tensor, node = self.graph[name], self.producers.get(name)
        if name in self.known:
            return self.known[name]
        if tensor.data is not None:
            return tensor.data.reshape(()) if tensor.data.size == 1 else None
        number = node is not None and tensor.shape in ((), (1,))
        if not number and tensor.shape != self.shape:
            return None
        value, source = None, self.source
        if node is not None:
            value = self.value(node)
        if value is None:
            self.source = source  # forget the source of a chain that failed
        if value is None and tensor.dtype == "int8" and source in ("", name):
            self.source, value = name, EVERY_INT8
        if value is not None:
            self.known[name] = value
        return value
