"""Write a matrix product with its requantisation, and schedule it by hand: loops, bits, cycles.

    python examples/05_own_schedule.py

The product is one description. Three schedules of it run on the accelerator, and one on the CPU.
All must give NumPy's bits, and SimPy and RTL the same cycles; otherwise the exit code is 1.
"""

from __future__ import annotations

import sys

import numpy as np
import vdla
from vdla import te, topi
from vdla.compiler.targets.vdla.expressions import gemm_intrin

PARAMS = vdla.HwParams()
BLOCK = PARAMS.block
#: Rows, and blocks of inner and outer channels.
ROWS, INNER, OUTER = 128, 8, 8


def product() -> tuple[list[te.Tensor], te.Tensor]:
    """``out = clip(round((x . w + bias) * multiplier / 2**shift))`` on blocks of channels.

    The layouts are the accelerator's: x and out are [blocks, rows, batch, block], w is [outer
    blocks, inner blocks, block, block], and param, the bias, multiplier and shift of each channel,
    is [outer blocks, 3, block].
    """
    x = te.placeholder((INNER, ROWS, 1, BLOCK), "int8", "x")
    w = te.placeholder((OUTER, INNER, BLOCK, BLOCK), "int8", "w")
    param = te.placeholder((OUTER, 3, BLOCK), "int32", "param")
    c, i = te.reduce_axis(INNER, "c"), te.reduce_axis(BLOCK, "i")

    def products(block, row, image, lane):
        factor = w[block, c, lane, i].astype("int32")
        return te.sum_of(x[c, row, image, i].astype("int32") * factor, (c, i))

    acc = te.compute((OUTER, ROWS, 1, BLOCK), products, "acc")

    def rule(block, row, image, lane):
        bias, multiplier, shift = (param[block, k, lane] for k in range(3))
        scaled = topi.rescale(acc[block, row, image, lane] + bias, multiplier, shift)
        return te.clip(scaled, -128, 127).astype("int8")

    out = te.compute(acc.shape, rule, "out")
    return [x, w, param, out], acc


def on_accelerator(rows: int, vthreads: int, x_stays: bool) -> tuple[te.Schedule, list[te.Tensor]]:
    """Compute tiles of ``rows`` rows of one block of channels, on ``vthreads`` virtual threads.
    Every tile loads all that it reads; with ``x_stays``, its rows of x stay on chip for all blocks
    of channels.
    """
    args, acc = product()
    x, w, param, out = args
    s = te.create_schedule(out)
    local = s.cache_write(out, "out")
    x_tile, w_tile = s.cache_read(x, "inp", [acc]), s.cache_read(w, "wgt", [acc])
    param_tile = s.cache_read(param, "par", [local])
    s[acc].set_scope("acc")

    block, row, image, lane = out.axes
    rows_outer, row = s[out].split(row, rows)
    if x_stays:
        block, thread = s[out].split(block, vthreads)
        s[out].reorder(rows_outer, block, thread, row, image, lane)
    else:
        rows_outer, thread = s[out].split(rows_outer, vthreads)
        s[out].reorder(block, rows_outer, thread, row, image, lane)
    s[out].vthread(thread)
    for tensor in (local, acc, w_tile, param_tile):
        s[tensor].compute_at(s[out], thread)
    s[x_tile].compute_at(s[out], rows_outer if x_stays else thread)

    *places, image, lane = acc.axes
    c, i = acc.reduce_axes
    whole, c = s[acc].split(c, INNER)  # one step around the rows, which so become one instruction
    s[acc].reorder(whole, *places, c, image, lane, i)
    s[acc].tensorize(image, gemm_intrin(PARAMS))
    return s, args


def on_cpu() -> tuple[te.Schedule, list[te.Tensor]]:
    """Schedule the product for the CPU: a vector register holds the channels of a block."""
    args, acc = product()
    out = args[-1]
    s = te.create_schedule(out)
    *_, image, lane = out.axes
    s[out].vectorize(lane)
    s[acc].compute_at(s[out], image)
    *places, sums = acc.axes
    c, i = acc.reduce_axes
    s[acc].reorder(*places, c, i, sums)
    s[acc].vectorize(sums)
    return s, args


def values() -> tuple[list[np.ndarray], np.ndarray]:
    """Random operands, and the result in NumPy's int64."""
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (INNER, ROWS, 1, BLOCK)).astype(np.int8)
    w = rng.integers(-128, 128, (OUTER, INNER, BLOCK, BLOCK)).astype(np.int8)
    shift = 40
    bias = rng.integers(-1000, 1000, (OUTER, BLOCK))
    multiplier = rng.integers(1 << 29, 1 << 30, (OUTER, BLOCK))
    param = np.stack([bias, multiplier, np.full_like(bias, shift)], 1).astype(np.int32)
    acc = np.einsum("crbi,ocli->orbl", x.astype(np.int64), w.astype(np.int64))
    scaled = (acc + bias[:, None, None]) * multiplier[:, None, None]
    half = 1 << (shift - 1)
    rounded = (scaled + half) >> shift
    rounded -= (scaled & ((half << 1) - 1) == half) & (rounded & 1)  # ties to even
    return [x, w, param], np.clip(rounded, -128, 127).astype(np.int8)


def main() -> int:
    """Lower, print, run, compare."""
    operands, expected = values()
    schedules = {
        "16 rows, 1 thread": (16, 1, False),
        "16 rows, 2 threads": (16, 2, False),
        "64 rows that stay, 2 threads": (64, 2, True),
    }
    args, _ = product()
    plain = te.create_schedule(args[-1])
    print("before:", vdla.print_func(vdla.lower(plain, args)), sep="\n")
    print("after:", vdla.print_func(vdla.lower(*on_accelerator(64, 2, True))), sep="\n")

    (found,) = vdla.build_schedule(*on_cpu(), target="cpu").run(*operands)
    equal = np.array_equal(found, expected)
    print(f"cpu: equal to NumPy: {equal}")
    wrong = not equal
    for title, choice in schedules.items():
        cycles = []
        for target in ("sim", "rtl"):
            kernel = vdla.build_schedule(*on_accelerator(*choice), target=target, hw=PARAMS)
            (found,) = kernel.run(*operands)
            wrong |= not np.array_equal(found, expected)
            cycles.append(kernel.cycles)
        macs = expected.size * INNER * BLOCK
        busy = macs / (PARAMS.peak_macs_per_cycle * cycles[0])
        print(
            f"{title}: sim {cycles[0]:,} cycles, rtl {cycles[1]:,}, {100 * busy:.1f} % of the peak"
        )
        wrong |= cycles[0] != cycles[1]
    print("all equal" if not wrong else "DIFFERENT")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
