"""Convolutions in groups on the tensor core, a few groups at a time, so that little is multiplied
by the zeros between groups.

Groups of few channels are taken together until they fill whole blocks. Channels, [blocks, H, W,
batch, block], then are [groups, blocks of a group, H, W, batch, block], which lies in memory the
same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, lcm

from .....runtime.layout import blocks
from ....choose.space import Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ..cost.tiling import ProductShape
from ..machine import Context
from .convolution import Products, ProductsWorkload


@dataclass(frozen=True)
class Groups:
    """A convolution's groups, ``together`` of them as one: ``count`` of these, each with ``inputs``
    blocks of input channels and ``outputs`` blocks of output channels.
    """

    together: int
    count: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class GroupedWorkload(ProductsWorkload):
    """A convolution in groups of blocks of channels."""

    groups: int

    @property
    def groups_of_blocks(self) -> tuple[int, ...]:
        return (self.groups,)

    @property
    def shape(self) -> ProductShape:
        """Groups are in place of blocks of output channels, and the blocks of a group are results
        that lie side by side."""
        return replace(super().shape, oc_blocks=self.groups, phases=self.oc_blocks, grouped=True)


class Grouped(Products):
    """Convolution in groups on the tensor core. ``oc_blocks`` of a tile counts groups."""

    name = "grouped"
    ops = (QConv2d,)

    def handles(self, graph: Graph, node: Node) -> bool:
        return super().handles(graph, node) and self.find_groups(graph, node) is not None

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        assert isinstance(node.op, QConv2d)
        return f"on the tensor core, in {node.op.groups} groups"

    def workload(self, graph: Graph, node: Node, context: Context) -> GroupedWorkload:
        groups = self.find_groups(graph, node)
        assert groups is not None
        plain = vars(super().workload(graph, node, context))
        of_a_group = {"ic_blocks": groups.inputs, "oc_blocks": groups.outputs, "skips_cols": False}
        return GroupedWorkload(**plain | of_a_group, groups=groups.count)

    def together(self, graph: Graph, node: Node) -> int:
        groups = self.find_groups(graph, node)
        assert groups is not None
        return groups.together

    def find_groups(self, graph: Graph, node: Node) -> Groups | None:
        """How groups are taken together; None where they do not make several groups of whole
        blocks."""
        assert isinstance(node.op, QConv2d)
        params, count = self.machine.params, node.op.groups
        outputs, inputs, *_ = graph[node.inputs[1]].shape
        outputs //= count
        fill = [params.block // gcd(params.block, channels) for channels in (inputs, outputs)]
        taken = lcm(*fill)
        found = Groups(
            taken, -(-count // taken), blocks(taken * inputs, params),
            blocks(taken * outputs, params),
        )  # fmt: skip
        whole = (found.count * found.inputs, found.count * found.outputs)
        fits = whole == (blocks(count * inputs, params), blocks(count * outputs, params))
        return found if fits and found.count > 1 else None
