"""Features of loop programs: as many for every program, and what they count."""

from __future__ import annotations

import numpy as np
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder, reduce_axis, sum_of
from vdla.compiler.tir.ir import PrimFunc
from vdla.compiler.tir.lower import lower
from vdla.compiler.tune.loop_features import LENGTH, TOTALS, loop_features


def product(dtype: str, size: int, tile: int | None) -> PrimFunc:
    """A product of two matrices; its rows in tiles, if there is a size of them."""
    x, w = placeholder((size, 8), dtype, "x"), placeholder((8, 16), dtype, "w")
    k = reduce_axis(8, "k")
    y = compute((size, 16), lambda i, j: sum_of(x[i, k] * w[k, j], k), "y")
    s = create_schedule(y)
    if tile is not None:
        s[y].split(y.axes[0], tile)
    return lower(s, [x, w, y], "product")


def totals(func: PrimFunc) -> dict[str, float]:
    """The counts of a program, without logarithms."""
    return dict(zip(TOTALS, np.exp2(loop_features(func)[-len(TOTALS) :]) - 1, strict=True))


def test_all_programs_have_as_many_features() -> None:
    plain, tiled = product("int32", 12, None), product("int32", 12, 4)
    deep = compute((2,) * 12, lambda *i: placeholder((2,) * 12, "int32", "z")[i] + 1, "deep")
    found = [loop_features(func) for func in (plain, tiled)]
    found.append(loop_features(lower(create_schedule(deep), [*deep.inputs, deep], "deep")))
    assert {len(features) for features in found} == {LENGTH}
    assert all(np.isfinite(features).all() and (features >= 0).all() for features in found)
    assert not np.array_equal(found[0], found[1])


def test_operations_on_integers_and_on_floats_are_counted() -> None:
    integer, real = totals(product("int32", 12, None)), totals(product("float32", 12, None))
    products = 12 * 16 * 8
    assert round(integer["integer operations"]) >= 2 * products and integer["float operations"] == 0
    assert round(real["float operations"]) >= 2 * products and real["integer operations"] == 0
    assert totals(product("int32", 24, None))["integer operations"] > integer["integer operations"]


def test_a_loop_has_its_length_and_its_strides() -> None:
    found = np.exp2(loop_features(product("float32", 12, None))) - 1
    assert round(found[0]) in (8, 16), "the innermost loop of the heaviest statement"
    assert {round(value) for value in found[:200]} >= {1, 8, 16}
