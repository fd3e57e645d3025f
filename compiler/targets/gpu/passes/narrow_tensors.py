"""Tensors between layers in float16 or bfloat16, where every reader rounds them to it anyway.

::

    y = Conv2d(x, w, b)               y = Conv2d to float16(x, w.float16, b)
    z = MaxPool(y)            ->      z = MaxPool to float16(y)
    r = Conv2d(z, v, c)               r = Conv2d(z, v.float16, c)

A product on tensor cores rounds its factors, so that results are the same to the bit whether that
happens where they are read or where they are stored. The largest of rounded numbers is the largest
number, rounded. A tensor that anything else reads, such as an addition, stays in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.base import Fusion, Op
from ....graph.ops.channels_last import ChannelsLast
from ....graph.ops.narrow import Narrow
from ....graph.ops.pooling import MaxPool

#: Whether a node is a product whose two factors are rounded.
IsProduct = Callable[[Graph, Node], bool]


def narrow_tensors(graph: Graph, dtype: str, is_product: IsProduct) -> Graph:
    """The graph with what only products read, constants included, in ``dtype``."""
    found = _Narrowing(graph, dtype, is_product)
    narrow = {node.output for node in graph.nodes if found.is_narrow(node.output)}
    tensors: dict[str, Tensor] = dict(graph.tensors)
    for name in narrow:
        tensors[name] = replace(tensors[name], dtype=dtype)
    nodes = []
    for node in graph.nodes:
        inputs = list(node.inputs)
        if is_product(graph, node):
            for number, name in enumerate(inputs[:2]):
                data = graph[name].data
                if data is not None:
                    inputs[number] = rounded = f"{name}.{dtype}"
                    tensors[rounded] = Tensor.constant(rounded, data.astype(dtype))
        if node.output in narrow or any(tensors[name].dtype == dtype for name in inputs):
            result = tensors[node.output].dtype
            node = replace(node, op=Narrow(node.op, result), inputs=tuple(inputs))
        nodes.append(node)
    used = {name for node in nodes for name in (*node.inputs, node.output)}
    kept = {n: t for n, t in tensors.items() if n in used or n in (*graph.inputs, *graph.outputs)}
    return replace(graph, nodes=tuple(nodes), tensors=kept)


@dataclass
class _Narrowing:
    graph: Graph
    dtype: str
    is_product: IsProduct
    known: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers: Mapping[str, list[Node]] = self.graph.consumers()
        self.makers = {node.output: node for node in self.graph.nodes}

    def is_narrow(self, name: str) -> bool:
        """Whether a node's result is float32 that only products read, as factors."""
        if name not in self.known:
            readers = self.readers[name]
            stays = (
                self.graph[name].dtype != "float32"
                or name in self.graph.outputs
                or self.makers[name].op.fusion is Fusion.ALIAS
            )
            self.known[name] = (
                bool(readers) and not stays and all(self.rounds(node, name) for node in readers)
            )
        return self.known[name]

    def rounds(self, node: Node, name: str) -> bool:
        """Whether all that a node makes of a tensor is as if the tensor were rounded."""
        if self.is_product(self.graph, node):
            return name not in node.inputs[2:]
        return isinstance(_inner(node.op), MaxPool) and self.is_narrow(node.output)


def _inner(op: Op) -> Op:
    return op.op if isinstance(op, ChannelsLast) else op
