"""Rows of int32 that become bytes: four together where they lie side by side, and the same bytes
as one after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.targets.cpu.llvm_narrow import has_packs
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.te.expr import Const, Expr, Read, Var
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import clip, compute, placeholder
from vdla.compiler.tir.ir import Buffer, For, PrimFunc, Seq, Store
from vdla.compiler.tir.lower import lower

from ....processors import count_instructions

pytestmark = pytest.mark.each_processor
RNG = np.random.default_rng(7)
EDGES = [-(2**31), 2**31 - 1, -32769, -32768, 32767, 32768, -129, -128, 127, 128, -1, 0]


def integers(*shape: int) -> np.ndarray:
    """int32: small ones, any, and those beside the limits of shorter integers."""
    choices = RNG.integers(-300, 300, shape), RNG.integers(-(2**31), 2**31, shape)
    found = np.where(RNG.random(shape) < 0.7, *choices)
    found.reshape(-1)[: len(EDGES)] = EDGES
    return found.astype(np.int32)


def packs(kernel) -> int:
    """How often four rows are narrowed together."""
    return count_instructions(kernel.code.llvm_ir, "avx512.packsswb.512")


def narrowing(rows: int, rule: Callable[[Expr], Expr]) -> PrimFunc:
    """``y[row, lane] = rule(x[row, lane])``, unrolled rows of a vector each."""
    x = placeholder((rows, 16), "int32", "x")
    y = compute((rows, 16), lambda i, j: rule(x[i, j]), "y")
    schedule = create_schedule(y)
    schedule[y].unroll(y.axes[0])
    schedule[y].vectorize(y.axes[1])
    return lower(schedule, [x, y])


RULES: dict[str, tuple[int, int, int]] = {
    "int8": (-128, 127, 0), "from zero": (0, 127, 0), "narrow": (-7, 100, 0),
    "lifted": (-128, 127, 128), "narrow and lifted": (-128, 9, 128), "two values": (5, 6, 0),
}  # fmt: skip


@pytest.mark.fast(19)
@pytest.mark.parametrize("rows", [3, 4, 7, 8])
@pytest.mark.parametrize("name", RULES)
def test_rows_are_clamped_as_integers_are(name: str, rows: int) -> None:
    low, high, lift = RULES[name]

    def rule(element: Expr) -> Expr:
        stored = clip(element, low, high).astype("int8")
        return stored.astype("uint8") + lift if lift else stored

    kernel = compile_func(narrowing(rows, rule))
    x = integers(rows, 16)
    y = np.zeros((rows, 16), np.uint8 if lift else np.int8)
    kernel(x, y)
    expected = np.clip(x, low, high).astype(np.int8)
    np.testing.assert_array_equal(y, expected.view(np.uint8) + np.uint8(lift) if lift else expected)
    if has_packs(host_processor()):
        assert packs(kernel) == rows // 4


OTHERS: dict[str, Callable[[Expr], Expr]] = {
    "wraps": lambda e: e.astype("int8"),
    "more than int8": lambda e: clip(e, -129, 127).astype("int8"),
    "of uint8": lambda e: clip(e, 0, 255).astype("uint8"),
    "of int16": lambda e: clip(e.astype("int16"), -128, 127).astype("int8"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else(name: str) -> None:
    kernel = compile_func(narrowing(4, OTHERS[name]))
    assert packs(kernel) == 0
    x, y = integers(4, 16), np.zeros((4, 16), np.uint8 if name == "of uint8" else np.int8)
    kernel(x, y)
    limits = {"more than int8": (-129, 127), "of uint8": (0, 255)}.get(name)
    if name == "of int16":
        expected = np.clip(x.astype(np.int16), -128, 127)
    else:
        expected = x if limits is None else np.clip(x, *limits)
    np.testing.assert_array_equal(y, expected.astype(y.dtype))


def stores(places: list[int], own: bool) -> PrimFunc:
    """Rows of ``y`` at these places, each made of ``x``, or of the first row of ``y`` that another
    may have stored."""
    x, y = Buffer("x", (8, 16), "int32"), Buffer("y", (8, 16), "int8")
    loops = []
    for i, place in enumerate(places):
        lane = Var("lane")
        total: Expr = Read(x, (Const(i), lane))
        if own:
            total = total + Read(y, (Const(0), lane)).astype("int32")
        body = Store(y, (Const(place), lane), clip(total, -128, 127).astype("int8"))
        loops.append(For(lane, 16, "vectorized", body))
    return PrimFunc("rows", (x, y), Seq(tuple(loops)))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("places", [[0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 4, 6], [2, 3, 4, 5]])
def test_only_rows_side_by_side_that_do_not_need_one_another(places: list[int], own: bool) -> None:
    kernel = compile_func(stores(places, own))
    x, y = integers(8, 16), RNG.integers(-128, 128, (8, 16)).astype(np.int8)
    expected = y.copy()
    for i, place in enumerate(places):
        added = expected[0].astype(np.int32) if own else 0
        with np.errstate(over="ignore"):
            expected[place] = np.clip(x[i] + added, -128, 127)
    kernel(x, y)
    np.testing.assert_array_equal(y, expected)
    if has_packs(host_processor()):
        assert packs(kernel) == (not own and places[1] == places[0] + 1)


def test_rows_that_are_clamped_each_in_its_way() -> None:
    """And one that goes elsewhere."""
    x, y, z = (
        Buffer("x", (8, 16), "int32"),
        Buffer("y", (8, 16), "int8"),
        Buffer("z", (16,), "int8"),
    )
    limits, loops = [(-128, 127), (-128, 127), (-128, 5), (-7, 127)], []
    for i, (low, high) in enumerate([*limits, *[(-128, 127)] * 4]):
        lane = Var("lane")
        value = clip(Read(x, (Const(i), lane)), low, high).astype("int8")
        to = (z, (lane,)) if i == 7 else (y, (Const(i), lane))
        loops.append(For(lane, 16, "vectorized", Store(*to, value)))
    kernel = compile_func(PrimFunc("rows", (x, y, z), Seq(tuple(loops))))
    numbers, rows, apart = integers(8, 16), np.zeros((8, 16), np.int8), np.zeros(16, np.int8)
    kernel(numbers, rows, apart)
    low, high = np.array([*limits, *[(-128, 127)] * 4]).T[..., None]
    expected = np.clip(numbers, low, high)
    np.testing.assert_array_equal(rows[:7], expected[:7])
    np.testing.assert_array_equal(apart, expected[7])
    assert packs(kernel) == 0
