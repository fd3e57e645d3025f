"""A plugin with a target: the accelerator without the layers that have no products.

    vdla run MODEL --target products --plugin examples/06_plugins/own_target.py

Every operator without multiply-accumulates runs on the host. The difference to ``--target sim`` is
what the accelerator gains from them.
"""

from __future__ import annotations

from vdla.compiler.choose.space import Refusal
from vdla.compiler.graph.ir import Graph, Node
from vdla.compiler.targets.registry import register_target
from vdla.compiler.targets.vdla.target import Accelerator


class Products(Accelerator):
    """The accelerator for convolutions and dense layers only."""

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        if not graph.macs(node):
            return Refusal("this target computes only what has products")
        return super().takes(graph, node)


register_target("products", Products)
