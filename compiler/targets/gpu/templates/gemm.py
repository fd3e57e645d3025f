"""Products of matrices in tiles: dense layers, and convolutions, plain and transposed, as products
of implicit matrices.

The matrices are read from the operands as they are; no copy of an image's windows is made. A block
computes a tile of the result. For each step of the reduction its threads bring a tile of both
factors to shared memory, with zeros beyond the edges, and each thread adds up a small tile in
registers. Bias, bounds and requantisation follow where the sums are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....choose.space import Knobs, Space, preferring
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import Conv2d, QConv2d
from ....graph.ops.in_phases import InPhases
from ....graph.ops.linear import Dense, MatMul, QDense
from ....te.expr import Const, Expr, all_of, bits_of, select
from ....te.schedule import Schedule, create_schedule
from ....te.stage import Stage
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ...cpu.templates.base import CpuWorkload
from .base import GpuTemplate, Scheduled
from .general import THREADS, fused, share_loop
from .parts import add_up
from .product import Product, product_of, sizes_of

#: Rows and columns of a block's tile, and of a thread's; steps of the reduction that share a tile.
TILES = (64, 32, 16, 8, 128, 4, 1)
THREAD_TILES = (4, 2, 1, 8)
DEPTHS = (16, 8, 32)
#: A launch with fewer blocks leaves most of a large GPU idle.
MANY_BLOCKS = 64


class Gemm(GpuTemplate):
    """A tile of ``rows`` and ``columns`` for a block, of ``thread_rows`` and ``thread_columns`` for
    a thread; ``depth`` steps of the reduction at once."""

    name = "gemm"
    ops = (Conv2d, QConv2d, InPhases, Dense, QDense, MatMul)

    def handles(self, graph: Graph, node: Node) -> bool:
        x, weight = (t.shape for t in graph.operands(node)[:2])
        if 0 in x or 0 in weight:
            return False
        if isinstance(node.op, Conv2d | QConv2d):
            return weight[0] // node.op.groups > 1
        if isinstance(node.op, InPhases):
            return weight[3] > 1
        return not isinstance(node.op, MatMul) or len(x) == len(weight) == 2

    def space(self, workload: CpuWorkload) -> Space:
        batch, rows, columns, depth = sizes_of(workload)

        row_tiles, column_tiles = fits(TILES, rows), fits(TILES, columns)
        best_rows, best_columns = best_tiles(batch, rows, columns, TILES, 16)
        knobs = {
            "rows": preferring(best_rows, row_tiles),
            "columns": preferring(best_columns, column_tiles),
            "thread_rows": preferring(_thread_tile(best_rows), THREAD_TILES),
            "thread_columns": preferring(_thread_tile(best_columns), THREAD_TILES),
            "depth": preferring(fits(DEPTHS, depth)[0], DEPTHS),
        }
        return Space(knobs, _misfit)

    def schedule(self, graph: Graph, node: Node, knobs: Knobs) -> Scheduled:
        product = product_of(graph, node)
        schedule = tiled(product, knobs)
        return Scheduled(schedule, [*product.args, schedule.outputs[0]], product.attributes)


def fits(sizes: Sequence[int], most: int) -> list[int]:
    """Sizes that are not twice as large as needed, or the smallest."""
    return [n for n in sizes if n < 2 * most] or [min(sizes)]


def best_tiles(
    batch: int, rows: int, columns: int, sizes: Sequence[int], least: int
) -> tuple[int, int]:
    """Rows and columns of a block's tile: the first of the ``sizes`` that fits each, halved while
    there are few blocks and either is larger than ``least``."""
    row_tiles, column_tiles = fits(sizes, rows), fits(sizes, columns)
    best_rows, best_columns = row_tiles[0], column_tiles[0]
    while (
        batch * -(-rows // best_rows) * -(-columns // best_columns) < MANY_BLOCKS
        and max(best_rows, best_columns) > least
    ):
        if best_rows >= best_columns and best_rows // 2 in row_tiles:
            best_rows //= 2
        elif best_columns // 2 in column_tiles and best_columns > least:
            best_columns //= 2
        else:
            break
    return best_rows, best_columns


def _thread_tile(size: int) -> int:
    return 4 if size >= 32 else 2 if size >= 16 else 1


def _misfit(knobs: Knobs) -> str:
    rows, columns, by_rows, by_columns, depth = (
        int(knobs[n]) for n in ("rows", "columns", "thread_rows", "thread_columns", "depth")
    )
    if rows % by_rows or columns % by_columns:
        return f"expected tiles of threads that divide {rows} x {columns}"
    threads = rows // by_rows * (columns // by_columns)
    if threads > 1024:
        return f"expected at most 1024 threads, got {threads}"
    size_bytes = 8 * depth * (rows + columns)
    return f"needs {size_bytes} bytes of shared memory" if size_bytes > 48 << 10 else ""


# ---- schedule ----------------------------------------------------------------------------------


def tiled(product: Product, knobs: Knobs) -> Schedule:
    """The schedule of a product in tiles."""
    rows, columns, by_rows, by_columns, depth = (
        int(knobs[n]) for n in ("rows", "columns", "thread_rows", "thread_columns", "depth")
    )
    batch, m, n, k = product.sizes
    whole_m, whole_n, whole_k = (
        -(-size // tile) * tile for size, tile in ((m, rows), (n, columns), (k, depth))
    )

    def factor(element: tuple[Expr, list[Expr]], edges: Sequence[tuple[Expr, int, int]]) -> Expr:
        value, inside = element
        inside = [*(i < size for i, size, whole in edges if size < whole), *inside]
        return select(all_of(*inside), value, Const(0, value.dtype)) if inside else value

    def left(b: Expr, i: Expr, k_: Expr) -> Expr:
        return factor(product.left(b, i, Const(0), k_), ((i, m, whole_m), (k_, k, whole_k)))

    def right(b: Expr, k_: Expr, j: Expr) -> Expr:
        return factor(product.right(b, j, Const(0), k_), ((k_, k, whole_k), (j, n, whole_n)))

    a = compute((batch, whole_m, whole_k), left, "left")
    c = compute((batch, whole_k, whole_n), right, "right")
    r = reduce_axis(whole_k, "k")

    def product_rule(b: Expr, i: Expr, j: Expr) -> Expr:
        return sum_of(a[b, i, r].astype(product.dtype) * c[b, r, j].astype(product.dtype), r)

    acc = compute((batch, whole_m, whole_n), product_rule, "acc")
    schedule, out = ended(product, acc)
    result, sums = schedule[out], schedule[acc]
    b, i, j = out.axes
    io, ii = result.split(i, rows)
    jo, jj = result.split(j, columns)
    ty, im = result.split(ii, by_rows)
    tx, jm = result.split(jj, by_columns)
    result.reorder(b, io, jo, ty, tx, im, jm)
    for axis, thread in ((b, "blockIdx.z"), (io, "blockIdx.y"), (jo, "blockIdx.x"),
                         (ty, "threadIdx.y"), (tx, "threadIdx.x")):  # fmt: skip
        result.bind(axis, thread)
    sums.set_scope("local")
    sums.compute_at(result, tx)
    steps, step = sums.split(r, depth)
    _, mine, mine_too = acc.axes
    sums.reorder(steps, step, mine, mine_too)
    sums.pragma(steps, "contract")
    for axis in (mine, mine_too, im, jm):
        (result if axis in (im, jm) else sums).unroll(axis)
    across, down = columns // by_columns, rows // by_rows
    for tensor, swaps in ((a, False), (c, product.right_by_column)):
        stage = schedule[tensor]
        stage.set_scope("shared")
        stage.compute_at(sums, steps)
        fetch_together(stage, across, down, swaps)
    return schedule


def ended(product: Product, acc: Tensor) -> tuple[Schedule, Tensor]:
    """What follows the sums: a schedule, and the tensor of which blocks have tiles. Where that is
    not the result, a kernel behind it adds up parts of sums, or puts its elements into their
    places, 16 bytes of a row at once."""
    shape = product.sizes[:3]
    name = "out" if product.placed is None else "parts"
    out = compute(shape, lambda b, i, j: product.ending(b, i, j, acc[b, i, j]), name)
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


def fetch_together(stage: Stage, across: int, down: int, swaps: bool) -> None:
    """Share the elements of a tile among all threads of a block. Threads side by side bring
    elements that lie side by side: along the last dimension, or along the one before where the
    source ``swaps`` them."""
    _, slow, fast = stage.tensor.axes
    if swaps:
        slow, fast = fast, slow
        stage.reorder(slow, fast)
    slow, y = stage.split(slow, down)
    fast, x = stage.split(fast, across)
    stage.reorder(slow, fast, y, x)
    stage.bind(y, "threadIdx.y")
    stage.bind(x, "threadIdx.x")
