"""Depthwise convolutions whose windows slide: the results are those of the graph's interpreter, and
take fewer cycles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from vdla.bench.measure import measure
from vdla.bench.net import Net
from vdla.compiler.build import CompiledModel
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.targets.vdla.expressions import Window
from vdla.compiler.targets.vdla.templates.windows import Slide, plan_slide
from vdla.isa.insn import Vector
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS, HwParams
from vdla.sim.model.core import simulate

from ....building import build_for
from .test_grouped import grouped

VTA = MEMORY_PRESETS["vta"]
SMALL = replace(PRESETS["4x4"], inp_depth=256, out_depth=96)


def depthwise(
    kernel: tuple[int, int],
    stride: int,
    size: tuple[int, int],
    pads: tuple[int, int, int, int] | None = None,
    dilation: int = 1,
) -> onnx.ModelProto:
    """One depthwise convolution of 6 channels, with windows of any shape."""
    net = Net("depthwise")
    net.output(net.conv(net.input(1, 6, *size), 6, 1, groups=6))
    model = net.model()
    [conv] = [node for node in model.graph.node if node.op_type == "Conv"]
    top, left = kernel[0] // 2, kernel[1] // 2
    changed = {
        "kernel_shape": list(kernel), "strides": [stride] * 2, "dilations": [dilation] * 2,
        "pads": list(pads or (top, left, top, left)),
    }  # fmt: skip
    for attribute in [a for a in conv.attribute if a.name in changed]:
        conv.attribute.remove(attribute)
    conv.attribute.extend(onnx.helper.make_attribute(*item) for item in changed.items())
    return _with_kernel(model, conv, kernel)


def _with_kernel(
    model: onnx.ModelProto, conv: onnx.NodeProto, kernel: tuple[int, int]
) -> onnx.ModelProto:
    """The model with random weights of a kernel's shape, and results of unknown shape."""
    makers = {output: node for node in model.graph.node for output in node.output}
    name = makers[conv.input[1]].input[0]
    [weight] = [t for t in model.graph.initializer if t.name == name]
    values = np.random.default_rng(1).integers(-127, 128, (6, 1, *kernel), np.int8)
    weight.CopyFrom(onnx.numpy_helper.from_array(values, name))
    [result] = model.graph.output
    for dim in result.type.tensor_type.shape.dim[2:]:
        dim.ClearField("dim_value")
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)


def windows(compiled: CompiledModel) -> list[Vector]:
    """The instructions of windows that slide."""
    insns = [insn for program in compiled.programs for insn in program.insns]
    return [insn for insn in insns if isinstance(insn, Vector) and insn.op == "window"]


CASES = [
    ((3, 3), 1, (9, 11), None), ((3, 3), 2, (9, 11), None), ((3, 3), 2, (10, 12), (0, 0, 1, 1)),
    ((5, 5), 1, (9, 11), None), ((5, 5), 1, (7, 7), None), ((5, 5), 2, (9, 11), None),
    ((7, 7), 1, (9, 13), None), ((7, 7), 3, (16, 16), None), ((1, 5), 1, (3, 30), None),
    ((3, 5), 2, (9, 12), (1, 2, 1, 1)), ((3, 3), 1, (3, 40), (0, 0, 0, 0)),
    ((2, 4), 1, (6, 9), (0, 0, 0, 0)), ((4, 2), 1, (6, 9), (1, 1, 1, 1)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("products", [2, 3, 4])
@pytest.mark.parametrize(("kernel", "stride", "size", "pads"), CASES, ids=str)
def test_results_are_those_of_the_interpreter(
    kernel: tuple[int, int],
    stride: int,
    size: tuple[int, int],
    pads: tuple[int, int, int, int] | None,
    products: int,
) -> None:
    """``measure`` compares them."""
    model = depthwise(kernel, stride, size, pads)
    found = measure(model, replace(SMALL, vector_window=products), VTA, ("sim",))
    border = pads or (kernel[0] // 2, kernel[1] // 2) * 2
    window = Window(kernel, (stride, stride), border)
    assert bool(windows(found.compiled)) is (plan_slide(window, *size, products) is not None)


@pytest.mark.parametrize(
    ("kernel", "stride", "products", "expected"),
    [(3, 1, 3, Slide(3, 1, 1)), (3, 2, 3, Slide(2, 2, 1)), (5, 1, 3, Slide(3, 1, 2)),
     (5, 2, 3, Slide(3, 2, 1)), (7, 1, 3, Slide(3, 1, 3)), (7, 2, 3, Slide(2, 2, 2)),
     (3, 1, 2, Slide(2, 1, 2)), (3, 1, 4, Slide(3, 1, 1)), (4, 1, 4, Slide(4, 1, 1)),
     (1, 1, 3, None), (3, 3, 3, None), (3, 1, 0, None)],
)  # fmt: skip
def test_how_windows_slide(kernel: int, stride: int, products: int, expected: Slide | None) -> None:
    """Kernels that are wider than there are products are cut into pieces; where that is not faster,
    nothing slides."""
    window = Window((kernel, kernel), (stride, stride), (kernel // 2,) * 4)
    assert plan_slide(window, 28, 28, products) == expected
    # A row of one result takes as long in either way.
    assert plan_slide(Window((3, 3)), 3, 3, 3) is None


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("cols", "stride", "slides"), [(5, 1, True), (5, 2, True), (7, 1, True), (7, 2, False)]
)
def test_weights_of_two_parts(cols: int, stride: int, slides: bool) -> None:
    """Loops over parts, pieces, columns of a step, rows and results are one too many for an
    instruction."""
    graph = grouped(6, (1, 1), (9, 15), (3, cols), (stride, stride), wide=True)
    hw = replace(PRESETS["8x8"], vector_window=3)
    compiled = build_for("sim", graph, hw, VTA)
    x = np.random.default_rng(1).integers(-128, 128, graph["x"].shape).astype(np.int8)
    (got,) = compiled.run([x], lambda program, dram: simulate(program, dram, VTA))
    np.testing.assert_array_equal(got, interpret(graph, x)[0])
    assert bool(windows(compiled)) is slides


def test_a_dilated_window_does_not_slide() -> None:
    found = measure(
        depthwise((3, 3), 1, (9, 11), (2, 2, 2, 2), dilation=2),
        replace(SMALL, vector_window=3), VTA, ("sim",),
    )  # fmt: skip
    assert not windows(found.compiled)


@pytest.mark.slow
def test_iterations_of_a_window() -> None:
    """Nine products of 3 x 3 in three iterations and a few more at the ends of rows, 25 of 5 x 5 in
    ten; without the feature, the program is what it always was."""
    for kernel, expected in ((3, 28 * 3 * (28 + 2)), (5, 28 * 10 * (28 + 2))):
        model = depthwise((kernel, kernel), 1, (28, 28))
        hw = replace(PRESETS["8x8"], vector_window=3)
        # Rows in one piece, so that their ends come once.
        found = windows(measure(model, hw, VTA, ("sim",)).compiled)
        iterations = sum(insn.iterations for insn in found)
        assert expected <= iterations <= 1.2 * expected
    plain = measure(model, replace(PRESETS["8x8"], vector_window=0), VTA, ("sim",))
    assert not windows(plain.compiled)
    assert HwParams().hash == "de45ae47"


@pytest.mark.slow
def test_windows_slide_on_the_rtl() -> None:
    """Bytes and cycles, over two blocks with a stride, in two passes."""
    net = Net("blocks")
    x = net.input(1, 8, 14, 14)
    for kernel, stride in ((3, 1), (5, 2), (5, 1), (3, 2), (7, 1)):
        x = net.conv(net.conv(x, 8, kernel, stride, groups=8), 8, 1)
    net.output(x)
    hw = replace(PRESETS["4x4"], vector_window=3, vector_passes=2)
    assert windows(measure(net.model(), hw, VTA, ("sim", "rtl")).compiled)
