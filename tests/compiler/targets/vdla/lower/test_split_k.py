"""Products begin before all of their image is there, and stay what they are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from vdla.bench.measure import random_inputs
from vdla.bench.net import Net
from vdla.compiler.build import CompiledModel, build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.lower import split_k as early
from vdla.compiler.targets.vdla.lower.script import Loading, Multiplying, Step
from vdla.compiler.targets.vdla.lower.split_k import MIN_PART_CYCLES, early_products
from vdla.compiler.targets.vdla.lower.stream import Loop, Padding
from vdla.compiler.targets.vdla.plan.program_plan import IMAGE_CHUNKS
from vdla.compiler.tir.ir import Buffer
from vdla.isa.insn import Gemm, Load
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.sim.model.core import simulate

VTA = MEMORY_PRESETS["vta"]
WINDOWS = HwParams(vector_window=3)
#: Rows and columns of an image, and entries of a plane with a border of one place.
ROWS, COLS = 9, 8
PLANE = (ROWS + 2) * (COLS + 2)
IMAGE = Buffer("image", (6, ROWS, COLS, 1, 16), "int8")


def net(kernel: int, stride: int = 1) -> onnx.ModelProto:
    """Two convolutions; the second one reads seven blocks of channels."""
    made = Net("two")
    image = made.conv(made.input(1, 32, 14, 13), 112, 1)
    made.output(made.conv(image, 40, kernel, stride))
    return made.model()


def compiled(model: onnx.ModelProto, parts: int) -> CompiledModel:
    """With knobs for the second convolution, whose tiles have all channels."""
    knobs = {"conv_10": {IMAGE_CHUNKS: parts, "ic_blocks": 7}}
    return build(model, find_target("sim", Options(WINDOWS, VTA, 2, 1)), knobs=knobs)


def insns_of(program: Program, layer: str) -> Counter[str]:
    """How many loads of images and how many products a layer has."""
    runs = next(x["runs"] for x in program.meta["layers"] if x["name"] == layer)
    insns = [insn for first, last in runs for insn in program.insns[first : last + 1]]
    loads = sum(isinstance(insn, Load) and insn.memory == "inp" for insn in insns)
    return Counter(loads=loads, products=sum(isinstance(insn, Gemm) for insn in insns))


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("kernel, stride", [(1, 2), (3, 1), (5, 1)])
def test_results_stay(kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "MIN_PART_CYCLES", 8)
    model = net(kernel, stride)
    inputs = random_inputs(compiled(model, 1).inputs)
    (expected,) = build(model, find_target("cpu", Options(WINDOWS, VTA, 2, 1))).run(
        inputs, lambda program, dram: None
    )
    counts = []
    for parts in (1, 2, 8):
        found = compiled(model, parts)
        (y,) = found.run(inputs, lambda program, dram: simulate(program, dram, VTA))
        np.testing.assert_array_equal(y, expected)
        counts.append(insns_of(found.programs[0], "conv_10"))
    assert counts[0]["loads"] < counts[1]["loads"] < counts[2]["loads"]
    assert all(count["loads"] - counts[0]["loads"] == count["products"] - counts[0]["products"]
               for count in counts)  # fmt: skip


def steps(planes: int = 6, of_image: int = PLANE, init: bool = True) -> list[Step]:
    """A load of an image, a step of another kind, and two products of 3 x 3 places."""
    loops = [Loop(planes, (ROWS * COLS * 16,)), Loop(ROWS, (COLS * 16,)), Loop(COLS, (16,))]
    pads = [Padding(), Padding(1, 1), Padding(1, 1)]
    nest = [
        Loop(ROWS, (COLS, COLS + 2, 0)), Loop(COLS, (1, 1, 0)), Loop(planes, (0, of_image, 9)),
        Loop(3, (0, COLS + 2, 3)), Loop(3, (0, 1, 1)),
    ]  # fmt: skip
    works = [
        Loading("inp", 7, IMAGE, 64, loops, pads, -3),
        Loading("wgt", 0, IMAGE, 0, [Loop(9 * planes, (256,))], [Padding()]),
        Multiplying((5, 7, 11), nest, init),
        Multiplying((500, 7, 11), nest, init),
    ]
    return [Step(f"stage {n}", (IMAGE,), work) for n, work in enumerate(works)]


#: A product of one entry.
ENTRY = [
    Step("", (), Loading("inp", 0, IMAGE, 0, [], [])),
    Step("", (), Multiplying((0, 0, 0), [], True)),
]


def copied(loads: list[Loading]) -> dict[int, int | None]:
    """By entry, the byte that loads copy to it; None for padding."""
    found: dict[int, int | None] = {}
    for load in loads:
        (z, y, x), (none, pad_y, pad_x) = load.loops, load.padding
        assert none == Padding() and load.pad_value == -3
        at = load.base
        for i in range(z.extent):
            for j in range(-pad_y.before, y.extent + pad_y.after):
                for k in range(-pad_x.before, x.extent + pad_x.after):
                    inside = 0 <= j < y.extent and 0 <= k < x.extent
                    byte = i * z.strides[0] + j * y.strides[0] + k * x.strides[0]
                    assert at not in found
                    found[at] = load.offset_bytes + byte if inside else None
                    at += 1
    return found


def multiplied(products: list[Multiplying]) -> dict[int, list[tuple[int, int]]]:
    """By accumulator, the entries of ``inp`` and ``wgt`` that are multiplied for it, in any order;
    what comes before a product that overwrites is gone."""
    found: dict[int, list[tuple[int, int]]] = {}
    for product in products:
        extents = [loop.extent for loop in product.loops]
        steps = np.indices(extents).reshape(len(extents), -1)
        strides = np.array([loop.strides for loop in product.loops])
        of = np.array(product.bases)[:, None] + strides.T @ steps
        if product.init:
            found |= {acc: [] for acc in of[0].tolist()}
        for acc, inp, wgt in of.T.tolist():
            found.setdefault(acc, []).append((inp, wgt))
    return {acc: sorted(pairs) for acc, pairs in found.items()}


@pytest.mark.fast(1)
@pytest.mark.parametrize("init", [True, False])
@pytest.mark.parametrize("parts", [2, 4, 6, 8])
def test_parts_are_the_whole(parts: int, init: bool) -> None:
    before, after = steps(init=init), early_products(steps(init=init), parts)
    count = min(parts, 6)
    stages = [step.stage for step in after]
    assert stages == ["stage 0"] * count + ["stage 1"] + ["stage 2"] * count + ["stage 3"]
    loads = [step.work for step in after if isinstance(step.work, Loading)]
    assert copied(loads[:-1]) == copied([before[0].work])  # type: ignore[list-item]
    products = [step.work for step in after if isinstance(step.work, Multiplying)]
    whole = [step.work for step in before if isinstance(step.work, Multiplying)]
    assert multiplied(products) == multiplied(whole)
    # Each product reads what its own load has brought.
    for load, product in zip(loads[:-1], products[:-1], strict=True):
        read = {inp for pairs in multiplied([product]).values() for inp, _ in pairs}
        assert read == set(copied([load]))


@pytest.mark.parametrize(
    "whole",
    [steps(planes=1), steps(of_image=PLANE + 1), steps()[:2], steps()[1:], ENTRY],
    ids=["one plane", "another pitch", "no product", "no load", "one entry"],
)
def test_else_nothing_changes(whole: list[Step]) -> None:
    assert early_products(whole, 4) == whole
    assert early_products(steps(), 1) == steps()


def test_small_images_stay_whole() -> None:
    loops, nest = [Loop(8, (160,)), Loop(10, (16,))], [Loop(10, (1, 1, 0)), Loop(8, (0, 10, 1))]
    small = [
        Loading("inp", 0, IMAGE, 0, loops, [Padding()] * 2),
        Multiplying((0, 0, 0), nest, True),
    ]
    found = early_products([Step("", (), work) for work in small], 8)
    assert len(found) == 2 and 8 * 10 < 2 * MIN_PART_CYCLES
