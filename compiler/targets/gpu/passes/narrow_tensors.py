"""Tensors between layers in float16 or bfloat16, where products round them to it anyway.

::

    y = Conv2d(x, w, b)               y = Conv2d to float16(x, w.float16, b)
    z = MaxPool(y)            ->      z = MaxPool to float16(y)
    r = Conv2d(z, v, c)               r = Conv2d to float32(z, v.float16, c)
    s = Add(r, a)                     s = Add(r, a)
    t = Conv2d(s, u, d)               s.float16 = Copy to float16(s)
    o = Add(t, s)                     t = Conv2d(s.float16, u.float16, d);  o = Add(t, s)

A product on tensor cores rounds its factors, so that results are the same to the bit whether that
happens where they are read or where they are stored. The largest of rounded numbers is the largest
number, rounded; and numbers that move elsewhere stay what they are. A tensor that anything else
reads, such as an addition, stays in float32; products read a copy of it, if that comes by
asynchronous copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.base import Fusion, Op
from ....graph.ops.channels_last import ChannelsLast
from ....graph.ops.linear import Dense, MatMul
from ....graph.ops.narrow import Copy, Narrow
from ....graph.ops.pooling import MaxPool
from ....graph.passes.dead_code import dead_code
from ..templates.tensor_gemm import LEAST_COPY_BYTES

#: Whether a node is a product whose two factors are rounded.
IsProduct = Callable[[Graph, Node], bool]
#: Elements of two bytes that the least asynchronous copy brings.
COPIED = LEAST_COPY_BYTES // 2


def narrow_tensors(graph: Graph, dtype: str, is_product: IsProduct) -> Graph:
    """The graph with what only products read, constants included, in ``dtype``, and with copies in
    it of what they and others read."""
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
                rounded = f"{name}.{dtype}"
                shape, data = graph[name].shape, graph[name].data
                if data is not None:
                    tensors[rounded] = Tensor.constant(rounded, data.astype(dtype))
                elif name not in narrow and _comes_at_once(graph, node, number):
                    if rounded not in tensors:
                        op = Narrow(Copy(), dtype)
                        nodes.append(Node(rounded, op, (name,), rounded, node.target))
                    tensors[rounded] = Tensor(rounded, shape, dtype)
                else:
                    continue
                inputs[number] = rounded
        if node.output in narrow or any(tensors[name].dtype == dtype for name in inputs):
            result = tensors[node.output].dtype
            node = replace(node, op=Narrow(node.op, result), inputs=tuple(inputs))
        nodes.append(node)
    return dead_code(graph.with_nodes(nodes, *tensors.values()))


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
        """Whether a node's result is float32 that is as if it were rounded, and may be stored so:
        another name for a tensor may where that tensor may."""
        maker = self.makers.get(name)
        if maker is None or not self.is_rounded(name):
            return False
        return maker.op.fusion is not Fusion.ALIAS or self.is_narrow(maker.inputs[0])

    def is_rounded(self, name: str) -> bool:
        """Whether all that read a tensor of float32 are products, which read it as a factor, or
        lead to such products alone."""
        if name not in self.known:
            readers = self.readers[name]
            stays = self.graph[name].dtype != "float32" or name in self.graph.outputs
            self.known[name] = (
                bool(readers) and not stays and all(self.rounds(node, name) for node in readers)
            )
        return self.known[name]

    def rounds(self, node: Node, name: str) -> bool:
        """Whether all that a node makes of a tensor is as if the tensor were rounded."""
        if self.is_product(self.graph, node):
            return name not in node.inputs[2:]
        alike = node.op.moves or isinstance(_inner(node.op), MaxPool)
        return alike and self.is_rounded(node.output)


def _inner(op: Op) -> Op:
    return op.op if isinstance(op, ChannelsLast) else op


def _comes_at_once(graph: Graph, node: Node, number: int) -> bool:
    """Whether asynchronous copies bring a factor of a product: its steps lie side by side."""
    match node.op:
        case ChannelsLast():
            by_step = number == 0
        case Dense() | MatMul() as op:
            by_step = number == 0 or (isinstance(op, Dense) and op.transposed)
        case _:
            return False
    return by_step and not graph[node.inputs[number]].shape[-1] % COPIED
