"""Blocks of channels for the CPU: convolutions and operators between them work on vectors.

::

    y = Conv2d(x, w, b)              x1 = ToBlocks(x)
    z = MaxPool(y)             ->    y1 = BlockedConv2d(x1, w1, b1);  z1 = BlockedPool(y1)
    r = Transpose(z)                 z = FromBlocks(z1);  r = Transpose(z)

A tensor is converted at most once in each direction, and only where an operator that works on
blocks meets one that does not. Weights are packed here. An addition is fused into the
convolution before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....graph.arithmetic.floor_requant import floor_requant
from ....graph.arithmetic.requant import MULTIPLIER_BITS, OFFSET, UINT8_MAX, Requant
from ....graph.ir import Graph, Node, Tensor
from ....graph.ops.base import Op
from ....graph.ops.blocked.convolution import BlockedConv2d, BlockedDepthwise, BlockedWinograd
from ....graph.ops.blocked.dense import PackColumns, PackedDense
from ....graph.ops.blocked.four_bits import GROUP, FourBitRows, pack_groups
from ....graph.ops.blocked.integer import BlockedDotConv2d, BlockedQConv2d
from ....graph.ops.blocked.matrix import BlockedMatrixConv2d
from ....graph.ops.blocked.pooling import BlockedPool
from ....graph.ops.blocked.transposed import BlockedConvTranspose2d
from ....graph.ops.convolution import (
    Conv2d,
    Convolution,
    ConvolutionTranspose,
    ConvTranspose2d,
    QConv2d,
    StoredConv2d,
)
from ....graph.ops.elementwise import Add, Clip, Map, Relu, SubtractZeroPoint
from ....graph.ops.integer import QAdd
from ....graph.ops.layout import FromBlocks, Interleave, ToBlocks, in_blocks
from ....graph.ops.linear import Dense, MatMul, QDense, QMatMul
from ....graph.ops.movement import Pad, Reshape, Slice, Transpose
from ....graph.ops.pooling import AvgPool, MaxPool, QMaxPool
from ....graph.ops.reduction import Reduce
from ....te.expr import Call, Const, Var
from ....te.tensor import clip
from ...common.relayout import Relayout
from ..templates.algorithms import ALGORITHMS, DIRECT, transformed_weight
from ..templates.matrix_tiles import choose_depth

#: Shapes of one element, which broadcasts in every layout.
SCALARS = {(), (1,)}
#: Packing a matrix takes about as long as multiplying a few rows by it. Fewer rows also wait for
#: their weights, not for products.
LEAST_ROWS = 4
#: float32 holds every integer below this one.
EXACT_FLOATS = 1 << 24


#: The algorithm of a convolution: a name of ``templates/algorithms.py``.
AlgorithmOf = Callable[[Graph, Node], str]
#: Whether a convolution of int8 is computed by products of matrices.
UsesMatrices = Callable[[Graph, Node], bool]
#: Whether an operator stays as it is.
Keeps = Callable[[Graph, Node], bool]


def block_channels(
    graph: Graph,
    block: int = 16,
    dots: bool = False,
    algorithm: AlgorithmOf = lambda graph, node: DIRECT,
    uses_matrices: UsesMatrices = lambda graph, node: False,
    keeps: Keeps = lambda graph, node: False,
) -> Graph:
    """The graph with convolutions, and operators that can follow them, on blocks of channels. Float
    convolutions use the ``algorithm`` that is chosen for each. Integer convolutions add products by
    fours where the processor has an instruction for that (``dots``), or as products of matrices
    where that is chosen. What it ``keeps`` stays as it is."""
    return _lift(_Blocks(graph, block, dots, algorithm, uses_matrices, keeps).run())


@dataclass
class _Blocks(Relayout):
    suffix = "blocks"
    conversions = ("to_blocks", "from_blocks")

    block: int
    dots: bool
    algorithm: AlgorithmOf
    uses_matrices: UsesMatrices
    keeps: Keeps

    def __post_init__(self) -> None:
        super().__post_init__()
        self.readers = self.graph.consumers()

    def into(self) -> Op:
        return ToBlocks(self.block)

    def back(self, name: str) -> Op:
        return FromBlocks(self.graph[name].shape[1])

    def add(self, node: Node) -> None:
        match node.op:
            case _ if self.keeps(self.graph, node):
                self.keep(node, node.op, *map(self.in_plain, node.inputs))
            case Conv2d() if self._packs(node):
                self._conv(node, node.op)
            case QConv2d() if self._packs(node) and node.op.requant.rounding == "even":
                self._qconv(node, node.op)
            case StoredConv2d() if self._groups_fit(node) and self._adds_fours(node, node.op):
                self._dot_conv(node, node.op, None, None, [self.in_plain(node.inputs[2])])
            case Convolution() if self._is_whole(node, node.op) and self._packs(node):
                self._conv(node, node.op)
            case Reduce() if self._reduces_blocks(node, node.op):
                self._reduce(node, node.op)
            case ConvTranspose2d() | ConvolutionTranspose() if self._is_plain_transpose(
                node, node.op
            ):
                self._conv_transpose(node, node.op)
            case MaxPool() | AvgPool() | QMaxPool() if node.inputs[0] in self.moved:
                self.emit(node, BlockedPool(node.op), self.in_other(node.inputs[0]))
            case Relu() | Clip() if node.inputs[0] in self.moved:
                self.emit(node, node.op, self.in_other(node.inputs[0]))
            case Add() if self.adds(node):
                self._add(node, node.op)
            case Interleave() if all(name in self.moved for name in node.inputs):
                self.emit(node, node.op, *(self.in_other(n) for n in node.inputs))
            case QAdd() if self.adds(node):
                self.emit(node, node.op, *(self.in_other(n) for n in node.inputs))
            case Map() | SubtractZeroPoint() | Add() if self._maps_blocks(node):
                inputs = (n if self.graph[n].shape in SCALARS else self._blocks_of_channels(n)
                          for n in node.inputs)  # fmt: skip
                self.emit(node, node.op, *inputs)
            case Dense() if self._packs(node):
                self._dense(node, node.op)
            case QDense() if self._packs_rows(node, node.op):
                self._rows(node, node.op)
            case MatMul() if self._packs_columns(node, "float32"):
                self._product(node)
            case QMatMul() if self._packs_columns(node, "int8") and self._is_exact(node, node.op):
                self._integer_product(node, node.op)
            case _:
                self.keep(node, node.op, *map(self.in_plain, node.inputs))

    def _packs(self, node: Node) -> bool:
        return self._groups_fit(node) and self.is_constant_beyond_image(node)

    def _groups_fit(self, node: Node) -> bool:
        """Whether a convolution has one group, is depthwise, or has as many results as channels in
        each group, which divide a block or consist of whole blocks."""
        groups = getattr(node.op, "groups", 1)
        channels, results = self.graph[node.inputs[0]].shape[1], self.graph.result(node).shape[1]
        each = channels // groups
        whole = each % self.block == 0 or self.block % each == 0
        return groups == 1 or (channels == results and whole)

    def _is_depthwise(self, node: Node, groups: int) -> bool:
        """Whether each channel has a group of its own, if the groups fit."""
        return 1 < groups == self.graph[node.inputs[0]].shape[1]

    def _kernels(self, node: Node, groups: int) -> np.ndarray:
        """The weight of a convolution; with zeros for the other groups of a block where groups are
        smaller."""
        weight = self.data(node.inputs[1])
        results, channels, *kernel = weight.shape
        if groups == 1 or channels >= self.block:
            return weight
        wide = np.zeros((results, self.block // channels, channels, *kernel), weight.dtype)
        of_all = np.arange(results)
        wide[of_all, of_all // channels % (self.block // channels)] = weight
        return wide.reshape(results, self.block, *kernel)

    def _conv(self, node: Node, op: Conv2d | Convolution) -> None:
        bounds: tuple[float, ...] = ()
        if isinstance(op, Conv2d):
            size, bounds = ALGORITHMS.get(self.algorithm(self.graph, node)), (op.lo, op.hi)
            if size is not None:
                self._winograd(node, op, size)
                return
        attributes: Any = (op.strides, op.pads, op.dilations, *bounds)
        image, packed = self._image_and_weight(node, op.groups)
        depthwise = self._is_depthwise(node, op.groups)
        new = BlockedDepthwise(*attributes) if depthwise else BlockedConv2d(*attributes)
        weight = self.constant(f"{node.name}.weight", packed)
        self.emit(
            node, new, image, weight, self._packed_bias(node, self.data(node.inputs[1]).shape[0])
        )

    def _winograd(self, node: Node, op: Conv2d, size: int) -> None:
        weight = self.data(node.inputs[1])
        packed = in_blocks(in_blocks(weight, self.block, 0), self.block, 2)
        packed = transformed_weight(packed.transpose(0, 2, 3, 1, 4, 5), size)
        inputs = (
            self.in_other(node.inputs[0]),
            self.constant(f"{node.name}.weight", packed),
            self._packed_bias(node, weight.shape[0]),
        )
        self.emit(node, BlockedWinograd(size, op.pads, op.lo, op.hi), *inputs)

    def _qconv(self, node: Node, op: QConv2d) -> None:
        rest = (op.x_zero_point, op.requant)
        columns, depthwise = self._columns(node, op.requant), self._is_depthwise(node, op.groups)
        if self._adds_fours(node, op):
            weight = self.data(node.inputs[1])
            columns["bias"] = _lifted_bias(columns["bias"], weight, op.x_zero_point)
            self._dot_conv(node, op, *rest, self._packed_columns(node, columns))
            return
        image, packed = self._image_and_weight(node, op.groups)
        new = BlockedQConv2d(op.strides, op.pads, op.dilations, depthwise, *rest)
        names = self._packed_columns(node, columns)
        weights = self.constant(f"{node.name}.weight", packed.astype(np.int32))
        self.emit(node, new, image, weights, *names)

    def _dot_conv(
        self, node: Node, op: QConv2d | StoredConv2d, zero_point: int | None,
        requant: Requant | None, columns: list[str],
    ) -> None:  # fmt: skip
        """A convolution that adds products by fours, with its operands behind the weight."""
        matrices = self.uses_matrices(self.graph, node)
        image, packed, missing = self._image_and_fours(node, op.groups, matrices)
        pads = (*op.pads[:3], op.pads[3] + missing)
        kind = BlockedMatrixConv2d if matrices else BlockedDotConv2d
        depthwise = self._is_depthwise(node, op.groups)
        new = kind(op.strides, pads, op.dilations, depthwise, zero_point, requant)
        self.emit(node, new, image, self.constant(f"{node.name}.weight", packed), *columns)

    def _is_whole(self, node: Node, op: Convolution) -> bool:
        """Whether a convolution is of images of int32, with results for most lanes of a vector."""
        image, lanes = self.graph[node.inputs[0]], 2 * self.graph.result(node).shape[1]
        fits = lanes >= self.block and min(op.pads) >= 0
        return fits and (len(image.shape), image.dtype) == (4, "int32")

    def _reduces_blocks(self, node: Node, op: Reduce) -> bool:
        """Whether a reduction over channels can read blocks, which must be full."""
        shape = self.graph[node.inputs[0]].shape
        return node.inputs[0] in self.moved and 1 in op.axes and shape[1] % self.block == 0

    def _reduce(self, node: Node, op: Reduce) -> None:
        blocks = replace(op, axes=(*op.axes, 4))
        made = self._step(node, "reduced", blocks, self.in_other(node.inputs[0]))
        self.keep(node, Reshape(self.graph.result(node).shape), made)

    def _packed_columns(self, node: Node, columns: dict[str, np.ndarray]) -> list[str]:
        return [
            self.constant(f"{node.name}.{name}", in_blocks(column, self.block, 0))
            for name, column in columns.items()
        ]

    def _columns(self, node: Node, requant: Requant) -> dict[str, np.ndarray]:
        """The bias and the factors that rescale the sums, by name: factors in float32 where the
        processor has vectors that round down and the results stay the same, else integers.
        """
        weight, bias = (self.data(name).astype(np.int64) for name in node.inputs[1:])
        largest = UINT8_MAX * np.abs(weight).reshape(len(weight), -1).sum(1) + np.abs(bias)
        found = floor_requant(requant, largest) if self.dots else None
        if found is not None:
            total = (bias + found.bias).astype(np.int32)
            columns = {"bias": total, "factor": found.factor, "offset": found.offset}
            return columns if found.rest is None else columns | {"rest": found.rest}
        return {
            "bias": bias.astype(np.int32),
            "multiplier": np.broadcast_to(requant.multiplier, len(bias)),
            "shift": np.broadcast_to(requant.shift, len(bias)),
        }

    def _image_and_weight(self, node: Node, groups: int) -> tuple[str, np.ndarray]:
        """The name of a convolution's image in the layout to read, and the weight that fits it."""
        x = node.inputs[0]
        if self._is_depthwise(node, groups):
            packed = in_blocks(self.data(node.inputs[1])[:, 0], self.block, 0)
            packed = packed.transpose(0, 2, 3, 1)
            return self.in_other(x), packed
        weight = self._kernels(node, groups)
        packed = in_blocks(weight, self.block, 0)  # [OC/B, B, C, KH, KW]
        if x in self.moved or weight.shape[1] >= self.block:
            packed = in_blocks(packed, self.block, 2).transpose(0, 2, 4, 5, 3, 1)
            return self.in_other(x), packed
        # Channels too few for a block are read one after another, in the model's own layout.
        return self.in_plain(x), packed.transpose(0, 2, 3, 4, 1)

    def _adds_fours(self, node: Node, op: QConv2d | StoredConv2d) -> bool:
        """Whether products can be added by fours: positions of a row must lie together."""
        fits = self.data(node.inputs[1]).dtype == np.int8
        depthwise = self._is_depthwise(node, op.groups)
        return self.dots and fits and (not depthwise or op.dilations[1] == 1)

    def _image_and_fours(
        self, node: Node, groups: int, matrices: bool
    ) -> tuple[str, np.ndarray, int]:
        """As :meth:`_image_and_weight`, with groups of four channels innermost; in a depthwise
        convolution, groups of four taps of a row. Also returns how many taps of zeros that adds to
        a row. An image of fewer channels than a block gets a smaller block. For products of
        ``matrices``, the weights of several blocks lie together."""
        x, weight = node.inputs[0], self.data(node.inputs[1])
        if self._is_depthwise(node, groups):
            packed = in_blocks(in_blocks(weight[:, 0], self.block, 0), 4, 3)
            return self.in_other(x), packed.transpose(0, 2, 3, 1, 4), -weight.shape[3] % 4
        weight = self._kernels(node, groups)
        channels = weight.shape[1]
        wide = x in self.moved or channels >= self.block
        size = self.block if wide else -(-channels // 4) * 4
        together = choose_depth(-(-channels // size)) if matrices else size
        filled = in_blocks(weight, size, 1).reshape(len(weight), -1, *weight.shape[2:])
        packed = in_blocks(in_blocks(filled, self.block, 0), together, 2)
        packed = in_blocks(packed, 4, 3).transpose(0, 2, 5, 6, 3, 1, 4)
        return self.in_other(x) if wide else self._narrow_block(x, size), packed, 0

    def _narrow_block(self, x: str, size: int) -> str:
        """All channels of an image as one block of ``size``."""
        output = f"{x}.block"
        if output not in self.nodes:
            self.step(f"{x}.to_block", output, ToBlocks(size), self.in_plain(x))
        return output

    def _is_plain_transpose(self, node: Node, op: ConvTranspose2d | ConvolutionTranspose) -> bool:
        image = self.graph[node.inputs[0]]
        plain = isinstance(op, ConvTranspose2d) or (op.groups == 1 and max(op.dilations) == 1)
        return plain and (len(image.shape), image.dtype) == (4, "float32") and self._packs(node)

    def _conv_transpose(self, node: Node, op: ConvTranspose2d | ConvolutionTranspose) -> None:
        weight = self.data(node.inputs[1]).swapaxes(0, 1)  # [OC, C, KH, KW]
        packed = in_blocks(in_blocks(_phases(weight, op), self.block, 2), self.block, 4)
        packed = packed.transpose(0, 1, 2, 4, 6, 7, 5, 3)
        inputs = (
            self.in_other(node.inputs[0]),
            self.constant(f"{node.name}.weight", packed),
            self._packed_bias(node, weight.shape[0]),
        )
        (before_h, before_w), (height, width) = op.before, op.size
        bounds = (op.lo, op.hi) if isinstance(op, ConvTranspose2d) else ()
        new = BlockedConvTranspose2d((before_h, before_w), (height, width), *bounds)
        self.emit(node, new, *inputs)

    def _dense(self, node: Node, op: Dense) -> None:
        weight = self.data(node.inputs[1])
        weight = weight if op.transposed else weight.T
        packed = in_blocks(weight, self.block, 0).transpose(0, 2, 1)
        inputs = (
            self.in_plain(node.inputs[0]),
            self.constant(f"{node.name}.weight", packed),
            self._packed_bias(node, weight.shape[0]),
        )
        self.keep(node, PackedDense(weight.shape[0], op.lo, op.hi), *inputs)

    def _packs_rows(self, node: Node, op: QDense) -> bool:
        """Whether rows of int8 are read as a convolution's row of positions: products of fours need
        whole fours of elements."""
        (_, depth), even = self.graph[node.inputs[0]].shape, op.requant.rounding == "even"
        fits = self.dots and even and depth % 4 == 0
        return fits and self._packs(node) and self.data(node.inputs[1]).dtype == np.int8

    def _rows(self, node: Node, op: QDense) -> None:
        """A dense layer as a convolution of one row of positions, whose elements are one block of
        channels, grouped for products of matrices; blocks of its results lie apart, and are put
        side by side. Few rows read weights of 4 bits as such: they wait for memory."""
        (rows, depth), weight = self.graph[node.inputs[0]].shape, self.data(node.inputs[1])
        columns = self._columns(node, op.requant)
        columns["bias"] = _lifted_bias(columns["bias"], weight, op.x_zero_point)
        groups = pack_groups(weight, self.block) if rows < LEAST_ROWS else None
        matrices = groups is None and self.uses_matrices(self.graph, node)
        x = self.in_plain(node.inputs[0])
        if groups is not None:
            kind, packed = FourBitRows, [*groups]
            if missing := -depth % GROUP:  # weights of 0: elements may be any
                x = self._step(node, "groups", Pad("edge", (0, 0, 0, missing)), x)
                depth += missing
        else:
            kind = BlockedMatrixConv2d if matrices else BlockedDotConv2d
            together = choose_depth(depth // self.block) if matrices else depth
            fours = in_blocks(in_blocks(weight, self.block, 0), together, 2)  # [OC/B, B, C/X, X]
            fours = in_blocks(fours, 4, 3).transpose(0, 2, 3, 1, 4)
            packed = [fours[:, :, None, None]]
        attributes = ((1, 1), (0, 0, 0, 0), (1, 1), False, op.x_zero_point, op.requant)
        image = self._step(node, "rows", Reshape((1, 1, 1, rows, depth)), x)
        names = [
            *(self.constant(f"{node.name}.{name}", part)
              for name, part in zip(("weight", "scales"), packed, strict=False)),
            *self._packed_columns(node, columns),
        ]  # fmt: skip
        made = self._step(node, "places", kind(*attributes), image, *names)
        count = len(packed[0])
        size = count * self.block
        if rows > 1:
            made = self._step(node, "blocks", Reshape((count, rows, self.block)), made)
            made = self._step(node, "side_by_side", Transpose((1, 0, 2)), made)
        whole = size == len(weight)
        last: Op = Reshape((rows, size))
        if not whole:
            made = self._step(node, "filled", last, made)
            last = Slice((0, 0), (1, 1), (rows, len(weight)))
        self.keep(node, last, made)

    def _step(self, node: Node, label: str, op: Op, *inputs: str) -> str:
        """A new node of a node that becomes several."""
        return self.step(f"{node.name}.{label}", f"{node.output}.{label}", op, *inputs)

    def _packs_columns(self, node: Node, dtype: str) -> bool:
        """Whether it pays to pack the second factor of a product of matrices: it is a constant, or
        there are rows enough that read it; and it has columns for most lanes of a vector."""
        a, b = self.graph.operands(node)
        alike = a.dtype == dtype and a.shape[:-2] == b.shape[:-2] and 0 not in a.shape
        pays = b.is_constant or a.shape[-2] >= LEAST_ROWS
        return alike and pays and 2 * b.shape[-1] >= self.block

    def _product(self, node: Node) -> None:
        """A product of matrices that are both computed. A transposition of the second one is fused
        into its packing."""
        a, b = node.inputs
        source, order = self._before_transposition(b)
        pack = PackColumns(self.block, order)
        packed = f"{b}.columns"
        if not self.graph[b].is_constant:
            packed = self._step(node, "columns", pack, self.in_plain(source))
        elif packed not in self.tensors:  # the steps of a recurrent layer share it
            self.constant(packed, pack.evaluate(self.data(b)))
        self.keep(node, PackedDense(self.graph[b].shape[-1]), self.in_plain(a), packed)

    def _before_transposition(self, name: str) -> tuple[str, tuple[int, ...]]:
        """What a tensor is a transposition of, which goes where nothing else reads it, and its
        order."""
        made = self.nodes.get(name)
        if made is None or not isinstance(made.op, Transpose):
            return name, tuple(range(len(self.graph[name].shape)))
        if len(self.readers[name]) == 1 and name not in self.graph.outputs:
            del self.nodes[name]
        return made.inputs[0], made.op.order

    def _is_exact(self, node: Node, op: QMatMul) -> bool:
        """Whether float32 holds every sum of a product of integers that are both computed."""
        a, b = self.graph.operands(node)
        most = (OFFSET + abs(op.a_zero_point)) * (OFFSET + abs(op.b_zero_point))
        computed = not a.is_constant and not b.is_constant
        return computed and op.requant.rounding == "even" and most * a.shape[-1] < EXACT_FLOATS

    def _integer_product(self, node: Node, op: QMatMul) -> None:
        """A product of int8 as one of float32, whose vectors and packing are there: rows are too
        short for a sum that float32 does not hold."""
        a, b = node.inputs
        source, order = self._before_transposition(b)
        real = [
            self._step(node, label, _less(zero), self.in_plain(name))
            for label, name, zero in (
                ("left", a, op.a_zero_point), ("right", source, op.b_zero_point)
            )
        ]  # fmt: skip
        packed = self._step(node, "columns", PackColumns(self.block, order), real[1])
        made = self._step(node, "sums", PackedDense(self.graph[b].shape[-1]), real[0], packed)
        self.keep(node, _requantising(op.requant), made)

    def _maps_blocks(self, node: Node) -> bool:
        """Whether a map can work on blocks. These must be full: elements beyond the last channel
        have to stay finite, which a map does not promise. There may be numbers for each channel.
        """
        shape = self.graph.result(node).shape
        if len(shape) != 4 or shape[1] % self.block:
            return False
        images = [name for name in node.inputs if self.graph[name].shape == shape]
        numbers = [self.graph[name] for name in node.inputs if name not in images]
        of_channels = ((*shape[:2], 1, 1), (1, shape[1], 1, 1))
        of_positions = (shape[0], 1, *shape[2:])
        fits = all(
            tensor.shape in (*SCALARS, *of_channels, of_positions)
            or (tensor.is_constant and tensor.shape == (shape[1], 1, 1))
            for tensor in numbers
        )
        return fits and any(name in self.moved for name in images)

    def _blocks_of_channels(self, name: str) -> str:
        """A tensor in blocks; a constant is put into them here."""
        tensor = self.graph[name]
        if tensor.shape[1:2] == (1,) and tensor.data is None:  # a number for each position
            plain = self.in_plain(name)
            return self.step(
                f"{name}.to_places", f"{name}.places", Reshape((*tensor.shape, 1)), plain
            )
        if tensor.data is None:
            return self.in_other(name)
        whole = tensor.data.reshape((1,) * (4 - tensor.data.ndim) + tensor.data.shape)
        return self.constant(f"{name}.blocks", ToBlocks(self.block).evaluate(whole))

    def _add(self, node: Node, op: Add) -> None:
        """Make an addition part of the convolution that computes one of its operands, if nothing
        else reads that operand; else add on blocks.
        """
        for mine, other in (node.inputs, node.inputs[::-1]):
            source = self.nodes.get(self.moved.get(mine, ""))
            if source is None or mine == other or mine in self.graph.outputs:
                continue
            conv = source.op
            if (
                not isinstance(conv, BlockedConv2d | BlockedWinograd | BlockedDepthwise)
                or len(source.inputs) > 3
            ):
                continue
            if len(self.readers[mine]) > 1 or (conv.lo, conv.hi) != (-math.inf, math.inf):
                continue
            residual = self.in_other(other)
            del self.nodes[source.output], self.moved[mine]
            fused = replace(conv, lo=op.lo, hi=op.hi)
            self.emit(replace(source, output=node.output), fused, *source.inputs, residual)
            return
        self.emit(node, op, *(self.in_other(name) for name in node.inputs))

    def _packed_bias(self, node: Node, channels: int) -> str:
        _, weight, *given = map(self.graph.__getitem__, node.inputs)
        bias = self.data(given[0].name) if given else np.zeros(channels, weight.dtype)
        return self.constant(f"{node.name}.bias", in_blocks(bias, self.block, 0))


def _lift(graph: Graph) -> Graph:
    """Results that only products of uint8 and int8 read are stored as uint8."""
    readers, nodes, tensors = graph.consumers(), list[Node](), list[Tensor]()
    for node in graph.nodes:
        reads = [isinstance(reader.op, BlockedDotConv2d) for reader in readers[node.output]]
        stored = graph[node.output].dtype == "int8"
        if stored and isinstance(node.op, BlockedDotConv2d | ToBlocks) and reads and all(reads):
            node = replace(node, op=replace(node.op, lifts=True))
            tensors.append(replace(graph[node.output], dtype="uint8"))
        nodes.append(node)
    return graph.with_nodes(nodes, *tensors)


def _phases(weight: np.ndarray, op: ConvTranspose2d | ConvolutionTranspose) -> np.ndarray:
    """Weights [OC, C, KH, KW] divided into phases, the remainders of places by the stride, with the
    last tap first: [SH, SW, OC, C, TH, TW]."""
    (sh, sw), (bh, bw) = op.strides, op.before
    th, tw = (-(-k // s) for k, s in zip(weight.shape[2:], op.strides, strict=True))
    missing = ((0, 0), (0, 0), (0, th * sh - weight.shape[2]), (0, tw * sw - weight.shape[3]))
    grown = np.pad(weight, missing)
    return np.stack([
        np.stack([
            grown[:, :, (rh + bh) % sh :: sh, (rw + bw) % sw :: sw][:, :, ::-1, ::-1]
            for rw in range(sw)
        ])
        for rh in range(sh)
    ])  # fmt: skip


def _less(zero_point: int) -> Map:
    """An int8 less its zero point, as float32."""
    x = Var("x", "int8")
    return Map("Real", (x,), (x.astype("int32") - zero_point).astype("float32"))


def _requantising(requant: Requant) -> Map:
    """A sum that is a float32, requantised."""
    x, (multiplier,), (shift,) = Var("x", "float32"), requant.multiplier, requant.shift
    fits = shift > MULTIPLIER_BITS  # a scale below a half: int32 holds results
    name, dtype = ("rescale", "int32") if fits else ("requantize", "int64")
    factors = Const(int(multiplier), "int32"), Const(int(shift), "int32")
    y = Call(name, (x.astype("int32"), *factors), dtype) + requant.zero_point
    return Map("Requantise", (x,), clip(y, requant.lo, requant.hi).astype("int8"))


def _lifted_bias(bias: np.ndarray, weight: np.ndarray, zero_point: int) -> np.ndarray:
    """A bias for elements that are uint8, of which the zero point is not subtracted."""
    sums = weight.astype(np.int64).reshape(len(weight), -1).sum(1)
    return (bias - (zero_point + OFFSET) * sums).astype(np.int32)
