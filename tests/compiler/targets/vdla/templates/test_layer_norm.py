"""Layer normalisation of the places of an image, in two operators on both units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.build import build
from vdla.compiler.choose.space import Knobs
from vdla.compiler.dumps import Dumps
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.normalisation import Numbers, QLayerNorm, QNormalise, RowDigits
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.lower.codegen import Code
from vdla.compiler.targets.vdla.machine import Budget, Context, Machine
from vdla.compiler.targets.vdla.plan.program import run_loop_passes
from vdla.compiler.targets.vdla.templates.layer_norm import (
    RowDigitsWorkload,
    RowFactors,
    _digits_needs,
    most_norm_channels,
)
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ....building import build_for
from ..machines import RTL_TABLES
from .test_matmul import VTA, check_rtl, inputs_of

HW = HwParams(vector_table=2)
SMALL = replace(PRESETS["4x4"], vector_table=2, par_depth=80)


def norm_of(
    channels: int, epsilon: float = 1e-5, centre: int | None = None, low_bits: int | None = None
) -> QLayerNorm:
    """A normalisation of channels, around their mean or a centre."""
    rng = np.random.default_rng(channels)
    gain, bias = (rng.standard_normal(channels).astype(np.float32) for _ in range(2))
    return QLayerNorm(1, 0.05, epsilon, gain, bias, 0.03, 5, centre, low_bits)


def normalised(
    channels: int, places: int, block: int, epsilon: float = 1e-5, centre: int | None = None,
    low_bits: int | None = None,
) -> Graph:  # fmt: skip
    """The two operators of one normalisation."""
    norm = norm_of(channels, epsilon, centre, low_bits)
    names = ("x", "low")[: norm.operands]
    inputs = [Tensor(name, (1, channels, places, 1), "int8") for name in names]
    x = inputs[0]
    first, rest = RowDigits(norm.numbers, block), QNormalise(norm, block)
    digits = Tensor("digits", *infer(first, (x,), "factors"))
    y = Tensor("y", *infer(rest, (*inputs, digits), "node"))
    nodes = (
        Node("factors", first, ("x",), "digits"),
        Node("node", rest, (*names, "digits"), "y"),
    )
    return Graph("normalised", names, ("y",), nodes, {t.name: t for t in (*inputs, digits, y)})


def check(graph: Graph, hw: HwParams, knobs: dict[str, Knobs] | None = None) -> int:
    """Accelerator and machine code compute what NumPy does, which is the whole normalisation;
    returns the cycles."""
    x = inputs_of(graph)
    x[0][:, :, 0] = 7  # a constant row
    norm = graph.nodes[1].op
    assert isinstance(norm, QNormalise)
    expected = norm.norm.evaluate(*x)
    (whole,) = interpret(graph, *x)
    np.testing.assert_array_equal(whole, expected)
    compiled = build(graph, find_target("sim", Options(hw, VTA, 2, 1)), knobs=knobs)
    assert [layer.target for layer in compiled.layers] == ["accel"] * 2
    cycles: list[int] = []
    (got,) = compiled.run(x, lambda p, dram: cycles.append(simulate(p, dram, VTA).cycles))
    np.testing.assert_array_equal(got, expected)
    (host,) = build_for("cpu", graph, hw, VTA).run(x, lambda program, dram: None)
    np.testing.assert_array_equal(host, expected)
    [one] = cycles
    return one


#: Channels, places and configuration.
CASES = {
    "a tile": (32, 16, HW),
    "tiles": (64, 48, HW),
    "many channels": (144, 32, HW),
    "places that fill no blocks": (64, 37, HW),
    "fewer places than a block": (48, 5, HW),
    "blocks of 4": (20, 10, SMALL),
    "two passes": (48, 32, replace(HW, vector_passes=2)),
}


@pytest.mark.slow
@pytest.mark.short(3)
@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_interpreter(case: str) -> None:
    channels, places, hw = CASES[case]
    check(normalised(channels, places, hw.block), hw)


@pytest.mark.slow
@pytest.mark.parametrize("centre", [-7, 0])
def test_rms_normalisation_equals_the_interpreter(centre: int) -> None:
    check(normalised(64, 37, HW.block, centre=centre), HW)


@pytest.mark.slow
@pytest.mark.parametrize("centre", [None, -7])
@pytest.mark.parametrize("low_bits", [1, 8])
def test_two_bytes_equal_the_interpreter(centre: int | None, low_bits: int) -> None:
    check(normalised(64, 37, HW.block, centre=centre, low_bits=low_bits), HW)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tiles", "some", "resident"), [(1, 1, 0), (1, 3, 1), (2, 2, 1), (2, 2, 0), (2, 1, 0)]
)
def test_tiles(tiles: int, some: int, resident: int) -> None:
    """Also tiles with a remainder in both dimensions."""
    rest = {"tiles": tiles, "channel_blocks": some, "resident": resident}
    check(normalised(112, 80, 16), HW, {"factors": {"tiles": tiles}, "node": rest})


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("low_bits", [None, 8])
def test_the_rtl_takes_the_same_cycles(low_bits: int | None) -> None:
    check_rtl(normalised(20, 10, 4, low_bits=low_bits), RTL_TABLES)


@pytest.mark.slow
def test_what_it_costs() -> None:
    """BERT's: 128 places of 256 channels are read twice, for which the bus needs 8,192 cycles."""
    graph = normalised(256, 128, 16)
    cycles = check(graph, HW)
    layers = build_for("sim", graph, HW, VTA).layers
    predicted = sum(layer.predicted_cycles or 0 for layer in layers)
    assert 0.8 * cycles < predicted < 1.2 * cycles
    assert cycles < 15_500


def test_the_most_channels() -> None:
    """Without a table of 16 bits there are none; a batch cannot be read as weights."""
    assert most_norm_channels(HwParams()) == most_norm_channels(HwParams(vector_table=1)) == 0
    assert most_norm_channels(replace(HW, batch=2)) == 0
    assert most_norm_channels(HW) == 960
    assert most_norm_channels(replace(HW, acc_depth=256)) == 112


@pytest.mark.fast(1)
@pytest.mark.parametrize("tiles", [1, 3, 8])
def test_entries_of_tmp(tiles: int) -> None:
    """A chain of a hundred operators needs those that live at one time, and the planner knows; also
    that the next step's places are loaded meanwhile."""
    machine = Machine(HW, VTA, 2)
    template = RowFactors(machine)
    whole = Context(Budget.whole(HW))
    workload = RowDigitsWorkload(4, 24 * HW.block, 24, whole, Numbers(64, 0.004))
    func = template.schedule(workload, {"tiles": tiles}, "n")
    func = run_loop_passes(func, machine, Dumps(None), 0)  # no weights are prefetched
    used = Code(func, HW).used
    needs = _digits_needs(4, tiles, HW)
    assert {name: needs[name] for name in used} == used
