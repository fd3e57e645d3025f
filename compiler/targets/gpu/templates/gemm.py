"""Products of matrices in tiles: dense layers, and convolutions as products of implicit matrices.

The matrices are read from the operands as they are; no copy of an image's windows is made. A block
computes a tile of the result. For each step of the reduction its threads bring a tile of both
factors to shared memory, with zeros beyond the edges, and each thread adds up a small tile in
registers. Bias, bounds and requantisation follow where the sums are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....choose.space import Knobs, Space, preferring
from ....graph.arithmetic.requant import Requant
from ....graph.ir import Graph, Node
from ....graph.ops.convolution import Conv2d, QConv2d
from ....graph.ops.linear import Dense, MatMul, QDense
from ....te.expr import Const, Expr, all_of, select
from ....te.schedule import Schedule, create_schedule
from ....te.stage import Stage
from ....te.tensor import Tensor, compute, placeholder, reduce_axis, sum_of
from ....topi import clip_between, window_counts
from ....topi.quantisation import clipped, rescale
from ...cpu.templates.base import CpuWorkload
from .base import GpuTemplate, Scheduled

#: Rows and columns of a block's tile, and of a thread's; steps of the reduction that share a tile.
TILES = (64, 32, 16, 8, 128, 4, 1)
THREAD_TILES = (4, 2, 1, 8)
DEPTHS = (16, 8, 32)
#: A launch with fewer blocks leaves most of a large GPU idle.
MANY_BLOCKS = 64


@dataclass(frozen=True)
class Product:
    """``result[b, i, j] = ending(b, i, j, sum over k of left(b, i, k) * right(b, k, j))``.

    Attributes
    ----------
    sizes : of b, i, j and k
    left, right : an element of a factor, and the condition on which it exists; else it is 0
    dtype : of the sums, to which the factors are converted
    args : the placeholders of all operands and attributes
    attributes : the values of attributes
    right_by_column : whether steps of k lie side by side in the right factor
    """

    sizes: tuple[int, int, int, int]
    left: Callable[[Expr, Expr, Expr], tuple[Expr, list[Expr]]]
    right: Callable[[Expr, Expr, Expr], tuple[Expr, list[Expr]]]
    ending: Callable[[Expr, Expr, Expr, Expr], Expr]
    dtype: str
    args: list[Tensor]
    attributes: tuple[np.ndarray, ...] = ()
    right_by_column: bool = False


class Gemm(GpuTemplate):
    """A tile of ``rows`` and ``columns`` for a block, of ``thread_rows`` and ``thread_columns`` for
    a thread; ``depth`` steps of the reduction at once."""

    name = "gemm"
    ops = (Conv2d, QConv2d, Dense, QDense, MatMul)

    def handles(self, graph: Graph, node: Node) -> bool:
        x, weight = (t.shape for t in graph.operands(node)[:2])
        if 0 in x or 0 in weight:
            return False
        if isinstance(node.op, Conv2d | QConv2d):
            return weight[0] // node.op.groups > 1
        return not isinstance(node.op, MatMul) or len(x) == len(weight) == 2

    def space(self, workload: CpuWorkload) -> Space:
        batch, rows, columns, depth = _sizes(workload)

        def fits(sizes: Sequence[int], most: int) -> list[int]:
            """Sizes that are not twice as large as needed, or the smallest."""
            return [n for n in sizes if n < 2 * most] or [min(sizes)]

        row_tiles, column_tiles = fits(TILES, rows), fits(TILES, columns)
        best_rows, best_columns = row_tiles[0], column_tiles[0]
        while (
            batch * -(-rows // best_rows) * -(-columns // best_columns) < MANY_BLOCKS
            and max(best_rows, best_columns) > 16
        ):
            if best_rows >= best_columns and best_rows // 2 in row_tiles:
                best_rows //= 2
            elif best_columns // 2 in column_tiles and best_columns > 16:
                best_columns //= 2
            else:
                break
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


def _sizes(workload: CpuWorkload) -> tuple[int, int, int, int]:
    """Batch, rows, columns and depth of the product of a workload."""
    (x, _), (weight, _) = workload.operands[:2]
    result, _ = workload.result
    match workload.op:
        case Conv2d() | QConv2d():
            groups = workload.op.groups
            return x[0] * groups, weight[0] // groups, math.prod(result[2:]), math.prod(weight[1:])
    return 1, result[0], result[1], x[1]


# ---- products ----------------------------------------------------------------------------------


def product_of(graph: Graph, node: Node) -> Product:
    """A node as a product of matrices."""
    tensors = graph.operands(node)
    match node.op:
        case Conv2d() | QConv2d() as op:
            return _convolution(op, [t.shape for t in tensors], [t.dtype for t in tensors])
        case Dense() | MatMul() as op:
            transposed = isinstance(op, Dense) and op.transposed
            return _dense(op, tensors, transposed, 0)
        case QDense() as op:
            return _dense(op, tensors, True, op.x_zero_point)
    raise AssertionError(f"{node.op.name} is no product")


def _dense(op: Dense | MatMul | QDense, tensors: Sequence, by_column: bool, zero: int) -> Product:
    x, w, *bias = (placeholder(t.shape, t.dtype, name) for t, name in zip(tensors, "xwb"))  # noqa: B905
    rows, depth = x.shape
    columns = w.shape[0 if by_column else 1]
    dtype = "int32" if isinstance(op, QDense) else x.dtype

    def left(b: Expr, i: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        return _less(x[i, k], zero, dtype), []

    def right(b: Expr, k: Expr, j: Expr) -> tuple[Expr, list[Expr]]:
        return (w[j, k] if by_column else w[k, j]), []

    ending, more, values = _ending(op, bias)
    return Product(
        (1, rows, columns, depth), left, right, lambda b, i, j, acc: ending(acc, j), dtype,
        [x, w, *bias, *more], values, by_column,
    )  # fmt: skip


def _convolution(op: Conv2d | QConv2d, shapes: list[tuple[int, ...]], dtypes: list[str]) -> Product:
    (images, _, height, width), (outputs, per_group, *kernel) = shapes[:2]
    depth, groups = per_group * math.prod(kernel), op.groups
    rows = outputs // groups
    counts = window_counts((height, width), tuple(kernel), op.strides, op.pads, op.dilations)
    x = placeholder(shapes[0], dtypes[0], "x")
    w = placeholder((outputs, depth), dtypes[1], "w")
    bias = [placeholder(s, d, "b") for s, d in zip(shapes[2:], dtypes[2:], strict=True)]
    zero = op.x_zero_point if isinstance(op, QConv2d) else 0
    dtype = "int32" if isinstance(op, QConv2d) else "float32"

    def left(b: Expr, i: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        return w[b % groups * rows + i, k], []

    def right(b: Expr, k: Expr, j: Expr) -> tuple[Expr, list[Expr]]:
        taps = (k // kernel[1] % kernel[0], k % kernel[1])
        at = (j // counts[1], j % counts[1])
        places, inside = [], []
        for d, size in enumerate((height, width)):
            before = op.pads[d]
            place = at[d] * op.strides[d] + taps[d] * op.dilations[d]
            last = (counts[d] - 1) * op.strides[d] + (kernel[d] - 1) * op.dilations[d]
            if before:
                inside.append(place >= before)
            if last - before >= size:
                inside.append(place < size + before)
            places.append(place - before)
        channel = b % groups * per_group + k // math.prod(kernel)
        return _less(x[(b // groups, channel, *places)], zero, dtype), inside

    ending, more, values = _ending(op, bias)
    return Product(
        (images * groups, rows, math.prod(counts), depth), left, right,
        lambda b, i, j, acc: ending(acc, b % groups * rows + i), dtype, [x, w, *bias, *more],
        values,
    )  # fmt: skip


def _less(element: Expr, zero_point: int, dtype: str) -> Expr:
    """An element less its zero point, which may need 9 bits."""
    return element.astype("int16") - zero_point if dtype == "int32" else element


def _ending(
    op: Conv2d | QConv2d | Dense | MatMul | QDense, bias: Sequence[Tensor]
) -> tuple[Callable[[Expr, Expr], Expr], list[Tensor], tuple[np.ndarray, ...]]:
    """What follows a sum of a channel: a function of both, its parameters and their values."""

    def total(acc: Expr, channel: Expr) -> Expr:
        return acc + bias[0][channel] if bias else acc

    match op:
        case QConv2d() | QDense():
            requant: Requant = op.requant
            multiplier = placeholder(requant.multiplier.shape, "int32", "multiplier")
            shift = placeholder(requant.shift.shape, "int32", "shift")

            def requantized(acc: Expr, channel: Expr) -> Expr:
                at = channel if requant.multiplier.shape[0] > 1 else Const(0)
                scaled = rescale(total(acc, channel), multiplier[at], shift[at], requant.rounding)
                return clipped(scaled, requant.zero_point, requant.lo, requant.hi)

            return requantized, [multiplier, shift], (requant.multiplier, requant.shift)
        case Conv2d() | Dense():
            return lambda acc, channel: clip_between(total(acc, channel), op.lo, op.hi), [], ()
    return total, [], ()


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
        return factor(product.left(b, i, k_), ((i, m, whole_m), (k_, k, whole_k)))

    def right(b: Expr, k_: Expr, j: Expr) -> Expr:
        return factor(product.right(b, k_, j), ((k_, k, whole_k), (j, n, whole_n)))

    a = compute((batch, whole_m, whole_k), left, "left")
    c = compute((batch, whole_k, whole_n), right, "right")
    r = reduce_axis(whole_k, "k")

    def product_rule(b: Expr, i: Expr, j: Expr) -> Expr:
        return sum_of(a[b, i, r].astype(product.dtype) * c[b, r, j].astype(product.dtype), r)

    acc = compute((batch, whole_m, whole_n), product_rule, "acc")
    out = compute((batch, m, n), lambda b, i, j: product.ending(b, i, j, acc[b, i, j]), "out")
    schedule = create_schedule(out)
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
