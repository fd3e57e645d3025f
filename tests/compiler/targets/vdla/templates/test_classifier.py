"""A classifier begins with the first means, while the convolution before these computes others."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
import vdla
from vdla.bench.net import Net
from vdla.compiler.targets.vdla.cost.tiling import PARTS, ProductShape, plan_tiles
from vdla.compiler.targets.vdla.machine import Budget, Context, Machine
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS, HwParams

#: The classifier has twice the weights that `wgt` holds.
HW = HwParams(block_in=8, block_out=8, wgt_depth=512)
IMAGE = np.random.default_rng(0).uniform(-6, 6, (1, 64, 7, 7)).astype(np.float32)


def network(residual: bool) -> onnx.ModelProto:
    """A convolution, perhaps an addition to its result, a mean and a dense layer."""
    net = Net("classifier")
    x = net.conv(net.input(*IMAGE.shape), 128, 1)
    image = net.conv(x, 128, 3)
    if residual:
        image = net.add(image, x)
    net.output(net.dense(net.flatten(net.global_average(image)), 480))
    return net.model()


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
def test_a_classifier_runs_beside_what_is_classified(residual: bool) -> None:
    """The program says so, because that takes fewer cycles; the values are the CPU's."""
    model = network(residual)
    compiled = partial(vdla.compile, model, hw=HW)
    found = compiled()
    [classifier] = [layer for layer in found.compiled.layers if layer.op == "QDense"]
    assert classifier.knobs["classifier"] == found.compiled.plan["classifier"] == "beside"
    behind = compiled(knobs={classifier.name: {"classifier": "behind"}})
    wanted = vdla.compile(model, "cpu").run(IMAGE)[0]
    assert len(np.unique(wanted)) > 50
    for module in found, behind:
        assert len(module.compiled.programs) == 1
        np.testing.assert_array_equal(module.run(IMAGE)[0], wanted)
    assert found.report["cycles"] < 0.98 * behind.report["cycles"]


def test_its_image_comes_in_parts() -> None:
    """The last convolution of ResNet-18 has smaller tiles of channels than it would choose."""
    machine = Machine(PRESETS["16x16"], MEMORY_PRESETS["vta"], 2)
    shape = ProductShape(oc_blocks=32, oh=7, ow=7, kh=3, kw=3, ic_blocks=32)
    tiles = []
    for in_parts in (False, True):
        context = Context(Budget.whole(machine.params), in_parts=in_parts)
        found = plan_tiles(shape, context, machine)
        assert not isinstance(found, str)
        tiles.append(shape.count_tiles(found[0])[0])
    assert tiles[0] < PARTS * machine.vthreads <= tiles[1]
