"""Long sums of few results: each in parts, which blocks of their own add up.

::

    y[i, j] = sum over 4608 k      parts[p, i, j] = sum over 512 k, for p in 9
                              ->   y[i, j] = parts[0, i, j] + ... + parts[8, i, j]

The second line is a kernel of its own. Sums of floats are rounded in this order; integers stay what
they are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from ....te.expr import Const, Expr
from ....te.schedule import Schedule
from ....te.tensor import Tensor, compute, reduce_axis, sum_of
from ...common.workload import OperatorWorkload
from .general import fused, share_loop
from .product import Element, Product, find_sizes, is_in_phases

#: Results side by side of a thread that adds parts up, and threads of a block.
VECTOR, THREADS = 4, 128


#: Into how many parts sums may be divided. Where nobody chooses otherwise, a sum in parts has so
#: many tiles of steps at least, and each part so many.
PARTS = (1, 2, 3, 4, 6, 7, 8, 9, 12, 14, 16, 18, 24, 28, 32, 36)
LONG_SUM, LEAST_STEPS = 8, 3


def may_be_parted(workload: OperatorWorkload) -> bool:
    """Whether sums of a product may be in parts: it has no batch, and no kernel of its own puts its
    results into their places."""
    return find_sizes(workload)[0] == 1 and not is_in_phases(workload.op)


def best_parts(room: int, taps: int, steps: int) -> int:
    """Into how many parts sums of so many taps and tiles of steps are divided: as many as there is
    ``room`` for, each of them long enough."""
    longest = taps * steps // LEAST_STEPS if taps * steps >= LONG_SUM else 1
    fit = [n for n in PARTS if n <= min(room, longest) and not refuse_parts(n, taps, steps)]
    return fit[-1] if fit else 1


def refuse_parts(parts: int, taps: int, steps: int) -> str:
    """Why sums over these taps and tiles of steps cannot be split into so many parts; empty if they
    can."""
    by_taps, by_steps = division(parts, taps)
    if by_steps <= steps:
        return ""
    return f"expected split_k up to {by_taps * steps}: {by_taps} of taps, {steps} of tiles of steps"


def division(parts: int, taps: int) -> tuple[int, int]:
    """Into how many parts the taps and the steps of a sum are divided."""
    by_taps = math.gcd(parts, taps)
    return by_taps, parts // by_taps


def in_parts(product: Product, parts: int, depth: int) -> Product:
    """The product that adds up each sum in so many parts. The parts are its batch, so the given
    product must have none. Taps are divided first, then steps of k, in multiples of ``depth``. One
    part is the product itself."""
    if parts == 1:
        return product
    by_taps, by_steps = division(parts, product.taps)
    taps, all_steps = product.taps // by_taps, product.sizes[3]
    steps = -(-all_steps // (by_steps * depth)) * depth
    ends = by_steps > 1 and steps * by_steps > all_steps

    def of_part(element: Element) -> Element:
        def found(b: Expr, i: Expr, t: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
            step = (b % by_steps if by_taps > 1 else b) * steps + k if by_steps > 1 else k
            tap = b // by_steps * taps + t if by_taps > 1 else t
            value, inside = element(Const(0), i, tap, step)
            return value, [step < all_steps, *inside] if ends else inside

        return found

    return replace(
        product, sizes=(parts, *product.sizes[1:3], steps if by_steps > 1 else all_steps),
        taps=taps, left=of_part(product.left), right=of_part(product.right),
        epilogue=lambda b, i, j, acc: acc, raw_left=None, placed=partial(_added_up, product),
    )  # fmt: skip


def _added_up(product: Product, parts: Tensor) -> Tensor:
    """The result of a product whose sums are in parts."""
    count, rows, columns = parts.shape
    p = reduce_axis(count, "p")
    total = compute((1, rows, columns), lambda b, i, j: sum_of(parts[p, i, j], p), "total")
    return compute(total.shape, lambda b, i, j: product.epilogue(b, i, j, total[b, i, j]), "out")


def add_up(schedule: Schedule, parts: Tensor) -> None:
    """Schedule the kernel that adds up: some results side by side for each thread."""
    result = schedule[schedule.outputs[0]]
    [sums] = [s for s in schedule.stages if any(r.source is parts for r in s.reads())]
    [p] = sums.reduce_axes
    cached = schedule[schedule.cache_read(parts, "local", [sums.tensor])]
    columns = result.tensor.shape[2]
    b, i, j = result.tensor.axes
    j, vector = result.split(j, VECTOR if not columns % VECTOR else 1)
    thread = share_loop(result, fused([b, i, j], result), THREADS)
    result.vectorize(vector)
    sums.set_scope("local")
    sums.compute_at(result, thread)
    sums.reorder(p, *sums.tensor.axes)
    sums.unroll(sums.tensor.axes[2])
    cached.compute_at(sums, p)
    cached.vectorize(cached.tensor.axes[2])
