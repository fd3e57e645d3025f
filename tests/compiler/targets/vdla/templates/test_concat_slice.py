"""Places of images that are cut out, replaced, or come one behind another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.movement import Concat, ReplaceEnd, Slice
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError
from vdla.isa.params import PRESETS, HwParams

from ....building import placed
from .test_matmul import DEFAULT, SMALL, check_rtl, check_values, one_operator


def concatenated(channels: int, *counts: int) -> Graph:
    """Images of so many places, one behind another."""
    return one_operator(Concat(2), *((1, channels, count, 1) for count in counts))


def cut(channels: int, places: int, first: int, count: int, step: int = 1) -> Graph:
    """Some places of an image."""
    some = Slice((0, 0, first, 0), (1, 1, step, 1), (1, channels, count, 1))
    return one_operator(some, (1, channels, places, 1))


def ended(channels: int, places: int, count: int) -> Graph:
    """An image with other places at its end."""
    return one_operator(ReplaceEnd(2), (1, channels, places, 1), (1, channels, count, 1))


CASES = {
    "one place before others": (concatenated(192, 1, 196), DEFAULT),
    "one place behind others": (concatenated(48, 30, 1), DEFAULT),
    "three images": (concatenated(40, 5, 17, 2), DEFAULT),
    "the first place": (cut(192, 197, 0, 1), DEFAULT),
    "places in the middle": (cut(40, 50, 7, 33), DEFAULT),
    "blocks of 4": (concatenated(10, 3, 8), SMALL),
    "another end": (ended(48, 40, 16), DEFAULT),
    "another end, of blocks of 4": (ended(10, 9, 2), SMALL),
    "batch 2": (concatenated(20, 3, 8), replace(PRESETS["8x8"], batch=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", CASES)
def test_moves_equal_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [(1, 1), (2, 7), (4, 40), (1, 196)], ids=str)
def test_tiles(knobs: tuple[int, int]) -> None:
    """Also tiles with a remainder in both dimensions."""
    sizes = {"channel_blocks": knobs[0], "positions": knobs[1]}
    check_values(concatenated(112, 3, 196), DEFAULT, sizes)
    if knobs[1] < 40:
        check_values(cut(112, 60, 5, 38), DEFAULT, sizes, vthreads=1)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [concatenated(10, 3, 8), cut(10, 12, 3, 8), ended(10, 12, 3)],
    ids=["joined", "cut", "ended"],
)
def test_the_rtl_takes_the_same_cycles(graph: Graph) -> None:
    check_rtl(graph, SMALL)


@pytest.mark.parametrize("count", [1, 7, 20])
def test_another_end_on_the_host(count: int) -> None:
    """Also where nothing of the image is left."""
    rng = np.random.default_rng(count)
    x, part = (rng.integers(-128, 128, (1, 6, n, 1)).astype(np.int8) for n in (20, count))
    [found] = build_cpu(ended(6, 20, count)).run(x, part)
    np.testing.assert_array_equal(found[:, :, : 20 - count], x[:, :, : 20 - count])
    np.testing.assert_array_equal(found[:, :, 20 - count :], part)
    with pytest.raises(VdlaError, match="a part of"):
        one_operator(ReplaceEnd(2), (1, 6, 20, 1), (1, 6, 21, 1))


@pytest.mark.parametrize(
    "graph",
    [
        cut(32, 20, 0, 5, step=2),
        one_operator(Slice((0, 3, 0, 0), (1, 1, 1, 1), (1, 5, 9, 1)), (1, 32, 9, 1)),
        one_operator(Slice((0, 31, 0, 0), (1, -1, 1, 1), (1, 32, 9, 1)), (1, 32, 9, 1)),
        one_operator(Slice((0, 0, 2, 0), (1, 1, 1, 1), (1, 32, 3, 4)), (1, 32, 9, 4)),
    ],
    ids=["every other place", "some channels", "channels in reverse", "an image of columns"],
)
def test_other_parts_are_the_hosts(graph: Graph) -> None:
    (node,) = placed(graph, HwParams()).nodes
    assert node.target == "cpu"
