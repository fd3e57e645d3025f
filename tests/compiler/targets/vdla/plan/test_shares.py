"""What an operator takes of what all share: the program decides, or a given knob."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import onnx
import pytest
import vdla
from vdla.bench.net import Net
from vdla.compiler.build import CompiledModel, build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.machine import USUAL_EIGHTHS
from vdla.compiler.targets.vdla.plan import program_plan
from vdla.compiler.targets.vdla.plan.planner import Planner
from vdla.compiler.targets.vdla.plan.program_plan import (
    IMAGE_CHUNKS,
    SHARE_SIXTEENTHS,
    SHARES,
    USUAL_CHUNKS,
    WGT_EIGHTHS,
)
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ..rewrite.test_matmul_as_convolution import softmax_attention

VTA = MEMORY_PRESETS["vta"]
WINDOWS = HwParams(vector_window=3)
#: The convolutions of :func:`expansions`.
LAYERS = ("conv_4", "conv_10", "conv_16", "conv_22")


def expansions() -> onnx.ModelProto:
    """Convolutions of one place with many weights and small images."""
    net = Net("expansions")
    image = net.input(1, 128, 7, 7)
    for channels in (512, 128, 512, 128):
        image = net.conv(image, channels, 1)
    net.output(image)
    return net.model()


def depthwise() -> onnx.ModelProto:
    """A depthwise convolution of a large image, between others."""
    net = Net("depthwise")
    image = net.conv(net.input(1, 32, 40, 40), 64, 1)
    net.output(net.conv(net.conv(image, 64, 3, groups=64), 32, 1))
    return net.model()


def inverted_residuals() -> onnx.ModelProto:
    """Depthwise convolutions of large images, between convolutions of one place."""
    net = Net("inverted_residuals")
    image = net.conv(net.input(1, 16, 28, 28), 48, 1)
    for _ in range(2):
        image = net.conv(net.conv(net.conv(image, 96, 1), 96, 3, groups=96), 48, 1)
    net.output(image)
    return net.model()


def compiled(
    knobs: dict | None = None, hw: HwParams = WINDOWS, model: onnx.ModelProto | None = None
) -> CompiledModel:
    target = find_target("sim", Options(hw, VTA, 2, 1))
    return build(model or expansions(), target, knobs=knobs)


def cycles_of(model: CompiledModel) -> int:
    """The cycles of its one program."""
    [program] = model.programs
    dram = np.zeros(program.meta["dram_bytes"], np.uint8)
    return simulate(program, dram, VTA, values=False).cycles


def given(eighths: int) -> dict:
    """The knobs for all layers."""
    return {layer: {WGT_EIGHTHS: eighths} for layer in LAYERS}


def chosen(model: CompiledModel) -> list:
    """The eighths of each layer."""
    by_name = {layer.name: layer for layer in model.layers}
    return [(by_name[name].knobs or {}).get(WGT_EIGHTHS) for name in LAYERS]


def parts_of(model: CompiledModel) -> set:
    """The parts in which images of its layers come."""
    every = [layer.knobs or {} for layer in model.layers]
    return {knobs[IMAGE_CHUNKS] for knobs in every if IMAGE_CHUNKS in knobs}


@pytest.mark.slow
def test_that_is_taken_whose_program_ends_first() -> None:
    cycles = {eighths: cycles_of(compiled(given(eighths))) for eighths in SHARES[WGT_EIGHTHS]}
    best = min(cycles, key=cycles.__getitem__)
    assert cycles[best] < cycles[USUAL_EIGHTHS]
    found = compiled()
    assert chosen(found) == [best] * len(LAYERS) and cycles_of(found) == cycles[best]


def test_of_equal_programs_the_usual_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planner, "_simulated", lambda *_: 1000)
    assert chosen(compiled()) == [USUAL_EIGHTHS] * len(LAYERS)


@pytest.mark.slow
def test_the_choice_is_open_for_each_layer() -> None:
    found = compiled({"conv_16": {WGT_EIGHTHS: 4}})
    others = chosen(compiled())
    assert chosen(found) == [*others[:2], 4, others[3]]
    assert [layer.chosen_by for layer in found.layers if layer.name == "conv_16"] == ["user"]


def test_what_is_legal_is_named() -> None:
    with pytest.raises(VdlaError, match="'conv_10': knob wgt_eighths: expected 1 to 4, got 8"):
        compiled({"conv_10": {WGT_EIGHTHS: 8}})


@pytest.mark.more
def test_images_come_in_parts_where_that_saves_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    model = inverted_residuals()
    found = compiled(model=model)
    assert parts_of(found) == {8}
    monkeypatch.setitem(program_plan.SHARES, IMAGE_CHUNKS, (USUAL_CHUNKS,))
    whole = compiled(model=model)
    assert parts_of(whole) == {USUAL_CHUNKS} and cycles_of(found) < cycles_of(whole)


@pytest.mark.more
def test_a_smaller_share_has_smaller_tiles() -> None:
    apart, places = {"expansion": "apart"}, []
    for share in range(2, 13, 2):
        model = compiled({"conv_10": {SHARE_SIXTEENTHS: share, **apart}}, model=depthwise())
        (layer,) = (layer for layer in model.layers if layer.name == "conv_10")
        assert layer.knobs and layer.knobs[SHARE_SIXTEENTHS] == share
        sizes = (layer.knobs[name] for name in ("oc_blocks", "rows", "cols"))
        places.append(prod(map(int, sizes)))
    assert places == sorted(places) and places[0] < places[-1]


def test_what_is_legal_of_shares_is_named() -> None:
    expected = "'conv_10': knob share_sixteenths: expected 1 to 15, got 16"
    with pytest.raises(VdlaError, match=expected):
        compiled({"conv_10": {SHARE_SIXTEENTHS: 16}}, model=depthwise())


@pytest.mark.slow
def test_what_lacks_one_scratchpad_leaves_its_neighbours_the_others() -> None:
    """A row of 400 keys is more than 9 sixteenths of ``inp``, which it gets alone; the products
    beside it share ``out`` with it."""
    hw = replace(PRESETS["16x16"], inp_depth=512)
    model = softmax_attention(400, 1, 16, 400, 1 / 255, -128, True)
    [name] = [node.name for node in model.graph.node if node.op_type == "Softmax"]
    module = vdla.compile(model, hw=hw, knobs={name: {"share_sixteenths": 9}})
    [softmax] = [layer for layer in module.compiled.layers if layer.op == "QTableSoftmax"]
    assert softmax.name == name and softmax.knobs["share_sixteenths"] == 9
    assert 2 * int(softmax.knobs["positions"]) <= hw.out_depth * 9 // 16
