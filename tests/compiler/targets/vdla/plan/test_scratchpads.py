"""The vector unit's operators run beside those of the tensor core, and what is padded stays so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from vdla.bench.net import Net
from vdla.bench.workloads import TABLE_2
from vdla.compiler.graph.interpret import interpret
from vdla.isa.insn import Load
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.opcodes import Unit
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ....building import build_for

VTA = MEMORY_PRESETS["vta"]
SMALL = replace(PRESETS["8x8"], inp_depth=256, out_depth=96, par_depth=32, acc_depth=128)


def separable(shape: tuple[int, int, int] = (32, 28, 28)) -> Net:
    """Pointwise, depthwise and pointwise convolutions and an addition."""
    net = Net("separable")
    x = net.input(1, *shape)
    y = net.conv(x, 64, 1)
    z = net.conv(net.conv(y, 64, 3, groups=64), 64, 1)
    net.output(net.add(y, z))
    return net


@pytest.mark.slow
@pytest.mark.parametrize("params", [HwParams(), SMALL], ids=["16x16", "small"])
@pytest.mark.parametrize("vthreads", [1, 2])
def test_neighbours_overlap_and_compute_the_same(params: HwParams, vthreads: int) -> None:
    net = separable()
    compiled = build_for("sim", net.model(), params, VTA, vthreads)
    x = np.random.default_rng(1).normal(0, 2, (1, 32, 28, 28)).astype(np.float32)
    program, dram = compiled.program, compiled.dram([x])
    result = simulate(program, dram, VTA)
    assert np.array_equal(compiled.results(dram, [x])[0], interpret(compiled.graph, x)[0])

    def times(name: str, unit: Unit) -> list[int]:
        layer = next(layer for layer in compiled.layers if layer.name == name)
        indices = [i for a, b in layer.runs or () for i in range(a, b + 1)]
        return [result.starts[i] for i in indices if program.insns[i].unit is unit]

    names = [layer.name for layer in compiled.layers if layer.target == "accel"]
    pointwise, depthwise = names[0], names[1]
    assert min(times(depthwise, Unit.VECTOR)) < max(times(pointwise, Unit.GEMM))


@pytest.mark.slow
def test_it_is_faster_than_one_operator_after_the_other() -> None:
    def cycles(*layers: Callable[[Net, str], str]) -> int:
        net = Net("layers")
        x = net.input(1, 64, 28, 28)
        for layer in layers:
            x = layer(net, x)
        net.output(x)
        compiled = build_for("sim", net.model(), HwParams(), VTA)
        dram = np.zeros(compiled.program.meta["dram_bytes"], np.uint8)
        return simulate(compiled.program, dram, VTA, values=False).cycles

    def pointwise(net: Net, x: str) -> str:
        return net.conv(x, 64, 1)

    def depthwise(net: Net, x: str) -> str:
        return net.conv(x, 64, 3, groups=64)

    alone = 2 * cycles(pointwise) + cycles(depthwise)
    assert cycles(pointwise, depthwise, pointwise) < 0.85 * alone


def test_padding_that_is_there_is_not_loaded_again() -> None:
    layer = next(layer for layer in TABLE_2 if layer.name == "D8")
    compiled = build_for("sim", layer.model(), HwParams(), VTA)
    loads = [i for i in compiled.program.insns if isinstance(i, Load) and i.memory == "inp"]
    padded = [load for load in loads if load.pad_top]
    assert len(loads) == 32 and len(padded) == 2  # one for each virtual thread
    x = np.random.default_rng(2).normal(0, 2, (1, 512, 14, 14)).astype(np.float32)
    dram = compiled.dram([x])
    simulate(compiled.program, dram, VTA)
    assert np.array_equal(compiled.results(dram, [x])[0], interpret(compiled.graph, x)[0])


def test_equally_named_operators_are_told_apart() -> None:
    """ONNX does not ask names of nodes to be unique."""
    model = separable().model()
    for node in model.graph.node:
        if node.op_type in ("Conv", "Add"):
            node.name = "same"
    compiled = build_for("sim", model, HwParams(), VTA)
    x = np.random.default_rng(3).normal(0, 2, (1, 32, 28, 28)).astype(np.float32)
    dram = compiled.dram([x])
    simulate(compiled.program, dram, VTA)
    assert np.array_equal(compiled.results(dram, [x])[0], interpret(compiled.graph, x)[0])
