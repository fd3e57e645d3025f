"""Products of matrices in tiles: dense layers, and convolutions, plain and transposed, as products
of implicit matrices.

The matrices are read from the operands as they are; no copy of an image's windows is made. A block
computes a tile of the result. For some steps of the reduction at once its threads bring a tile of
both factors to shared memory, with zeros beyond the edges, ``stages - 1`` tiles ahead of the sums
where copies are asynchronous. Both lie there by steps, so that each thread reads its rows and
columns of a step by 16 bytes, and adds up a small tile in registers. Bias, bounds and
requantisation follow where the sums are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from ....choose.space import Knobs, KnobValue, Space, preferring
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import Conv2d, QConv2d
from ....graph.ops.fused_pairs import ProductChain
from ....graph.ops.in_phases import InPhases
from ....graph.ops.linear import Dense, MatMul, QDense
from ....graph.ops.narrow import Narrow
from ....te.affine import affine
from ....te.expr import Const, Expr, Read, Var, all_of, bits_of, select, walk
from ....te.schedule import Schedule, create_schedule
from ....te.stage import Stage
from ....te.tensor import IterVar, Tensor, compute, reduce_axis, sum_of
from ...common.workload import OperatorWorkload
from ..scopes import SHARED_BYTES
from .base import GpuTemplate, Scheduled
from .general import THREADS, fused, share_loop
from .parts import PARTS, add_up, best_parts, in_parts, may_be_parted, refuse_parts
from .product import Product, find_product_op, find_sizes, make_product

#: Rows and columns of a block's tile, and of a thread's; steps of the reduction that share a tile;
#: buffers in turn.
TILES = (128, 64, 32, 16, 8, 4, 1)
THREAD_TILES = (8, 4, 2, 1)
DEPTHS = (16, 8, 32)
STAGES = (2, 3, 4)
KNOBS = ("rows", "columns", "thread_rows", "thread_columns", "depth", "stages")
#: Elements that a thread reads from shared memory at once, at most: 16 bytes of float32.
VECTOR = 4
#: Elements of float32 in a sector of main memory; banks of shared memory; threads of a warp.
SECTOR, BANKS, LANES = 8, 32, 32
#: The operators that are products.
PRODUCTS = (Conv2d, QConv2d, InPhases, Dense, QDense, MatMul)
#: Threads of all blocks among which sums are divided into parts.
THREADS_OF_PARTS = 1 << 15
#: A tile that is not halved.
LEAST_TILE = 16
#: So many blocks leave few multiprocessors of a large GPU idle, which then have one each.
ALL_BUSY = 96
#: Sums of a block's tile that is large.
LARGE = 64 * 64
#: An element of a factor by its batch, its row or column, and its step.
Rule = Callable[[Expr, Expr, Expr], Expr]


class Gemm(GpuTemplate):
    """A tile of ``rows`` and ``columns`` for a block, of ``thread_rows`` and ``thread_columns`` for
    a thread; ``depth`` steps of the reduction at once, in ``stages`` buffers in turn; sums in
    ``parts``."""

    name = "gemm"
    ops = (*PRODUCTS, Narrow, ProductChain)

    def handles(self, graph: Graph, node: Node) -> bool:
        op = find_product_op(node.op)
        if not isinstance(op, PRODUCTS):
            return False
        x, weight = (t.shape for t in graph.operands(node)[:2])
        if 0 in x or 0 in weight:
            return False
        if isinstance(op, Conv2d | QConv2d):
            return weight[0] // op.groups > 1
        if isinstance(op, InPhases):
            return weight[3] > 1
        if isinstance(op, MatMul):
            x, weight = op.factor_shapes(x, weight)
            return len(weight) == 2 or x[:-2] == weight[:-2]
        return True

    def space(self, workload: OperatorWorkload) -> Space:
        batch, rows, columns, depth = find_sizes(workload)
        row_tiles, column_tiles = fits(TILES, rows), fits(TILES, columns)
        tiles = _best_tiles(batch, rows, columns)
        by_rows, by_columns = _thread_tiles(*tiles)
        depths = DEPTHS if math.prod(tiles) >= LARGE else (max(DEPTHS), *DEPTHS)
        best_depth = fits(depths, depth)[0]
        size = max(4, *(bits_of(dtype) // 8 for _, dtype in workload.operands[:2]))
        stages = SHARED_BYTES // _stage_bytes(*tiles, best_depth, size)
        knobs: dict[str, Sequence[KnobValue]] = {
            "rows": preferring(tiles[0], row_tiles),
            "columns": preferring(tiles[1], column_tiles),
            "thread_rows": preferring(by_rows, THREAD_TILES),
            "thread_columns": preferring(by_columns, THREAD_TILES),
            "depth": preferring(best_depth, DEPTHS),
            "stages": preferring(min(max(STAGES), stages), STAGES),
            "split_k": PARTS[:1],
        }
        if may_be_parted(workload):
            blocks = -(-rows // tiles[0]) * -(-columns // tiles[1])
            threads = blocks * math.prod(tiles) // (by_rows * by_columns)
            parts = best_parts(THREADS_OF_PARTS // threads, 1, -(-depth // best_depth))
            knobs["split_k"] = preferring(parts, PARTS)

        def misfit(found: Knobs) -> str:
            steps = -(-depth // int(found["depth"]))
            return refuse_parts(int(found["split_k"]), 1, steps) or _misfit(size, found)

        return Space(knobs, misfit)

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        product = make_product(graph, node)
        schedule = tiled(product, knobs)
        return Scheduled(schedule, [*product.args, schedule.outputs[0]], product.attributes)


def fits(sizes: Sequence[int], most: int) -> list[int]:
    """Sizes that are not twice as large as needed, or the smallest."""
    return [n for n in sizes if n < 2 * most] or [min(sizes)]


def _best_tiles(batch: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a block's tile: the first that fits each, halved while there are few
    blocks and either is larger than :data:`LEAST_TILE`."""
    row_tiles, column_tiles = fits(TILES, rows), fits(TILES, columns)
    best_rows, best_columns = row_tiles[0], column_tiles[0]
    while (
        batch * -(-rows // best_rows) * -(-columns // best_columns) < ALL_BUSY
        and max(best_rows, best_columns) > LEAST_TILE
    ):
        if best_rows >= best_columns and best_rows // 2 in row_tiles:
            best_rows //= 2
        elif best_columns // 2 in column_tiles and best_columns > LEAST_TILE:
            best_columns //= 2
        else:
            break
    return best_rows, best_columns


def _thread_tiles(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a thread's tile: about as many threads along both, 256 for a large tile
    of a block, 128 for a small one, so that each still has some sums."""
    by_rows, by_columns = 1, 1
    threads = 256 if rows * columns >= LARGE else 128
    while by_rows * by_columns * threads < rows * columns:
        if (rows // by_rows, by_columns) > (columns // by_columns, by_rows):
            by_rows *= 2
        else:
            by_columns *= 2
    return by_rows, by_columns


def _misfit(element_bytes: int, knobs: Knobs) -> str:
    rows, columns, by_rows, by_columns, depth, stages = (int(knobs[n]) for n in KNOBS)
    if rows % by_rows or columns % by_columns:
        return f"expected tiles of threads that divide {rows} x {columns}"
    threads = rows // by_rows * (columns // by_columns)
    if threads > 1024:
        return f"expected at most 1024 threads, got {threads}"
    size = stages * _stage_bytes(rows, columns, depth, element_bytes)
    return f"needs {size} bytes of shared memory" if size > SHARED_BYTES else ""


def _stage_bytes(rows: int, columns: int, depth: int, element_bytes: int) -> int:
    """Bytes of shared memory for a tile of both factors, at most."""
    padded = (-(-(size - VECTOR) // BANKS) * BANKS + VECTOR for size in (rows, columns))
    return element_bytes * depth * sum(padded)


# ---- schedule ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """Rows, or columns: a thread has ``own`` of them side by side, a block's tile ``units`` times
    as many. In shared memory each thread's are in groups of ``vector``; the first groups of all
    threads lie side by side, so that a warp that reads them does not wait for a bank."""

    own: int
    units: int

    @property
    def vector(self) -> int:
        """Elements that are read at once."""
        return min(self.own, VECTOR)

    @property
    def groups(self) -> int:
        """Groups of a thread."""
        return self.own // self.vector

    @property
    def size(self) -> int:
        """Of a block's tile."""
        return self.own * self.units

    def factor(self, batch: int, depth: int, whole: int, rule: Rule, name: str) -> Tensor:
        """The factor whose elements ``rule`` gives by its row or column and the step."""

        def element(b: Expr, k: Expr, group: Expr, unit: Expr, at: Expr) -> Expr:
            return rule(b, unit * self.own + group * self.vector + at, k)

        shape = batch, depth, self.groups, whole // self.own, self.vector
        return compute(shape, element, name)

    def place(self, at: Expr) -> tuple[Expr, Expr, Expr]:
        """Where the element of a row or column is among those of a step."""
        return at % self.own // self.vector, at // self.own, at % self.vector


def tiled(product: Product, knobs: Knobs) -> Schedule:
    """The schedule of a product in tiles."""
    rows, columns, by_rows, by_columns, depth, stages = (int(knobs[n]) for n in KNOBS)
    down, across = _Side(by_rows, rows // by_rows), _Side(by_columns, columns // by_columns)
    product = in_parts(product, int(knobs["split_k"]), depth)
    batch, m, n, k = product.sizes
    whole_m, whole_n, whole_k = (
        -(-size // tile) * tile for size, tile in ((m, rows), (n, columns), (k, depth))
    )

    def left(b: Expr, i: Expr, k_: Expr) -> Expr:
        edges = ((i, m, whole_m), (k_, k, whole_k))
        return _existing(product.left(b, i, Const(0), k_), edges)

    def right(b: Expr, j: Expr, k_: Expr) -> Expr:
        edges = ((k_, k, whole_k), (j, n, whole_n))
        return _existing(product.right(b, j, Const(0), k_), edges)

    a = down.factor(batch, whole_k, whole_m, left, "left")
    c = across.factor(batch, whole_k, whole_n, right, "right")
    r = reduce_axis(whole_k, "k")

    def product_rule(b: Expr, i: Expr, j: Expr) -> Expr:
        x, y = a[b, r, *down.place(i)], c[b, r, *across.place(j)]
        return sum_of(x.astype(product.dtype) * y.astype(product.dtype), r)

    acc = compute((batch, whole_m, whole_n), product_rule, "acc")
    schedule, out = with_epilogue(product, acc)
    own = [(a, schedule.cache_read(a, "local", [acc])), (c, schedule.cache_read(c, "local", [acc]))]
    result, sums = schedule[out], schedule[acc]
    thread = _share(result, product.in_order(*out.axes), down, across)
    sums.set_scope("local")
    sums.compute_at(result, thread)
    steps, step = sums.split(r, depth)
    _, mine, mine_too = acc.axes
    sums.reorder(steps, step, mine, mine_too)
    # A loop of one iteration is none, and unrolled loops of machine code have no pragma.
    sums.pragma(steps if whole_k > depth else step, "contract")
    for axis in (mine, mine_too, *([step] if whole_k > depth else [])):
        sums.unroll(axis)
    lanes = math.prod(_warp_of(down.units, across.units))
    is_row = not product.right_by_column and _is_row(product, n)
    kinds = ("steps", "steps" if product.right_by_column else "row" if is_row else "elements")
    for (tensor, copy), side, kind in zip(own, (down, across), kinds, strict=True):
        registers, stage = schedule[copy], schedule[tensor]
        registers.compute_at(sums, step)
        registers.unroll(copy.axes[2])
        registers.vectorize(copy.axes[4])
        stage.set_scope("shared")
        stage.compute_at(sums, steps)
        stage.pipeline(stages)
        threads = {"threadIdx.x": lanes, "threadIdx.y": down.units * across.units // lanes}
        _fetch(stage, side, depth, threads, kind)
    return schedule


def with_epilogue(product: Product, acc: Tensor) -> tuple[Schedule, Tensor]:
    """What follows the sums: a schedule, and the tensor of which blocks have tiles. Where that is
    not the result, a kernel behind it adds up parts of sums, or puts its elements into their
    places, 16 bytes of a row at once."""
    shape = product.sizes[:3]
    name = "out" if product.placed is None else "parts"

    def rule(*at: Expr) -> Expr:
        b, i, j = product.in_order(*at)
        return product.epilogue(b, i, j, acc[b, i, j])

    out = compute(product.in_order(*shape), rule, name)
    if product.placed is None:
        return create_schedule(out), out
    result = product.placed(out)
    schedule = create_schedule(result)
    if any(s.reduce_axes for s in schedule.stages if any(r.source is out for r in s.reads())):
        add_up(schedule, out)
        return schedule, out
    vector = math.gcd(result.shape[-1], 128 // bits_of(result.dtype))
    stage = schedule[result]
    _, side_by_side = stage.split(result.axes[-1], vector)
    stage.vectorize(side_by_side)
    share_loop(stage, fused(stage.leaves[:-1], stage), THREADS[0])
    return schedule, out


def _existing(element: tuple[Expr, list[Expr]], edges: Sequence[tuple[Expr, int, int]]) -> Expr:
    """An element of a factor, 0 where it does not exist or is beyond the edges of the factor."""
    value, inside = element
    inside = [*(i < size for i, size, whole in edges if size < whole), *inside]
    return select(all_of(*inside), value, Const(0, value.dtype)) if inside else value


def _is_row(product: Product, columns: int) -> bool:
    """Whether columns of the right factor lie side by side in a tensor that holds it as it is, in
    rows that begin at multiples of :data:`VECTOR`."""
    b, j, k = (Var(name) for name in "bjk")
    value, inside = product.right(b, j, Const(0), k)
    if not isinstance(value, Read) or inside or columns % VECTOR:
        return False
    place: Expr = Const(0)
    for index, size in zip(value.indices, value.source.shape, strict=True):
        place = place * size + index
    steps = affine(place).coefficients
    along = steps.pop(j, 0) == 1 and not any(node is j for term in steps for node in walk(term))
    return along and not any(n % VECTOR for n in steps.values())


def _warp_of(down: int, across: int) -> tuple[int, int]:
    """Threads of a warp along the rows and the columns of a block that has so many."""
    columns = min(8, across)
    rows = min(LANES // columns, down)
    return rows, min(LANES // rows, across)


def _share(result: Stage, axes: Sequence[IterVar], down: _Side, across: _Side) -> IterVar:
    """Deal out the result, whose ``axes`` are b, i and j, among blocks and threads; the innermost
    loop over threads. Of the threads of a warp, two by two read the same of either factor, which
    shared memory then brings at once."""
    b, i, j = axes
    rows, columns = _warp_of(down.units, across.units)
    io, ii = result.split(i, down.size)
    jo, jj = result.split(j, across.size)
    unit, im = result.split(ii, down.own)
    unit_too, jm = result.split(jj, across.own)
    warp, lane = result.split(unit, rows)
    warp_too, lane_too = result.split(unit_too, columns)
    lane, pair = result.split(lane, min(2, rows))
    group, vector = result.split(jm, across.vector)
    result.reorder(b, io, jo, warp, warp_too, lane, lane_too, pair, im, group, vector)
    warp = result.fuse(warp, warp_too)
    lane = result.fuse(result.fuse(lane, lane_too), pair)
    for axis, thread in ((b, "blockIdx.z"), (io, "blockIdx.y"), (jo, "blockIdx.x"),
                         (warp, "threadIdx.y"), (lane, "threadIdx.x")):  # fmt: skip
        result.bind(axis, thread)
    for axis in (im, group):
        result.unroll(axis)
    result.vectorize(vector)
    return lane


def _fetch(stage: Stage, side: _Side, depth: int, threads: dict[str, int], kind: str) -> None:
    """Share the elements of a tile among all threads of a block, so many along each axis. Threads
    side by side bring what lies side by side in main memory: "steps" of the reduction, or
    "elements" of a step, which are a "row" where a thread may bring some at once."""
    at = stage.tensor.axes[4]
    vector = [at] if kind == "row" else []
    left, outers = dict(threads), list[IterVar]()
    bound: dict[str, list[IterVar]] = {name: [] for name in threads}
    order = _order(stage, side, depth, kind)
    stage.reorder(*(axis for axis, _ in reversed(order)), *vector)
    for axis, extent in order:
        for name, inside in bound.items():
            count = min(extent, left[name])
            left[name], extent = left[name] // count, extent // count
            axis, inner = stage.split(axis, count)
            inside.insert(0, inner)
        outers.insert(0, axis)
    inners = [axis for inside in reversed(bound.values()) for axis in inside]
    stage.reorder(*outers, *inners, *vector)
    for name, inside in bound.items():
        stage.bind(reduce(stage.fuse, inside), name)
    for axis in outers:
        stage.unroll(axis)
    for axis in vector:
        stage.vectorize(axis)
    for axis in (*outers, *vector):
        stage.pragma(axis, "async")


def _order(stage: Stage, side: _Side, depth: int, kind: str) -> list[tuple[IterVar, int]]:
    """The loops of a tile with their extents, that of neighbours first. A warp brings a sector of
    each of its rows; or elements of one step, so that a thread brings few steps, whose windows'
    taps it computes once."""
    _, k, group, unit, at = stage.tensor.axes
    # Whole tiles, where the result has less than one, too.
    for axis, count in ((group, side.groups), (unit, side.units), (at, side.vector)):
        stage.cover(axis, count)
    if kind == "row":
        return [(group, side.groups), (unit, side.units), (k, depth)]
    if kind == "steps":
        stage.storage_align(k, BANKS, VECTOR)
        outer, k = stage.split(k, SECTOR)
        return [(k, SECTOR), (at, side.vector), (unit, side.units), (group, side.groups),
                (outer, depth // SECTOR)]  # fmt: skip
    count = min(side.units, LANES // side.own)
    outer, unit = stage.split(unit, count)
    return [(at, side.vector), (group, side.groups), (unit, count), (k, depth),
            (outer, side.units // count)]  # fmt: skip
