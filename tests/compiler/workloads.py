"""Small computations with an independent NumPy meaning, and what runs their loop programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from vdla.compiler.te.expr import Expr, Read, all_of, maximum, rewrite, select
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import (
    Tensor,
    clip,
    compute,
    max_of,
    placeholder,
    reduce_axis,
    sum_of,
)
from vdla.compiler.tir.ir import Allocate, PrimFunc, map_stmt, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.verify import verify

from .interpret import interpret


@dataclass(frozen=True)
class Workload:
    """Inputs, intermediate tensors by name, the output, and its value by NumPy, for any inputs or
    for the given ones."""

    inputs: tuple[Tensor, ...]
    output: Tensor
    numpy: Callable[..., np.ndarray]
    stages: dict[str, Tensor]
    given: list[np.ndarray] | None = None

    @property
    def args(self) -> list[Tensor]:
        return [*self.inputs, self.output]

    def schedule(self) -> Schedule:
        return create_schedule(self.output)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Values of all inputs: random ones of int8 where none are given."""
        if self.given is not None:
            return self.given
        rng = np.random.default_rng(seed)
        return [rng.integers(-128, 128, t.shape).astype(t.dtype) for t in self.inputs]


def run(func: PrimFunc, arrays: list[np.ndarray]) -> np.ndarray:
    """The program's last parameter, after interpretation; it starts as garbage."""
    output = func.params[-1]
    result = np.full(output.shape, 85, output.dtype)
    interpret(func, *arrays, result)
    return result


def check(workload: Workload, schedule: Schedule) -> PrimFunc:
    """The schedule's program, which is sound and computes what NumPy does."""
    func = lower(schedule, workload.args)
    verify(func)
    arrays = workload.arrays()
    np.testing.assert_array_equal(run(func, arrays), workload.numpy(*arrays))
    return func


def in_main_memory(func: PrimFunc) -> PrimFunc:
    """The program with all buffers in the host's only memory."""
    moved = {
        stmt.buffer: replace(stmt.buffer, scope="global")
        for stmt in walk_stmt(func.body)
        if isinstance(stmt, Allocate)
    }

    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.source in moved:
            return Read(moved[node.source], node.indices)
        return None

    return replace(
        func,
        body=map_stmt(func.body, lambda e: rewrite(e, leaf), lambda b: moved.get(b, b)),
    )


def stretch() -> Workload:
    """Elementwise, then each element twice, but the first one."""
    a = placeholder((7,), "int32", "a")
    b = compute((7,), lambda i: a[i] * 3 - 1, "b")
    c = compute((12,), lambda i: b[(i + 1) // 2] + i, "c")
    places = np.arange(12, dtype="int32")
    return Workload((a,), c, lambda x: np.repeat(x * 3 - 1, 2)[1:-1] + places, {"b": b})


def blur() -> Workload:
    """Elementwise, then a stencil of three, then elementwise."""
    a = placeholder((12,), "int32", "a")
    b = compute((12,), lambda i: a[i] * 3 - 1, "b")
    c = compute((10,), lambda i: b[i] + b[i + 1] * 2 - b[i + 2], "c")
    d = compute((10,), lambda i: maximum(c[i], -5), "d")

    def numpy(x: np.ndarray) -> np.ndarray:
        y = x * 3 - 1
        return np.maximum(y[:-2] + 2 * y[1:-1] - y[2:], -5)

    return Workload((a,), d, numpy, {"b": b, "c": c})


def matmul(m: int = 5, k: int = 7, n: int = 6) -> Workload:
    """int8 product with int32 sums."""
    x, w = placeholder((m, k), "int8", "x"), placeholder((n, k), "int8", "w")
    r = reduce_axis(k, "k")
    y = compute(
        (m, n), lambda i, j: sum_of(x[i, r].astype("int32") * w[j, r].astype("int32"), r), "y"
    )

    def numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.astype(np.int32) @ b.astype(np.int32).T

    return Workload((x, w), y, numpy, {})


def conv(stride: int = 2) -> Workload:
    """A padded convolution of 2 channels of 5x6 to 3, shifted and clamped to int8."""
    x = placeholder((2, 5, 6), "int8", "x")
    w = placeholder((3, 2, 3, 3), "int8", "w")

    def border(c: Expr, i: Expr, j: Expr) -> Expr:
        return select(all_of(i >= 1, i < 6, j >= 1, j < 7), x[c, i - 1, j - 1], 7)

    pad = compute((2, 7, 8), border, "pad")
    oh, ow = 4 // stride + 1, 5 // stride + 1
    c, u, v = reduce_axis(2, "c"), reduce_axis(3, "u"), reduce_axis(3, "v")
    acc = compute(
        (3, oh, ow),
        lambda o, i, j: sum_of(
            pad[c, i * stride + u, j * stride + v].astype("int32") * w[o, c, u, v].astype("int32"),
            (c, u, v),
        ),
        "acc",
    )
    out = compute(
        (3, oh, ow), lambda o, i, j: clip(acc[o, i, j] >> 7, -100, 100).astype("int8"), "out"
    )

    def numpy(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), constant_values=7).astype(np.int32)
        result = np.zeros((3, oh, ow), np.int32)
        for p in range(3):
            for q in range(3):
                rows, columns = p + stride * np.arange(oh), q + stride * np.arange(ow)
                seen = padded[:, rows[:, None], columns]
                result += np.einsum("chw,oc->ohw", seen, kernel[:, :, p, q].astype(np.int32))
        return np.clip(result >> 7, -100, 100).astype(np.int8)

    return Workload((x, w), out, numpy, {"pad": pad, "acc": acc})


def diamond() -> Workload:
    """One producer read by two consumers at different offsets, which meet again."""
    a = placeholder((6, 8), "int32", "a")
    b = compute((6, 8), lambda i, j: a[i, j] + i * j, "b")
    c = compute((5, 7), lambda i, j: b[i, j] - b[i + 1, j], "c")
    k = reduce_axis(2, "k")
    d = compute((5, 7), lambda i, j: max_of(b[i, j + k], k), "d")
    e = compute((5, 7), lambda i, j: c[i, j] * d[i, j], "e")

    def numpy(x: np.ndarray) -> np.ndarray:
        y = x + np.arange(6, dtype=np.int32)[:, None] * np.arange(8, dtype=np.int32)
        return (y[:-1, :-1] - y[1:, :-1]) * np.maximum(y[:-1, :-1], y[:-1, 1:])

    return Workload((a,), e, numpy, {"b": b, "c": c, "d": d})


def mirror() -> Workload:
    """Every second element from the end on."""
    a = placeholder((12,), "int32", "a")
    b = compute((12,), lambda i: a[i] * 3, "b")
    c = compute((6,), lambda i: b[11 - i * 2] - i, "c")
    return Workload((a,), c, lambda x: x[::-2] * 3 - np.arange(6, dtype=np.int32), {"b": b})


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "blur": blur,
    "matmul": matmul,
    "conv": conv,
    "diamond": diamond,
    "mirror": mirror,
}
