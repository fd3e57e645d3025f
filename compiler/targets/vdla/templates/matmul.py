"""Products of two activations on the tensor core, as in attention.

The first image is read as any activation, the second one as weights: 16 of its positions, in a
block of channels, lie in DRAM as a tile of weights does. With zero points ``a`` and ``b``::

    sum((x - a) * (w - b)) = sum(x * w) - a * sum(w) - b * sum(x) + a * b * count

The tensor core makes both sums as products with ones: ``sum(w)`` once for each tile of weights,
``sum(x)`` once for each tile of positions. The vector unit adds them to the products, the first of
them in the pass that requantises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import numpy as np

from .....isa.params import HwParams
from .....runtime.layout import blocks
from ....choose.space import Knobs, Refusal, Space
from ....choose.template import Plan
from ....graph.arithmetic.requant import Requant
from ....graph.ir import Graph, Node
from ....graph.ops.group_matmul import QGroupMatMul
from ....graph.ops.linear import QMatMul
from ....te import Const, Expr, Tensor, compute, placeholder, reduce_axis
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from .. import expressions as E
from ..cost.tiling import ProductShape, make_tiling
from ..machine import Budget, Context, Machine
from .base import PlannedTiles, PlannedWorkload, Track, requant_parameters, tile_bytes
from .convolution import Stages, schedule_products, sums_of_products


@dataclass(frozen=True)
class ActivationsWorkload(PlannedWorkload):
    """Products of two images in ``groups``: each of ``places`` of the first, which has
    ``image_places``, with each of ``others`` of the second, which make ``oc_blocks`` blocks of
    results. Both have ``ic_blocks`` blocks of channels in each group; ``readers`` groups of the
    result read each group of the first, and of the second. ``sums_weights`` and ``sums_inputs`` say
    which sums are needed: those whose zero point, of the first or of the second image, is not 0.
    """

    groups: int
    ic_blocks: int
    image_places: int
    places: int
    oc_blocks: int
    others: int
    readers: tuple[int, int]
    sums_weights: bool
    sums_inputs: bool
    context: Context
    a_zero_point: int = field(compare=False)
    b_zero_point: int = field(compare=False)
    epilogue: E.Epilogue = field(compare=False)

    @property
    def shared(self) -> tuple[int, int]:
        """How many groups are computed as one because they share an operand, which then is loaded
        once for all of them: the first image, whose readers are more blocks of channels then, if
        each has one (tiles of several are not one load); or the second, whose readers are more
        rows."""
        first, second = self.readers
        if second == 1:
            return (first if self.oc_blocks == 1 else 1, 1)
        return (1, second if first == 1 else 1)

    @property
    def shape(self) -> ProductShape:
        """The products as the planner sees them: those of a group, for each group."""
        first, second = self.shared
        rows, cols = (second, self.places) if second > 1 else (self.places, 1)
        return ProductShape(
            ic_blocks=self.ic_blocks, oc_blocks=first * self.oc_blocks, oh=rows, ow=cols, kh=1,
            kw=1, sums_weights=self.sums_weights, sums_inputs=self.sums_inputs,
            times=self.groups // (first * second),
        )  # fmt: skip


class Activations(PlannedTiles[ActivationsWorkload]):
    """Products of two activations. A tile has all channels, and does not reach over groups."""

    name = "activations"
    ops = (QMatMul, QGroupMatMul)
    track = Track.TENSOR
    operand_as_weights = 1

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        """A QMatMul becomes a QGroupMatMul before it is computed (``matmul_as_convolution``)."""
        (a, b), batch = graph.operands(node), self.machine.params.batch
        if a.is_constant or b.is_constant:
            return Refusal("a product with a constant that is no weight of a dense layer")
        if batch > 1:
            return Refusal(f"an activation as weights, which have no batch; the core has {batch}")
        if isinstance(node.op, QMatMul):
            if a.shape[:-2] != b.shape[:-2] or 0 in (*a.shape, *b.shape):
                return Refusal("a product of matrices that broadcast, or have no elements")
            if (odd := self._between_beats(a.shape[-1], b.shape[-1])) is not None:
                return odd
            whole = Context(Budget.whole(self.machine.params))
            groups, depth = prod(a.shape[:-2]), blocks(a.shape[-1], self.machine.params)
            sizes = (groups, depth, a.shape[-2], a.shape[-2], b.shape[-1])
            found = self.plan(self._make_workload(node.op, *sizes, whole), {})
            if isinstance(found, Refusal):
                return found
        return "product of two activations on the tensor core"

    def _between_beats(self, *positions: int) -> Refusal | None:
        """Why images of these positions cannot be read as tiles, if a tile does not begin where
        the load unit can begin to read."""
        params = self.machine.params
        for count in positions:
            if count % tile_step(params):
                row = f"{count} places of {params.block} channels"
                step_bytes = tile_step(params) * params.block
                return Refusal(
                    f"{row}: a tile of weights begins at a multiple of {step_bytes} bytes"
                )
        return None

    def workload(self, graph: Graph, node: Node, context: Context) -> ActivationsWorkload:
        op, (a, b) = node.op_as(QGroupMatMul), graph.operands(node)
        depth = a.shape[1] * op.a_readers // op.groups // self.machine.params.block
        sizes = (op.groups, depth, a.shape[2], op.places, b.shape[2])
        return self._make_workload(op, *sizes, context)

    def _make_workload(
        self, op: QMatMul | QGroupMatMul, groups: int, depth: int, image_places: int,
        positions: int, others: int, context: Context,
    ) -> ActivationsWorkload:  # fmt: skip
        zero_points = (op.a_zero_point, op.b_zero_point)
        readers = (op.a_readers, op.b_readers) if isinstance(op, QGroupMatMul) else (1, 1)
        return ActivationsWorkload(
            groups, depth, image_places, positions, blocks(others, self.machine.params), others,
            readers, zero_points[0] != 0, zero_points[1] != 0, context, *zero_points,
            E.Epilogue.from_requant(op.requant),
        )  # fmt: skip

    def space(self, workload: ActivationsWorkload) -> Space:
        tilings = super().space(workload)
        return replace(tilings, knobs={**tilings.knobs, "ic_blocks": [workload.ic_blocks]})

    def plan(self, workload: ActivationsWorkload, fixed: Knobs) -> Plan | Refusal:
        return super().plan(workload, {**fixed, "ic_blocks": workload.ic_blocks})

    def schedule(self, workload: ActivationsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """The bias in ``param`` is the product of the zero points."""
        params, w = self.machine.params, workload
        batch, block = params.batch, params.block
        (first, second), apart = w.shared, w.groups // prod(w.shared)
        image = (w.ic_blocks, w.image_places, 1, batch, block)
        data = placeholder((w.groups // w.readers[0], *image), "int8", "data")
        groups = data
        if second > 1:  # rows of one image
            size = (apart, w.ic_blocks, second, w.image_places, batch, block)
            groups = compute(
                size, lambda g, c, y, x, b, i: data[g * second + y, c, x, 0, b, i], "groups"
            )
        elif w.readers[0] > first:
            groups = compute(
                (w.groups, *image), lambda *i: data[(i[0] // w.readers[0], *i[1:])], "groups"
            )
        read = tile_bytes(w.groups // w.readers[1] * w.ic_blocks, w.others, block)
        other = placeholder((read,), "int8", "other")
        one = placeholder((batch, block), "int8", "one")
        ones = placeholder((block, block), "int8", "ones")
        oc_blocks = first * w.oc_blocks
        par = shared_parameters(w.others, params)
        size = (apart, oc_blocks, w.ic_blocks)
        readers = w.readers[1] // second
        tiles = weight_tiles(other, *size, w.others, block, readers, first)
        # The positions that are not multiplied are a border that is cut off.
        beyond = w.places - w.image_places
        pads = (0, 0, 0, beyond) if second > 1 else (0, 0, beyond, 0)
        acc, copy = sums_of_products(E.Window((1, 1), pads=pads), 0, groups, tiles, ())
        inlined, products, channel, row = [groups] * (groups is not data), acc, 1, 2
        if second > 1:  # the results of a group lie together
            g, c, y, *rest = acc.shape
            products = compute(
                (g, y, c, *rest), lambda g, y, c, x, b, i: acc[g, c, y, x, b, i], "products"
            )
            inlined.append(products)
            channel, row = row, channel
        sums: list[_Sums] = []
        addend, both_sums = None, []
        if w.sums_weights:
            sums.append(_Sums.sum_weights(tiles, one, w.a_zero_point))
            addend = sums[-1].at((0, channel, 4, 5))
        if w.sums_inputs:
            sums.append(_Sums.sum_inputs(copy, ones, w.b_zero_point))
            by_position = sums[-1].at((0, row, 3, 4, 5))
            if addend is None:
                addend = by_position
            else:  # sums of weights come on top
                both = products
                products = compute(both.shape, lambda *i: both[i] + by_position(i), "partial")
                both_sums.append(products)
        chosen = partial(set_of_block, par, channel, w.oc_blocks)
        out = E.requantized(products, par, w.epilogue, addend=addend, choosing=chosen)
        tiled = (0, channel, row, 3)
        stages = Stages(data, tiles, par, copy, acc)
        tiling = make_tiling(knobs)
        loops = schedule_products(out, stages, tiled, tiling, self.machine, par_stays=True)
        s, staying = loops.schedule, loops.staying
        for stage in inlined:
            s[stage].compute_inline()
        for operand in (copy, tiles):
            s[operand].compute_at(s[out], staying.get(operand, loops.tile))
        # Sums are made once for each operand, where that is loaded; the ones stay on chip from the
        # start.
        for of in sums:
            s.cache_read(of.ones, of.scope, [of.total])
            scopes = {of.total: "acc", of.share: "tmp"}
            E.attach(s, scopes, s[out], staying.get(of.operand, loops.tile))
            E.schedule_sums(s, of.total, params)
        E.attach(s, dict.fromkeys(both_sums, "tmp"), s[out], loops.channel)
        return lower(s, [data, other, *(of.ones for of in sums), par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op, params = node.op_as(QGroupMatMul), self.machine.params
        w = self.workload(graph, node, Context(Budget.whole(params)))
        ones = np.ones((params.block, params.block), np.int8)
        found: dict[str, np.ndarray] = {}
        if w.sums_weights:
            found["one"] = ones[: params.batch]
        if w.sums_inputs:
            found["ones"] = ones
        count = w.ic_blocks * params.block
        bias = count * w.a_zero_point * w.b_zero_point
        return {**found, "requantisation": pack_shared(w.others, bias, op.requant, self.machine)}


def tile_step(params: HwParams) -> int:
    """Images are read as tiles of weights if their positions are a multiple of this: the load unit
    begins with a beat, and so must the blocks of channels."""
    step_bytes = min(params.entry_bytes("wgt"), params.bus_bytes)
    return max(1, step_bytes // params.block)


def shared_parameters(channels: int, params: HwParams) -> Tensor:
    """Parameters of results whose channels all have the same, int32 [sets, 3, block]: one set, and
    one more for a last block that has channels beyond them."""
    sets = 1 + (channels % params.block > 0)
    return placeholder((sets, E.REQUANT_ENTRIES, params.block), "int32", "param")


def set_of_block(par: Tensor, dim: int, blocks: int, index: tuple[Expr, ...]) -> Expr:
    """The set of :func:`shared_parameters` for an element, whose blocks of channels are counted by
    index ``dim``, ``blocks`` in each group."""
    return Const(0) if par.shape[0] == 1 else (index[dim] % blocks + 1) // blocks


def pack_shared(channels: int, bias: int, requant: Requant, machine: Machine) -> np.ndarray:
    """The constant of :func:`shared_parameters`. Channels beyond the others have multiplier 0:
    their result is requant(0)."""
    block = machine.params.block
    last = channels % block
    count = block + last if last else block
    return requant_parameters(np.full(count, bias, np.int32), requant, machine)


def weight_tiles(
    image: Tensor, groups: int, tiles: int, channel_blocks: int, positions: int, block: int,
    readers: int = 1, together: int = 1,
) -> Tensor:  # fmt: skip
    """Places of an image as tiles of weights, [groups, tiles, channel blocks, 1, 1, block, block].
    ``image`` is flat: [groups / readers][channel blocks][positions][block]; the tiles of a group
    are one of each of ``together`` of its groups, or all of one. Where positions end within a tile,
    its last rows are the next block's first positions."""

    def element(g: Expr, c: Expr, k: Expr, y: Expr, x: Expr, i: Expr, ci: Expr) -> Expr:
        group = g if readers == 1 else g // readers
        if together > 1:
            group, c = group * together + c, Const(0)
        block_of_image = group * channel_blocks + k
        return image[(block_of_image * positions + c * block + i) * block + ci]

    return compute((groups, tiles, channel_blocks, 1, 1, block, block), element, "tiles")


def transposed_tiles(tiles: Tensor, unit: Tensor) -> Tensor:
    """Tiles of weights with rows and columns exchanged, [groups, tiles, channel blocks, block, 1,
    block] int32: products with the rows of ``unit``, the identity matrix [block, 1, block]."""
    *size, _, _, _, block = tiles.shape
    # Sums of one tile: their loop begins before the loops over rows.
    once, ci = reduce_axis(1, "once"), reduce_axis(block, "ci")
    return compute(
        (*size, block, 1, block),
        lambda g, t, k, e, b, i: E.dot(unit[e, b, ci], tiles[g, t, k, once, 0, i, ci], (once, ci)),
        "transposed",
    )


@dataclass(frozen=True)
class _Sums:
    """Sums of an operand: the ones that it is multiplied by, which lie in ``scope``, the sums in
    acc, and their share of the products, sums times a zero point, in tmp.
    """

    operand: Tensor
    ones: Tensor
    scope: str
    total: Tensor
    share: Tensor

    @classmethod
    def sum_weights(cls, tiles: Tensor, one: Tensor, zero_point: int) -> _Sums:
        """For each tile of weights, the sums of its rows: products with a vector of ones."""
        groups, oc_blocks, ic_blocks, *_, block = tiles.shape
        cb, ci = reduce_axis(ic_blocks, "cb"), reduce_axis(block, "ci")
        total = compute(
            (groups, oc_blocks, *one.shape),
            lambda g, c, b, i: E.dot(one[b, ci], tiles[g, c, cb, 0, 0, i, ci], (cb, ci)),
            "weight_sums",
        )
        return cls(tiles, one, "inp", total, _times(total, -zero_point))

    @classmethod
    def sum_inputs(cls, image: Tensor, ones: Tensor, zero_point: int) -> _Sums:
        """For each position, the sum of its channels in every lane: products with a tile of
        ones."""
        groups, ic_blocks, rows, cols, batch, block = image.shape
        cb, ci = reduce_axis(ic_blocks, "cb"), reduce_axis(block, "ci")
        total = compute(
            (groups, rows, cols, batch, block),
            lambda g, y, x, b, i: E.dot(image[g, cb, y, x, b, ci], ones[i, ci], (cb, ci)),
            "input_sums",
        )
        return cls(image, ones, "wgt", total, _times(total, -zero_point))

    def at(self, dims: tuple[int, ...]) -> Callable[[tuple[Expr, ...]], Expr]:
        """The share of an element of the products; ``dims`` of its index select it."""
        return lambda index: self.share[tuple(index[d] for d in dims)]


def _times(sums: Tensor, factor: int) -> Tensor:
    return compute(sums.shape, lambda *i: sums[i] * factor, f"{sums.name}_share")
