"""Squeeze-and-excitation on the accelerator: means of large images, and an image times a value for
each of its channels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from vdla.bench.measure import measure
from vdla.bench.modern import FloatNet
from vdla.compiler.choose.template import Plan
from vdla.compiler.graph.arithmetic.requant import Requant, defined_mul_requant, requant
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.integer import QMul
from vdla.compiler.graph.ops.pooling import QAvgPool
from vdla.compiler.quantize import quantize
from vdla.compiler.targets.vdla.expressions import Epilogue
from vdla.compiler.targets.vdla.machine import Budget, Context, Machine
from vdla.compiler.targets.vdla.templates.global_average import Means, MeanWorkload
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS, HwParams

from .machines import RTL_TABLES
from .templates.test_matmul import check_values, one_operator

VTA = MEMORY_PRESETS["vta"]
DEFAULT, SMALL = HwParams(), PRESETS["4x4"]
TABLE = HwParams(vector_table=1)


def product(
    shape: tuple[int, ...], zeros: tuple[int, int] = (-7, 100), rounding: str = "even"
) -> Graph:
    """An image and a value for each channel; the results fill int8."""
    epilogue = requant(np.array([1 / 120]), -3)
    if rounding == "tflite":
        numbers = np.array([1 << 30], np.int32), np.array([6], np.int32)
        epilogue = Requant(*numbers, -3, rounding=rounding)
    return one_operator(QMul(*zeros, epilogue), shape, (*shape[:2], 1, 1))


PRODUCTS = {
    "whole blocks": (product((1, 32, 8, 8)), DEFAULT),
    "channels that fill no blocks": (product((1, 37, 5, 7)), DEFAULT),
    "one place": (product((1, 20, 1, 2)), DEFAULT),
    "more places than tmp has entries": (product((1, 16, 20, 30)), DEFAULT),
    "zero points at the ends": (product((1, 16, 9, 9), (-128, 127)), DEFAULT),
    "no zero points": (product((1, 16, 9, 9), (0, 0)), DEFAULT),
    "rounded twice": (product((1, 16, 9, 9), rounding="tflite"), DEFAULT),
    "blocks of 4": (product((1, 6, 9, 11)), SMALL),
    "two passes": (product((1, 24, 9, 11)), HwParams(vector_passes=2)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", PRODUCTS)
def test_a_product_equals_the_interpreter(case: str) -> None:
    check_values(*PRODUCTS[case])


def mean(shape: tuple[int, ...], zero_point: int = 5) -> Graph:
    """The mean of each channel, eight times as large: it fills int8."""
    height, width = shape[2:]
    epilogue = requant(np.array([8 / (height * width)]), -3)
    op = QAvgPool((height, width), (1, 1), (0, 0, 0, 0), False, zero_point, epilogue)
    return one_operator(op, shape)


MEANS = {
    "28 x 28": (mean((1, 144, 28, 28)), DEFAULT),
    "56 x 56": (mean((1, 20, 56, 56)), DEFAULT),
    "112 x 112": (mean((1, 16, 112, 112), -128), DEFAULT),
    "blocks of 4": (mean((1, 106, 12, 18)), SMALL),
    "little room": (mean((1, 104, 12, 12)), replace(SMALL, inp_depth=40)),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize("case", MEANS)
def test_a_mean_of_a_large_image_equals_the_interpreter(case: str) -> None:
    check_values(*MEANS[case])


def test_where_loads_are_scarce_sums_have_few_instructions() -> None:
    """Each part of a sum has two instructions, which come over the bus as loads do."""
    machine = Machine(HwParams(vector_window=3, tmp_depth=512), VTA, 2)
    means, context = Means(machine), Context(Budget.whole(machine.params), beside=True)
    parts = []
    for scarce in (False, True):
        workload = MeanWorkload(42, 196, replace(context, scarce_loads=scarce), Epilogue())
        found = means.plan(workload, {})
        assert isinstance(found, Plan)
        parts.append(found.knobs["part"])
    assert parts == [28, 98]


@pytest.mark.parametrize("seed", range(8))
def test_products_are_rounded_as_onnx_defines(seed: int) -> None:
    """Of all 65,536 pairs, with float32 as QuantizeLinear and DequantizeLinear compute it."""
    rng = np.random.default_rng(seed)
    scales = tuple(float(np.float32(s)) for s in rng.uniform(0.002, 0.1, 3) * (1, 1, 0.5))
    zeros = tuple(int(z) for z in rng.integers(-128, 128, 3))
    values = np.arange(-128, 128)
    x, factor = (
        (values - zero).astype(np.float32) * np.float32(scale)
        for zero, scale in zip(zeros[:2], scales[:2], strict=True)
    )
    steps = np.rint(x[:, None] * factor / np.float32(scales[2])) + zeros[2]
    expected = np.clip(steps, -128, 127)
    found = defined_mul_requant(scales, zeros, -128, 127).apply(
        np.multiply.outer(values - zeros[0], values - zeros[1]).astype(np.int32)
    )
    differing = expected != found
    assert differing.sum() <= 8 and np.abs(expected - found).max() <= 1


def squeezed(side: int = 28) -> onnx.ModelProto:
    """A convolution, squeeze-and-excitation, and another convolution, in float32."""
    net = FloatNet("squeezed")
    x = net.squeezed(net.conv(net.input(1, 3, side, side), 24, 3, 1), 8, "Sigmoid")
    net.output(net.conv(x, 16, 1, relu=False))
    return net.model()


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    [value] = model.graph.input
    shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    rng = np.random.default_rng(0)
    return quantize(model, {value.name: rng.standard_normal((4, *shape[1:]), np.float32)}).model


@pytest.mark.slow
def test_it_is_one_program_with_the_values_of_onnx_runtime() -> None:
    model = quantised(squeezed())
    found = measure(model, TABLE, VTA, ("sim",))
    assert len(found.compiled.programs) == 1
    layers = {layer.op: layer.target for layer in found.compiled.layers}
    assert layers["QMul"] == layers["QAvgPool"] == "accel"
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [name] = [value.name for value in session.get_inputs()]
    expected = np.asarray(session.run(None, {name: found.inputs[0]})[0])
    (got,) = found.outputs
    step = np.diff(np.unique(expected)).min()
    assert np.abs(got - expected).max() <= 1.01 * step
    assert (got == expected).mean() >= 0.99


@pytest.mark.slow
def test_the_rtl_takes_the_same_cycles() -> None:
    """``measure`` compares every byte of DRAM, and the start and end of every instruction."""
    found = measure(quantised(squeezed(12)), RTL_TABLES, VTA, ("sim", "rtl"))
    assert len(found.compiled.programs) == 1
    assert found.cycles_of("sim") == found.cycles_of("rtl")
