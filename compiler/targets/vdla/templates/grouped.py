"""Convolutions in groups on the tensor core, a few groups at a time, so that little is multiplied
by the zeros between groups.

Groups of few channels are taken together until they fill whole blocks. Channels, [blocks, H, W,
batch, block], then are [groups, blocks of a group, H, W, batch, block], which lies in memory the
same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, lcm

import numpy as np

from .....runtime.layout import blocks, pack_weight
from ....choose.space import Knobs, Refusal
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConv2d
from ....te.tensor import placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import ConvShape
from ..expressions import REQUANT_ENTRIES, Epilogue, Window, part_axes, requantized
from ..machine import Context
from .base import (
    blocked_shape,
    make_tiling,
    requant_parameters,
)
from .convolution import (
    OnTensorCore,
    TensorCoreWorkload,
    folded_bias,
    merge_groups,
    schedule_products,
    split_int8,
    sums_of_products,
)


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
class GroupedWorkload(TensorCoreWorkload):
    """A convolution in groups of blocks of channels; the rest is as in a ``ProductsWorkload``."""

    groups: int
    ic_blocks: int
    height: int
    width: int
    oc_blocks: int
    window: Window
    parts: int
    context: Context
    pad_value: int = field(compare=False)
    epilogue: Epilogue = field(compare=False)

    @property
    def shape(self) -> ConvShape:
        """The convolution as the planner sees it: groups in place of blocks of output channels,
        and the blocks of a group as results that lie side by side.
        """
        window = self.window
        return ConvShape(
            self.ic_blocks, self.groups, *window.output(self.height, self.width), *window.kernel,
            *window.strides, *window.dilations, parts=self.parts, phases=self.oc_blocks,
            grouped=True, blank=window.blank(self.height, self.width),
        )  # fmt: skip


class Grouped(OnTensorCore[GroupedWorkload]):
    """Convolution in groups on the tensor core. ``oc_blocks`` of a tile counts groups."""

    name = "grouped"
    ops = (QConv2d,)

    def handles(self, graph: Graph, node: Node) -> bool:
        depthwise = isinstance(node.op, QConv2d) and node.op.is_depthwise(
            graph[node.inputs[1]].shape
        )
        return not depthwise and self.find_groups(graph, node) is not None

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        assert isinstance(node.op, QConv2d)
        return f"on the tensor core, in {node.op.groups} groups"

    def workload(self, graph: Graph, node: Node, context: Context) -> GroupedWorkload:
        op, weight, groups = node.op, graph[node.inputs[1]], self.find_groups(graph, node)
        assert isinstance(op, QConv2d) and weight.data is not None and groups is not None
        kernel = weight.shape[2], weight.shape[3]
        _, height, width = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        return GroupedWorkload(
            groups.count, groups.inputs, height, width, groups.outputs,
            Window(kernel, op.strides, op.pads, op.dilations), len(split_int8(weight.data)),
            context, op.x_zero_point, Epilogue.from_requant(op.requant),
        )  # fmt: skip

    def schedule(self, workload: GroupedWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """The bias in ``param`` contains ``-x_zero_point * sum(weight)``."""
        params, groups = self.machine.params, workload.groups
        batch, block = params.batch, params.block
        size = (groups, workload.ic_blocks, workload.height, workload.width, batch, block)
        data = placeholder(size, "int8", "data")
        part = part_axes(workload.parts)
        taps = (*(axis.extent for axis in part), *workload.window.kernel)
        results = (groups, workload.oc_blocks)
        weight = placeholder((*results, workload.ic_blocks, *taps, block, block), "int8", "weight")
        par = placeholder((*results, REQUANT_ENTRIES, block), "int32", "param")
        window, pad_value = workload.window, workload.pad_value
        acc, image = sums_of_products(window, pad_value, data, weight, part)
        out = requantized(acc, par, workload.epilogue)
        tensors = (out, acc, image, weight, par)
        s = schedule_products(*tensors, (0, 2, 3), make_tiling(knobs), self.machine)
        return lower(s, [data, weight, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op, (weight, bias) = node.op, (graph[name].data for name in node.inputs[1:])
        groups = self.find_groups(graph, node)
        assert isinstance(op, QConv2d) and groups is not None
        assert weight is not None and bias is not None
        packed = [
            pack_weight(merge_groups(part, op.groups, groups.together), self.machine.params)
            for part in split_int8(weight)
        ]
        folded = folded_bias(weight, bias, op.x_zero_point)
        return {
            "weight": packed[0] if len(packed) == 1 else np.stack(packed, 2),
            "requantisation": requant_parameters(folded, op.requant, self.machine),
        }

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
