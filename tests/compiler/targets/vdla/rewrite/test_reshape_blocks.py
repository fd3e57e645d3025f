"""Reshapes next to dense layers, in the order of the accelerator's blocks, change no value."""

from __future__ import annotations

import numpy as np
import pytest
from vdla.bench.net import Net
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.layout import BlockReshape
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.graph.verify import verify
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.compiler.targets.vdla.rewrite.reshape_blocks import reshape_blocks
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.sim.model.core import simulate

from ....building import build_for, placed


def network(channels: int, shared: bool = False) -> Net:
    """vector -> dense -> image -> convolution -> vector -> dense; ``shared``: the first vector is
    an output, too."""
    net = Net("reshaping")
    vector = net.dense(net.input(1, 24), channels * 6)
    x = net.conv(net.reshape(vector, 1, channels, 2, 3), 16, 3)
    net.output(net.dense(net.flatten(x), 10))
    if shared:
        net.output(vector)
    return net


def graph(channels: int, shared: bool = False) -> Graph:
    return run_passes(import_onnx(network(channels, shared).model()))


def reshapes(graph: Graph) -> int:
    return sum(isinstance(node.op, BlockReshape) for node in graph.nodes)


@pytest.mark.fast(1)
@pytest.mark.parametrize(("channels", "shared", "count"), [(32, False, 2), (8, False, 1),
                                                          (32, True, 1)])  # fmt: skip
def test_same_values(channels: int, shared: bool, count: int) -> None:
    plain = placed(graph(channels, shared))
    rewritten = reshape_blocks(plain, 16)
    verify(rewritten)
    assert reshapes(rewritten) == count
    x = np.random.default_rng(0).normal(0, 2, (1, 24)).astype(np.float32)
    expected = interpret(plain, x)
    assert np.unique(expected[0]).size > 5
    for got in (interpret(rewritten, x), build_cpu(rewritten).run(x)):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_program() -> None:
    vta = MEMORY_PRESETS["vta"]
    compiled = build_for("sim", network(32).model(), HwParams(), vta)
    assert len(compiled.programs) == 1
    x = np.random.default_rng(1).normal(0, 2, (1, 24)).astype(np.float32)
    got = compiled.run([x], lambda program, dram: simulate(program, dram, vta))
    np.testing.assert_array_equal(got[0], interpret(graph(32), x)[0])
