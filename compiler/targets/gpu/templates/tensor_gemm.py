"""Products of matrices on tensor cores, in tiles of tiles.

A block computes a tile of the result, each of its warps a part of it. For each step of the
reduction the threads bring a tile of both factors to shared memory, ``stages - 1`` steps ahead of
the tensor cores; where the layout allows it, by asynchronous copies of 16 bytes. Rows in shared
memory are swizzled, so that eight rows are read from different banks. The sums go through shared
memory, where bias, bounds and requantisation follow, to the result; long ones are in parts
(``parts.py``).

A warp multiplies by ``mma.sync`` what it has loaded to registers. On GPUs of compute capability
9.0a the copy engine may bring the factors whose tiles are boxes of a tensor, and the four warps of
a warpgroup multiply by ``wgmma`` what is in shared memory, in tiles of 64 rows; then ``warp_rows``
and ``warp_columns`` are a warpgroup's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....choose.space import Knobs, KnobValue, Space, preferring
from ....graph.ir import Graph, Node
from ....graph.ops.base import Op
from ....graph.ops.channels_last import ChannelsLast
from ....graph.ops.convolution import Conv2d, QConv2d, QConvTranspose2d
from ....graph.ops.in_phases import InPhases
from ....graph.ops.linear import Dense, MatMul, QDense
from ....te.affine import affine
from ....te.expr import Const, Expr, Read, Var, all_of, bits_of, select, walk
from ....te.schedule import Schedule
from ....te.stage import Stage
from ....te.tensor import IterVar, Tensor, compute, reduce_axis, sum_of
from ...common.workload import OperatorWorkload
from .. import tensor_cores as tc
from ..architectures import Architecture
from ..scopes import BLOCK, GRID, MOST_BLOCKS, WARP, WARPGROUP
from ..warp_functions import VECTORS
from .base import Scheduled
from .gemm import ALL_BUSY, Gemm, fits, with_epilogue
from .parts import PARTS, best_parts, in_parts, may_be_parted, refuse_parts
from .product import (
    Element,
    Product,
    column_sums,
    count_taps,
    find_product_op,
    find_sizes,
    is_matrix,
    make_product,
)

#: Bytes that an asynchronous copy brings at most, and at least.
COPY_BYTES, LEAST_COPY_BYTES = max(VECTORS), min(VECTORS)

#: Tiles of a block, of a warp, steps of the reduction in bytes, buffers in turn.
TILES = (64, 32, 128, 16)
WARP_TILES = (32, 16, 64, 8)
DEPTHS = (64, 32, 128)
STAGES = (4, 3, 2, 1)
#: The same where there are warpgroups, whose tiles are larger.
GROUP_TILES = (128, *TILES[:2], 256, TILES[3])
GROUP_WARP_TILES = (*WARP_TILES, 128, 256)
#: Registers of 32 bits in which a thread can have sums, and warps of a block.
MOST_SUMS, MOST_WARPS = 128, 16
#: The instructions that multiply: of a warp, and of a warpgroup.
MMA, WGMMA = "mma", "wgmma"
#: Tiles below one another whose blocks run one after the other, before those of other columns: then
#: all blocks that run at a time read fewer different parts of both factors.
NEIGHBOURS = (16, 8, 4)
#: Who brings factors: threads, or the copy engine where a tile is a box of a tensor.
CP_ASYNC, TMA = "cp.async", "tma"


class TensorGemm(Gemm):
    """A tile of ``rows`` and ``columns`` for a block, of ``warp_rows`` and ``warp_columns`` for a
    warp; ``depth`` steps of the reduction at once, in ``stages`` buffers in turn; sums in
    ``parts``. ``precision`` is the kind of factors that are float32 in the model; "float32" leaves
    these to other templates. Factors of int8 are exact. Where the architecture has warpgroups,
    ``unit`` says whose instructions multiply."""

    name = "tensor cores"
    ops = (*Gemm.ops, ChannelsLast)

    def __init__(self, precision: str, architecture: Architecture):
        self.precision, self.architecture = precision, architecture

    def find_kind(self, graph: Graph, node: Node) -> str | None:
        """The kind of a product's factors; None where tensor cores have none that fits."""
        dtypes = {t.dtype for t in graph.operands(node)[:2]}
        op = strip_layout(node.op)
        if isinstance(op, QConv2d | QConvTranspose2d | QDense):
            known = graph.operands(node)[1].data is not None
            by_channel = isinstance(find_product_op(node.op), ChannelsLast | QDense)
            folds = not op.x_zero_point or (known and by_channel)
            return "int8" if dtypes == {"int8"} and folds else None
        half = dtypes <= {"float32", self.precision} and self.precision != "float32"
        return self.precision if half else None

    def handles(self, graph: Graph, node: Node) -> bool:
        node = replace(node, op=find_product_op(node.op))
        if self.find_kind(graph, node) is None:
            return False
        match node.op:
            case ChannelsLast(op):
                is_plain = isinstance(op, Conv2d | QConv2d) and op.groups == 1
                return is_plain or isinstance(op, InPhases)
        if isinstance(node.op, Dense | QDense | MatMul) and not self.comes_in_pieces(graph, node):
            return False
        return isinstance(node.op, Gemm.ops) and super().handles(graph, node)

    def comes_in_pieces(self, graph: Graph, node: Node) -> bool:
        """Whether asynchronous copies may bring rows of the left factor. Where threads bring single
        elements of floats, they are slower than those of :class:`Gemm`."""
        x = graph.operands(node)[0]  # its steps lie side by side in any order of dimensions
        bits = x.shape[-1] * bits_of(tc.element_of(self.precision))
        return x.dtype == "int8" or not bits % (8 * LEAST_COPY_BYTES)

    def space(self, workload: OperatorWorkload) -> Space:
        batch, rows, columns, depth = find_sizes(workload)
        is_int8 = workload.operands[0][1] == "int8"
        size = 1 if is_int8 else bits_of(tc.element_of(self.precision)) // 8
        grouped = self.architecture.warpgroups and rows >= tc.GROUP_ROWS
        most, taps = self.architecture.shared_bytes, count_taps(workload)
        splits = may_be_parted(workload)
        is_boxes = grouped and _is_matrix(workload)
        best = _best(batch, rows, columns, OF_BOXES if is_boxes else OF_PIECES[grouped])
        step, depths = tc.K_BYTES // size, [n // size for n in DEPTHS]
        deepest = [n for n in sorted(depths, reverse=True) if n * size <= best.depth]
        best_depth = fits(deepest, depth)[0] if depth > step else step
        tiles = batch * -(-rows // best.rows) * -(-columns // best.columns)
        parts = best_parts(BLOCKS_OF_PARTS // tiles, taps, -(-depth // best_depth)) if splits else 1
        all_warps = GROUP_WARP_TILES if grouped else WARP_TILES
        knobs: dict[str, Sequence[KnobValue]] = {}
        if grouped:
            knobs["unit"] = preferring(best.unit, (MMA, WGMMA))
        if self.architecture.warpgroups:
            knobs["copies"] = (TMA, CP_ASYNC)
        all_tiles = GROUP_TILES if grouped else TILES
        knobs |= {
            "rows": preferring(best.rows, all_tiles),
            "columns": preferring(best.columns, all_tiles),
            "warp_rows": preferring(best.warp_rows, [n for n in all_warps if n >= tc.ROWS]),
            "warp_columns": preferring(best.warp_columns, all_warps),
            "depth": preferring(best_depth, depths),
            "stages": preferring(best.stages, STAGES),
            "split_k": preferring(parts, PARTS if splits else PARTS[:1]),
        }

        def misfit(found: Knobs) -> str:
            steps = -(-depth // int(found["depth"]))
            return refuse_parts(int(found["split_k"]), taps, steps) or _misfit(found, size, most)

        return Space(knobs, misfit)

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        product, kind = make_product(graph, node), self.find_kind(graph, node)
        assert kind is not None
        if product.zero_point:
            weights = graph.operands(node)[1].data
            assert weights is not None
            product = product.with_zero_point(column_sums(find_product_op(node.op), weights))
        schedule = tensor_tiled(product, kind, knobs)
        return Scheduled(schedule, [*product.args, schedule.outputs[0]], product.attributes)


@dataclass(frozen=True)
class _Tile:
    """A tile of a block, that of a warp or warpgroup, whose instructions multiply, the bytes of a
    row that are brought at once, and buffers in turn."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    unit: str
    depth: int
    stages: int


#: Tiles of products whose blocks keep a GPU busy, the best first: of those whose factors are boxes,
#: and of others with warpgroups and without.
OF_BOXES = [
    _Tile(128, 256, 64, 256, WGMMA, 128, 4),
    _Tile(128, 128, 64, 128, WGMMA, 128, 3),
    _Tile(128, 64, 64, 64, WGMMA, 128, 3),
]
NARROW = [
    _Tile(128, 64, 64, 32, MMA, 64, 4),
    _Tile(128, 32, 32, 32, MMA, 64, 4),
    _Tile(128, 16, 32, 16, MMA, 64, 4),
]
OF_PIECES = {True: [OF_BOXES[1], *NARROW], False: [_Tile(128, 128, 64, 64, MMA, 64, 4), *NARROW]}
#: Columns of smaller tiles, each of up to this many rows, of which a warp has so many columns.
SMALL_COLUMNS, SMALL_ROWS, SMALL_WARP = (64, 32, 16), 32, 16
#: Blocks into which parts of sums are divided at most.
BLOCKS_OF_PARTS = 300


def _best(batch: int, rows: int, columns: int, large: Sequence[_Tile]) -> _Tile:
    """The tile that a product has unless somebody chooses another one: the first of the ``large``
    ones that fits and makes blocks enough, or a small one."""
    for tile in large:
        blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        wide = min(columns, SMALL_COLUMNS[0]) <= tile.columns < 2 * max(columns, tc.ROWS)
        if wide and tile.rows < 2 * rows and blocks >= ALL_BUSY:
            return tile
    least = min(SMALL_ROWS, -(-rows // tc.ROWS) * tc.ROWS)
    return _Tile(least, fits(SMALL_COLUMNS, columns)[0], least, SMALL_WARP, MMA, 128, 4)


def _is_matrix(workload: OperatorWorkload) -> bool:
    """Whether the left factor is a tensor as it is, so that tiles are boxes of it."""
    match find_product_op(workload.op):
        case ChannelsLast(Conv2d() | QConv2d() as op):
            return is_matrix(op, workload.operands[1][0][1:3])
        case Dense() | QDense() | MatMul():
            return True
    return False


def strip_layout(op: Op) -> Op:
    """The operator, in whichever layout, and whatever its tensors are stored in."""
    op = find_product_op(op)
    op = op.op if isinstance(op, ChannelsLast) else op
    return op.op if isinstance(op, InPhases) else op


def find_unit(knobs: Knobs) -> str:
    """Whose instructions multiply."""
    return str(knobs.get("unit", MMA))


def _misfit(knobs: Knobs, element_bytes: int, most_bytes: int) -> str:
    rows, columns, warp_rows, warp_columns, depth, stages = (
        int(knobs[n]) for n in ("rows", "columns", "warp_rows", "warp_columns", "depth", "stages")
    )
    if rows % warp_rows or columns % warp_columns:
        return f"expected tiles of warps that divide {rows} x {columns}"
    grouped = find_unit(knobs) == WGMMA
    if grouped and (warp_rows % tc.GROUP_ROWS or warp_columns not in tc.GROUP_COLUMNS):
        return f"expected tiles of warpgroups of {tc.GROUP_ROWS} rows and 16 columns or more"
    lanes = WARPGROUP if grouped else WARP
    warps = rows // warp_rows * (columns // warp_columns) * (lanes // WARP)
    if warps > MOST_WARPS:
        return f"expected at most {MOST_WARPS} warps, got {warps}"
    if warp_rows * warp_columns > MOST_SUMS * lanes:
        return f"expected at most {MOST_SUMS} sums of a thread"
    row = -(-(columns - 8) // 32) * 32 + 8
    size = max(stages * (rows + columns) * depth * element_bytes, 4 * rows * row)
    return f"needs {size} bytes of shared memory" if size > most_bytes else ""


def tensor_tiled(product: Product, kind: str, knobs: Knobs) -> Schedule:
    """The schedule of a product with factors of this kind on the tensor cores."""
    rows, columns, depth, warp_rows, warp_columns, stages = (
        int(knobs[n]) for n in ("rows", "columns", "depth", "warp_rows", "warp_columns", "stages")
    )
    dtype, sums, grouped = tc.element_of(kind), tc.SUMS[kind], find_unit(knobs) == WGMMA
    core = tc.group_core(kind, warp_columns) if grouped else tc.tensor_core(kind)
    lanes = WARPGROUP if grouped else WARP
    shape = (tc.GROUP_ROWS, warp_columns) if grouped else (tc.ROWS, tc.COLUMNS)
    product = in_parts(product, int(knobs["split_k"]), depth)
    batch, m, n, k = product.sizes
    whole_m, whole_n, whole_k = (
        -(-size // tile) * tile for size, tile in ((m, rows), (n, columns), (k, depth))
    )
    a = factor(
        (batch, product.taps, whole_m, whole_k), product.left, (m, k), dtype, "left",
        product.zero_point,
    )  # fmt: skip
    c = factor((batch, product.taps, whole_n, whole_k), product.right, (n, k), dtype, "right")
    tap, r = reduce_axis(product.taps, "tap"), reduce_axis(whole_k, "k")

    def product_rule(b: Expr, i: Expr, j: Expr) -> Expr:
        return sum_of(a[b, tap, i, r].astype(sums) * c[b, tap, j, r].astype(sums), (tap, r))

    acc = compute((batch, whole_m, whole_n), product_rule, "acc")
    schedule, out = with_epilogue(product, acc)
    loads = []
    if isinstance(core, tc.TensorCore):
        left = schedule.cache_read(a, "fragment_a", [acc])
        right = schedule.cache_read(c, "fragment_b", [acc])
        loads = [(left, core.load_a, tc.ROWS), (right, core.load_b, tc.COLUMNS)]
    staged = schedule.cache_read(acc, "shared", [out])
    result = schedule[out]
    warps = (rows // warp_rows, columns // warp_columns)
    tile = _blocks(result, product.in_order(*out.axes), rows, columns)
    _share(result, list(result.leaves[3:]), columns, (*warps, lanes), out.dtype)

    stage = schedule[staged]
    stage.compute_at(result, tile)
    _, i, j = staged.axes
    stage.cover(i, rows)
    stage.cover(j, columns)
    i_warp, i_in = stage.split(i, warp_rows)
    j_warp, j_in = stage.split(j, warp_columns)
    i_tile, i_in = stage.split(i_in, shape[0])
    j_tile, j_in = stage.split(j_in, shape[1])
    stage.reorder(i_warp, j_warp, i_tile, j_tile, i_in, j_in)
    stage.bind(i_warp, BLOCK[2])
    stage.bind(j_warp, BLOCK[1])
    for axis in (i_tile, j_tile):
        stage.unroll(axis)
    stage.tensorize(i_in, core.store)
    stage.storage_align(i, 32, 8)

    total = schedule[acc]
    total.set_scope("warpgroup_sums" if grouped else "fragment_sums")
    total.compute_at(stage, j_warp)
    _, i, j = acc.axes
    steps, step = total.split(r, depth)
    part, r_in = total.split(step, core.depth)
    total.reorder(tap, steps, part, r_in)
    steps = total.fuse(tap, steps)
    i_tile, i_in = total.split(i, shape[0])
    j_tile, j_in = total.split(j, shape[1])
    total.reorder(steps, part, i_tile, j_tile, i_in, j_in, r_in)
    for axis in (part, i_tile, j_tile):
        total.unroll(axis)
    total.tensorize(i_in, core.mma)
    for tensor, intrinsic, size in loads:
        stage = schedule[tensor]
        stage.compute_at(total, part)
        _, _, i, _ = tensor.axes
        outer, inner = stage.split(i, size)
        stage.unroll(outer)
        stage.tensorize(inner, intrinsic)
    factors = ((a, product.left, False), (c, product.right, not product.right_by_column))
    for tensor, element, across in factors:
        stage = schedule[tensor]
        stage.set_scope("shared")
        stage.compute_at(total, steps)
        if stages > 1:
            stage.pipeline(stages)
        stage.swizzle()
        if knobs.get("copies") == TMA and is_box(element, dtype):
            stage.pragma(tensor.axes[2], "bulk")
        else:
            _fetch(stage, depth, (*warps, lanes), across, _piece(element, dtype))
    return schedule


def _piece(element: Element, dtype: str) -> int:
    """Bytes of a row of a factor that a copy brings at once: fewer than 16 where a tensor that
    holds the factor as it is has rows of other multiples of 4 bytes."""
    value, _ = element(*(Var(name) for name in "bitk"))
    if not isinstance(value, Read) or value.dtype != dtype:
        return COPY_BYTES
    row_bytes = value.source.shape[-1] * bits_of(dtype) // 8
    found = math.gcd(row_bytes, COPY_BYTES)
    return found if found >= LEAST_COPY_BYTES else COPY_BYTES


def is_box(element: Element, dtype: str) -> bool:
    """Whether rows and steps of a factor are two dimensions of a tensor that holds it as it is, in
    rows of multiples of 16 bytes, so that tiles are boxes of it."""
    b, i, t, k = (Var(name) for name in "bitk")
    value, inside = element(b, i, t, k)
    if not isinstance(value, Read) or inside or value.dtype != dtype:
        return False
    *outer, last = value.indices
    others = [index for index in outer if index is not i]
    plain = len(others) == len(outer) - 1
    others += [term for term, _ in affine(last - k).terms]
    alone = not any(node in (i, k) for index in others for node in walk(index))
    row_bytes = value.source.shape[-1] * bits_of(dtype) // 8
    return plain and alone and len(outer) < 3 and not row_bytes % COPY_BYTES


def factor(
    shape: tuple[int, int, int, int],
    element: Element,
    sizes: tuple[int, int],
    dtype: str,
    name: str,
    outside: int = 0,
) -> Tensor:
    """A factor by rows, converted, with zeros beyond its sizes, which add nothing. Elements that do
    not exist are as ``outside`` says."""

    def rule(b: Expr, t: Expr, i: Expr, k: Expr) -> Expr:
        value, inside = element(b, i, t, k)
        edges = zip((i, k), sizes, shape[2:], strict=True)
        exists = [at < size for at, size, whole in edges if size < whole]
        value = value if value.dtype == dtype else value.astype(dtype)
        if outside and inside:
            value, inside = select(all_of(*inside), value, Const(outside, dtype)), []
        inside = [*exists, *inside]
        return select(all_of(*inside), value, Const(0, dtype)) if inside else value

    return compute(shape, rule, name)


def _blocks(result: Stage, axes: Sequence[IterVar], rows: int, columns: int) -> IterVar:
    """Bind tiles of the result, whose ``axes`` are b, i and j, to blocks; the innermost loop over
    blocks."""
    b, i, j = axes
    io, ii = result.split(i, rows)
    jo, jj = result.split(j, columns)
    fits = (n for n in NEIGHBOURS if not io.extent % n and b.extent == 1)
    if (count := next(fits, 1)) > 1 and io.extent // count <= MOST_BLOCKS:
        outer, inner = result.split(io, count)
        result.reorder(b, outer, jo, inner, ii, jj)
        order = (result.fuse(b, outer), jo, inner)
    else:
        result.reorder(b, io, jo, ii, jj)
        order = (b, io, jo)
    for axis, name in zip(order, reversed(GRID), strict=True):
        result.bind(axis, name)
    return order[-1]


def _share(
    result: Stage, loops: Sequence[IterVar], columns: int, threads: tuple[int, int, int], dtype: str
) -> None:
    """Let the threads of a block, which are so many warps by rows and by columns, and lanes, end a
    tile together: each ``count`` elements side by side, lanes along the rows."""
    ii, jj = loops
    size = bits_of(dtype) // 8
    counts = (COPY_BYTES // size, COPY_BYTES // size // 2, 4 // size)
    whole = result.tensor.shape[2]
    count = next((c for c in counts if c and not whole % c and c <= columns), 1)
    down, right, all_lanes = threads
    lanes = min(all_lanes, columns // count)
    across, vector = result.split(jj, count)
    steps, lane = result.split(across, lanes)
    outer, row = result.split(ii, down * right * (all_lanes // lanes))
    warp, row = result.split(row, all_lanes // lanes)
    result.reorder(outer, steps, warp, row, lane, vector)
    lane = result.fuse(row, lane)
    _bind(result, *result.split(warp, right), lane)
    result.vectorize(vector)


def _fetch(
    stage: Stage, depth: int, threads: tuple[int, int, int], across: bool, piece_bytes: int
) -> None:
    """Let the threads of a block, as in :func:`_share`, bring a tile together. Each brings a piece
    of a row at once; threads side by side bring parts of one row, or, where elements of different
    rows lie side by side in main memory (``across``), the same part of rows side by side."""
    _, _, i, k = stage.tensor.axes
    downs, rights, lanes = threads
    count = piece_bytes * 8 // bits_of(stage.tensor.dtype)
    part, vector = stage.split(k, count)
    if across:
        outer, row = stage.split(i, downs * lanes)
        down, lane = stage.split(row, lanes)
        steps, right = stage.split(part, rights)
        stage.reorder(outer, steps, down, right, lane, vector)
        _bind(stage, down, right, lane)
    else:
        rows = lanes * count // depth
        outer, row = stage.split(i, downs * rights * rows)
        warp, row = stage.split(row, rows)
        stage.reorder(outer, warp, row, part, vector)
        lane = stage.fuse(row, part)
        _bind(stage, *stage.split(warp, rights), lane)
    if across:
        stage.unroll(vector)
    else:
        stage.vectorize(vector)
        stage.pragma(vector, "async")


def _bind(stage: Stage, down: IterVar, right: IterVar, lane: IterVar) -> None:
    """Bind loops over rows and columns of warps, and one over their lanes."""
    for axis, name in zip((down, right, lane), reversed(BLOCK), strict=True):
        stage.bind(axis, name)
