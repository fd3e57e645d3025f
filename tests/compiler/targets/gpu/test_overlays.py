"""Buffers in shared memory that lie over others: only behind a barrier, and computing the same."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.compiler.targets.gpu import kernels
from vdla.compiler.targets.gpu.kernels import find_launches
from vdla.compiler.targets.gpu.overlays import part_buffers, shared_memory
from vdla.compiler.targets.gpu.scopes import SHARED_BYTES
from vdla.compiler.tir.ir import Barrier, PrimFunc, walk_stmt

from .emulating import emulate
from .test_tensor_cores import arrays_for, expected, text_of
from .test_warpgroups import group_product

LARGE = {"rows": 128, "columns": 64, "warp_columns": 64}


def sizes(func: PrimFunc) -> dict[str, tuple[int, int]]:
    """The first and the last byte of each buffer."""
    [launch] = find_launches(func)
    found = shared_memory(launch)
    return {
        b.name: (at, at + b.shape[0] * b.strides[0] * np.dtype(b.dtype).itemsize)
        for b, at in found.places.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("copies", ["tma", "cp.async"])
def test_sums_lie_over_factors(copies: str) -> None:
    func = group_product("float16", 384, copies=copies, **LARGE)
    places = sizes(func)
    assert places["acc.shared"][0] < places["left"][1] < places["right"][1]
    [launch] = find_launches(func)
    assert shared_memory(launch).size_bytes < sum(end - at for at, end in places.values())
    assert "acc_shared = (float*)(shared_bytes + 0);" in text_of(func)
    arrays = arrays_for(func)
    for result in emulate(func, arrays):
        np.testing.assert_array_equal(result, expected(arrays))


def test_small_buffers_lie_apart() -> None:
    [launch] = find_launches(group_product("float16"))
    found = shared_memory(launch)
    assert not found.overlaid and found.size_bytes <= SHARED_BYTES
    assert "shared_bytes" not in text_of(group_product("float16"))


def test_signals_lie_apart() -> None:
    places = sizes(group_product("float16", 384, **LARGE))
    at, end = places.pop("arrived")
    assert all(last <= at or end <= first for first, last in places.values())


def test_without_a_barrier_nothing_is_overlaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass inserts the barrier between a product's end and its sums' way through memory."""
    passes = tuple(p for p in kernels.GPU_PASSES if p is not part_buffers)
    with_barrier = group_product("float16", 384, **LARGE)
    monkeypatch.setattr(kernels, "GPU_PASSES", passes)
    without = group_product("float16", 384, **LARGE)
    assert barriers(with_barrier) == barriers(without) + 1
    assert shared_memory(find_launches(with_barrier)[0]).overlaid
    assert not shared_memory(find_launches(without)[0]).overlaid
    for func in (with_barrier, without):
        assert barriers(part_buffers(func)) == barriers(with_barrier)


def barriers(func: PrimFunc) -> int:
    return sum(isinstance(s, Barrier) for s in walk_stmt(func.body))
