"""Weights have as many buffers as there is room for, and products stay what they are."""

from __future__ import annotations

from math import prod

import pytest
from vdla.bench.measure import measure
from vdla.bench.net import Net
from vdla.compiler.targets.vdla.expressions import Epilogue, Window
from vdla.compiler.targets.vdla.lower.prefetch_weights import weights_ahead
from vdla.compiler.targets.vdla.machine import USUAL_EIGHTHS, Budget, Context, Machine
from vdla.compiler.targets.vdla.templates.convolution import Products, ProductsWorkload
from vdla.compiler.tir.ir import Allocate, PrimFunc, walk_stmt
from vdla.compiler.tir.verify import verify
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams

VTA = MEMORY_PRESETS["vta"]
WINDOWS = HwParams(vector_window=3)
#: Blocks of input channels of the convolution below, and of its results.
DEPTH, RESULTS = 8, 24


def products(hw: HwParams, **knobs: int | str) -> tuple[Machine, PrimFunc]:
    """A convolution of one place, an image of 7 x 7."""
    machine = Machine(hw, VTA, 2)
    context = Context(Budget.whole(hw))
    workload = ProductsWorkload(
        DEPTH, 7, 7, RESULTS, Window((1, 1)), 1, context, 0, Epilogue(), False
    )
    tile = {"oc_blocks": 1, "rows": 7, "cols": 7, "ic_blocks": DEPTH, "order": "pixels",
            "vthreads": 2} | knobs  # fmt: skip
    return machine, Products(machine).schedule(workload, tile, "products")


def copies(hw: HwParams, eighths: int = USUAL_EIGHTHS, **knobs: int | str) -> int:
    """Buffers of weights that each thread has."""
    machine, func = products(hw, **knobs)
    found = weights_ahead(func, machine, eighths)
    verify(found)

    def entries(func: PrimFunc) -> int:
        buffers = [s.buffer for s in walk_stmt(func.body) if isinstance(s, Allocate)]
        return sum(prod(b.shape) for b in buffers if b.scope == "wgt")

    return entries(found) // entries(func)


def test_each_thread_has_as_many_buffers_as_its_tiles() -> None:
    assert copies(WINDOWS) == RESULTS // 2


def test_it_has_no_more_than_there_is_room_for() -> None:
    hw = HwParams(vector_window=3, wgt_depth=512)
    assert copies(hw) == 512 // 4 // (2 * DEPTH) == 8
    assert [copies(hw, eighths) for eighths in (1, 2, 3)] == [4, 8, 12]


def test_what_is_double_buffered_has_more_buffers_where_there_is_room() -> None:
    """Weights that stay for all places have one buffer for both threads. It counts two when it is
    marked as double, which here are not more than that."""
    assert copies(WINDOWS, order="weights", cols=3) == RESULTS
    assert copies(WINDOWS, order="weights", cols=3, oc_blocks=12) == 1


def test_chunks_have_buffers_of_their_own() -> None:
    assert copies(WINDOWS, ic_blocks=4) == RESULTS


@pytest.mark.slow
@pytest.mark.parametrize("hw", [WINDOWS, HwParams(vector_window=3, wgt_depth=128)])
def test_values_stay(hw: HwParams) -> None:
    dense, conv = Net("dense"), Net("conv")
    dense.output(dense.dense(dense.input(1, 256), 1024))
    conv.output(conv.conv(conv.input(1, 128, 10, 9), 96, 3))
    for net in (dense, conv):
        measure(net.model(), hw, VTA, ("sim",))
