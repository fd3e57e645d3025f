"""Element-wise operators behind a product become its epilogue (TVM paper, section 3).

::

    p = Dense(x, w)
    y = Add+Map(p, bias, r)        ->        y = Dense+Add+Map(x, w, bias, r)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....graph.ir import Graph, Node
from ....graph.ops.fused import Fused
from ....graph.ops.fused_pairs import ProductChain
from ...common.fuse_elementwise import fuse_groups, is_elementwise, one_node
from ..templates.product import is_in_phases


def fuse_epilogues(graph: Graph, is_product: Callable[[Node], bool]) -> Graph:
    """Fuse each product with the element-wise operator that is its only reader, unless that ends
    another one already; the name stays the product's. A product by phases has a kernel of its own
    behind it."""
    taken = set[str]()

    def fits(node: Node, readers: Sequence[Node], end: str) -> bool:
        if not all(is_elementwise(reader) for reader in readers) or end in taken:
            return False
        alike = graph[node.output].shape == graph[end].shape
        if not alike or is_in_phases(node.op) or not is_product(node):
            return False
        taken.add(end)
        return True

    def make(members: Sequence[Node]) -> Sequence[Node]:
        if len(members) == 1:
            return members
        product, chain = members
        chain = one_node([chain], Fused, first=[product.output])
        extra = len(chain.inputs) - 1
        op = ProductChain(product.op, chain.op, extra)
        inputs = (*product.inputs, *chain.inputs[1:])
        return [replace(chain, name=product.name, op=op, inputs=inputs)]

    return fuse_groups(graph, fits, make)
