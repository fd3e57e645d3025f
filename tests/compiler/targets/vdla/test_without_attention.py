"""Networks of tokens without attention are one program: tokens are the places of images, which
become images of several rows for convolutions, or are transposed on the accelerator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from vdla.bench.modern import FloatNet
from vdla.compiler.build import CompiledModel
from vdla.compiler.targets.vdla.machine import ACCELERATOR, HOST
from vdla.isa.params import HwParams
from vdla.sim.model.core import simulate

from ...building import build_for
from .templates.test_matmul import VTA
from .test_squeeze import quantised

HW = HwParams(vector_table=2, vector_window=3)


def segformer(net: FloatNet, x: str) -> str:
    """A feed-forward network with a depthwise convolution before its GELU (Xie et al. 2021)."""
    _, width, side, _ = net.shapes[x]
    x = net.transpose(net.reshape(x, 1, width, side * side), 0, 2, 1)
    h = net.transpose(net.linear(x, 64), 0, 2, 1)
    h = net.conv(net.reshape(h, 1, 64, side, side), 64, 3, groups=64, relu=False)
    h = net.transpose(net.reshape(h, 1, 64, side * side), 0, 2, 1)
    return net.linear(net.gelu(h), width)


def convnext(net: FloatNet, x: str) -> str:
    """Channels are normalised last; the result has a factor for each of them (Liu et al. 2022)."""
    width = net.shapes[x][1]
    x = net.transpose(net.layer_norm(net.transpose(x, 0, 2, 3, 1)), 0, 3, 1, 2)
    y = net.conv(x, width, 7, groups=width, relu=False)
    y = net.mlp(net.layer_norm(net.transpose(y, 0, 2, 3, 1)), 64)
    y = net.times(y, net.random("scale", width))
    return net.conv(net.binary("Add", x, net.transpose(y, 0, 3, 1, 2)), width, 2, 2, relu=False)


def mixer(net: FloatNet, x: str) -> str:
    """Layers along the tokens, and layers along the channels (Tolstikhin et al. 2021)."""
    _, width, side, _ = net.shapes[x]
    x = net.transpose(net.reshape(x, 1, width, side * side), 0, 2, 1)
    mixed = net.mlp(net.transpose(net.layer_norm(x), 0, 2, 1), 48)
    x = net.binary("Add", x, net.transpose(mixed, 0, 2, 1))
    return net.binary("Add", x, net.mlp(net.layer_norm(x), 64))


def compiled_from(layers: Callable[[FloatNet, str], str], side: int) -> tuple[CompiledModel, ...]:
    """For the accelerator and for the CPU, behind a convolution to 32 channels."""
    net = FloatNet("tokens")
    net.output(layers(net, net.conv(net.input(1, 16, side, side), 32, 1, relu=False)))
    model = quantised(net.model())
    return build_for("sim", model, HW, VTA), build_for("cpu", model, HW, VTA)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("layers", "side", "kinds"),
    [
        (segformer, 8, {"QConvTable"}),
        (segformer, 7, {"QConvTable"}),
        (convnext, 8, {"RowDigits", "QNormalise", "QConvTable", "QConvAdd"}),
        (convnext, 7, {"RowDigits", "QNormalise", "QConvTable", "QConvAdd"}),
        (mixer, 8, {"RowDigits", "QNormalise", "QConvTable", "QAdd", "TransposeGroups"}),
    ],
)
def test_it_is_one_program(
    layers: Callable[[FloatNet, str], str], side: int, kinds: set[str]
) -> None:
    """The host works only before the first and after the last operator of it, nothing is copied,
    and all values are those of the CPU."""
    made, host = compiled_from(layers, side)
    targets = [layer.target for layer in made.layers]
    first = targets.index(ACCELERATOR)
    last = len(targets) - targets[::-1].index(ACCELERATOR)
    assert HOST not in targets[first:last] and len(made.programs) == 1
    found = {layer.op for layer in made.layers[first:last]}
    assert kinds <= found and not {"Slice", "QTable"} & found
    x = [np.random.default_rng(1).standard_normal((1, 16, side, side)).astype(np.float32)]
    (y,) = made.run(x, lambda program, dram: simulate(program, dram, VTA))
    np.testing.assert_array_equal(y, host.run(x, lambda program, dram: None)[0])


def test_what_fills_no_blocks_is_transposed_by_the_host() -> None:
    """49 tokens that are channels, on their way back."""
    made, host = compiled_from(mixer, 7)
    assert len(made.programs) > 1
    x = [np.random.default_rng(1).standard_normal((1, 16, 7, 7)).astype(np.float32)]
    (y,) = made.run(x, lambda program, dram: simulate(program, dram, VTA))
    np.testing.assert_array_equal(y, host.run(x, lambda program, dram: None)[0])
