"""Transposed convolutions: the phases of the result are computed side by side, so that nothing is
multiplied by the zeros that would be inserted between elements.

The result [blocks, H, W, batch, block] is seen as [blocks, positions, row phases, positions, column
phases, batch, block], which lies in memory the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .....runtime.layout import pack_weight
from ....choose.space import Knobs, Refusal
from ....graph.arithmetic.subpixel import Subpixel, phase_weights, subpixels
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import QConvTranspose2d
from ....te import Expr, Tensor, compute, placeholder, reduce_axis
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import ProductShape, make_tiling
from ..expressions import REQUANT_ENTRIES, Epilogue, dot, padded, requantized
from ..machine import Context
from .base import PlannedTiles, PlannedWorkload, Track, blocked_shape, requant_parameters
from .convolution import Stages, folded_bias, schedule_products


@dataclass(frozen=True)
class TransposedWorkload(PlannedWorkload):
    """A transposed convolution in blocks of channels, with the phases of rows and of columns."""

    ic_blocks: int
    height: int
    width: int
    oc_blocks: int
    rows: Subpixel
    cols: Subpixel
    context: Context
    pad_value: int = field(compare=False)
    epilogue: Epilogue = field(compare=False)

    @property
    def shape(self) -> ProductShape:
        """The convolution as the planner sees it: one phase, and the number of phases."""
        rows, cols = self.rows, self.cols
        return ProductShape(
            ic_blocks=self.ic_blocks, oc_blocks=self.oc_blocks, oh=rows.positions,
            ow=cols.positions, kh=rows.taps, kw=cols.taps, skips_rows=False,
            phases=rows.stride * cols.stride,
            shift_h=rows.reach - rows.taps, shift_w=cols.reach - cols.taps,
        )  # fmt: skip


class Transposed(PlannedTiles[TransposedWorkload]):
    """Transposed convolution on the tensor core, phase by phase."""

    name = "transposed"
    ops = (QConvTranspose2d,)
    track = Track.TENSOR

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        op = node.op_as(QConvTranspose2d)
        if _phases(graph, node):
            return "transposed convolution on the tensor core, phase by phase"
        return Refusal(f"a result of {op.size} that strides {op.strides} do not divide")

    def workload(self, graph: Graph, node: Node, context: Context) -> TransposedWorkload:
        op, phases = node.op_as(QConvTranspose2d), _phases(graph, node)
        assert phases is not None
        oc_blocks, _, _ = blocked_shape(graph.result(node).shape, self.machine)
        image = blocked_shape(graph[node.inputs[0]].shape, self.machine)
        epilogue = Epilogue.from_requant(op.requant)
        return TransposedWorkload(*image, oc_blocks, *phases, context, op.x_zero_point, epilogue)

    def schedule(self, workload: TransposedWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """The bias in ``param`` contains ``-x_zero_point * sum(weight of the phase)``."""
        params = self.machine.params
        batch, block = params.batch, params.block
        rows, cols = workload.rows, workload.cols
        phases, taps = (rows.stride, cols.stride), (rows.taps, cols.taps)
        size = (workload.ic_blocks, workload.height, workload.width, batch, block)
        data = placeholder(size, "int8", "data")
        blocks = (workload.oc_blocks, workload.ic_blocks)
        weight = placeholder((*blocks, *phases, *taps, block, block), "int8", "weight")
        par = placeholder((workload.oc_blocks, *phases, REQUANT_ENTRIES, block), "int32", "param")
        acc, image = _sums(workload, data, weight)
        out = requantized(acc, par, workload.epilogue)
        stages, tiling = Stages(data, weight, par, image, acc), make_tiling(knobs)
        loops = schedule_products(out, stages, (0, 1, 3), tiling, self.machine)
        return lower(loops.schedule, [data, weight, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        """Weights [O/block][I/block][phases][taps][block][block], and parameters
        [O/block][phases][3][block]: every phase has its own, as it has its own sum of weights.
        """
        op, found = node.op, _phases(graph, node)
        weight, bias = (graph[name].data for name in node.inputs[1:])
        assert isinstance(op, QConvTranspose2d) and found is not None
        assert weight is not None and bias is not None
        phases = phase_weights(weight, *found)
        weights, requants = [], []
        for part in phases.reshape(-1, *phases.shape[2:]):
            folded = folded_bias(part, bias, op.x_zero_point)
            weights.append(pack_weight(part, self.machine.params))
            requants.append(requant_parameters(folded, op.requant, self.machine))
        return {"weight": np.stack(weights, axis=2), "requantisation": np.stack(requants, axis=1)}


def _phases(graph: Graph, node: Node) -> tuple[Subpixel, Subpixel] | None:
    """The decomposition of rows and of columns, if there is one."""
    op = node.op_as(QConvTranspose2d)
    kernel = graph[node.inputs[1]].shape[2:]
    return subpixels((kernel[0], kernel[1]), op.strides, op.before, op.size)


def _sums(workload: TransposedWorkload, data: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of products of every phase, and the image with its border that they read."""
    rows, cols = workload.rows, workload.cols
    (top, bottom), (left, right) = rows.pads(workload.height), cols.pads(workload.width)
    image = padded(data, (top, left, bottom, right), workload.pad_value)
    *_, batch, block = data.shape
    cb, u, v, ci = (
        reduce_axis(extent, axis)
        for extent, axis in (
            (workload.ic_blocks, "cb"), (rows.taps, "u"), (cols.taps, "v"), (block, "ci"),
        )
    )  # fmt: skip

    def products(c: Expr, y: Expr, p: Expr, x: Expr, q: Expr, b: Expr, i: Expr) -> Expr:
        row = y + p * rows.shift + u + (rows.first + top)
        col = x + q * cols.shift + v + (cols.first + left)
        element, axes = image[cb, row, col, b, ci], (cb, u, v, ci)
        return dot(element, weight[c, cb, p, q, u, v, i, ci], axes)

    shape = (
        workload.oc_blocks, rows.positions, rows.stride, cols.positions, cols.stride, batch, block,
    )  # fmt: skip
    return compute(shape, products, "acc"), image
