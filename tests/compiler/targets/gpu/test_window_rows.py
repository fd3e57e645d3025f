"""Convolutions of few channels on tensor cores: rows of windows come by copies of 16 bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
import vdla
from vdla.compiler.graph.arithmetic.requant import requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.channels_last import TO_FIRST
from vdla.compiler.graph.ops.convolution import Conv2d, QConv2d
from vdla.compiler.targets.gpu.passes.window_rows import window_rows
from vdla.runtime.gpu.program import KernelProgram


@dataclass(frozen=True)
class Case:
    """A window: rows and columns, steps, and the border (top, left, bottom, right)."""

    channels: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: int
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    rows_apart: int = 1

    @property
    def attributes(self) -> str:
        return (
            f"pads = {[*self.pads]}, strides = {[self.stride] * 2}, "
            f"dilations = [{self.rows_apart}, 1]"
        )


CASES = (
    Case(3, (13, 15), (7, 7), 2, (3, 3, 3, 3)),
    Case(4, (28, 31), (8, 8), 4),
    Case(3, (7, 9), (5, 5), 1, (2, 1, 0, 3)),
    Case(1, (12, 12), (7, 7), 2, (3, 3, 3, 3)),
    Case(3, (14, 13), (3, 3), 2, (0, 0, 1, 1)),
    Case(2, (14, 15), (3, 6), 2, (1, 4, 2, 0), rows_apart=2),
    Case(6, (7, 8), (1, 1), 1),
)
IMAGES, OUTPUTS = 2, 16
GROUPED = {
    "unit": "wgmma", "rows": 64, "columns": 16, "warp_rows": 64, "warp_columns": 16, "stages": 2,
}  # fmt: skip


def model(kind: str) -> bytes:
    """A convolution of each case. All factors are small integers, so that sums of floats are exact
    in any order. The real 0 of int8 is at -7."""
    rng = np.random.default_rng(3)
    constants: dict[str, np.ndarray] = {
        "s": np.asarray(0.05, np.float32), "z": np.asarray(-7, np.int8),
        "one": np.asarray(1, np.float32), "none": np.asarray(0, np.int8),
    }  # fmt: skip
    inputs, outputs, lines = [], [], []
    for n, case in enumerate(CASES):
        inputs.append(f"float[{IMAGES}, {case.channels}, {case.size[0]}, {case.size[1]}] x{n}")
        outputs.append(f"float[n, {OUTPUTS}, h{n}, w{n}] y{n}")
        weights = rng.integers(-9, 10, (OUTPUTS, case.channels, *case.kernel))
        bias = rng.integers(-20, 20, OUTPUTS)
        constants[f"b{n}"] = bias.astype(np.float32) * np.float32(0.05 if kind == "int8" else 1)
        if kind != "int8":
            constants[f"w{n}"] = weights.astype(np.float32)
            lines.append(f"y{n} = Conv<{case.attributes}>(x{n}, w{n}, b{n})")
            continue
        constants[f"w{n}"] = weights.astype(np.int8)
        lines += [
            f"q{n} = QuantizeLinear(x{n}, s, z)", f"d{n} = DequantizeLinear(q{n}, s, z)",
            f"f{n} = DequantizeLinear(w{n}, one, none)",
            f"c{n} = Conv<{case.attributes}>(d{n}, f{n}, b{n})",
            f"r{n} = QuantizeLinear(c{n}, one, z)", f"y{n} = DequantizeLinear(r{n}, one, z)",
        ]  # fmt: skip
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]>\n'
        f"few ({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {' '.join(lines)} }}"
    )
    for name, value in constants.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return made.SerializeToString()


def images(kind: str) -> list[np.ndarray]:
    """Integers; int8 has steps of 0.05."""
    rng = np.random.default_rng(5)
    step = np.float32(0.05 if kind == "int8" else 1)
    return [
        rng.integers(-90, 90, (IMAGES, case.channels, *case.size)).astype(np.float32) * step
        for case in CASES
    ]


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "arch"),
    [
        ("tf32", "sm_80"), ("int8", "sm_90a"),
        *(pytest.param(*case, marks=pytest.mark.sweep) for case in (
            ("float16", "sm_80"), ("bfloat16", "sm_80"), ("int8", "sm_80"), ("bfloat16", "sm_90a"),
            ("tf32", "sm_90a"), ("float16", "sm_90a"),
        )),
    ],
)  # fmt: skip
def test_it_equals_the_processor(kind: str, arch: str) -> None:
    precision = "float32" if kind == "int8" else kind
    options: dict[str, Any] = {"emulate": True, "precision": precision, "arch": arch}
    layers = vdla.compile(model(kind), "cuda", **options).compiled.layers
    names = [layer.name for layer in layers if "channels last" in layer.op]
    knobs = GROUPED | {"depth": {"int8": 64, "tf32": 16}.get(kind, 32)}
    if arch == "sm_90a":
        options["knobs"] = dict.fromkeys(names, knobs)
    module = vdla.compile(model(kind), "cuda", **options)
    padded = [node for node in module.compiled.graph.nodes if node.op.name.startswith("PadLast")]
    assert len(names) == len(padded) == len(CASES)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    parts = step.source.split("__global__")[1:]
    products = [part for part in parts if "acc_shared" in part.partition("(const")[0]]
    assert all(re.search(r"(copy_async_16|bulk_copy_2d)\(&left", part) for part in products)
    assert not any(re.search(r"\n *left\[", part) for part in products)  # single elements
    arrays = images(kind)
    wanted = vdla.compile(model(kind), "cpu").run(*arrays)
    seen = interpret(module.compiled.graph, *arrays)
    for case, got, right, value in zip(CASES, module.run(*arrays), wanted, seen, strict=True):
        assert np.ptp(right) > 0
        np.testing.assert_array_equal(got, right, err_msg=str(case))
        np.testing.assert_array_equal(value, right, err_msg=str(case))


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_all_begins_at_multiples_of_16_bytes(case: Case, element_bytes: int) -> None:
    op = Conv2d((case.stride, case.stride), case.pads, (case.rows_apart, 1), 1)
    image = (IMAGES, case.channels, *case.size)
    weights = np.ones((OUTPUTS, case.channels, *case.kernel), np.float32)
    found = window_rows(op, image, weights.shape, element_bytes)
    assert found is not None
    _, columns, channels = found.image.shape
    for elements in (columns * channels, case.stride * channels, found.columns * channels):
        assert not elements * element_bytes % 16
    rearranged = found.weights(weights)
    assert rearranged.shape == (OUTPUTS, case.kernel[0], found.columns, channels)
    assert rearranged.sum() == weights.sum()


@pytest.mark.parametrize("case", CASES)
def test_the_border_of_an_image_of_int8_is_its_zero_point(case: Case) -> None:
    rng = np.random.default_rng(4)
    image = rng.integers(-128, 128, (IMAGES, case.channels, *case.size)).astype(np.int8)
    weights = rng.integers(-9, 10, (OUTPUTS, case.channels, *case.kernel)).astype(np.int8)
    bias = rng.integers(-20, 20, OUTPUTS).astype(np.int32)
    scale = requant(np.array([0.1 / weights[0].size ** 0.5]), 3)
    op = QConv2d((case.stride, case.stride), case.pads, (case.rows_apart, 1), 1, -7, scale)
    found = window_rows(op, image.shape, weights.shape, 1)
    assert found is not None
    padded, rows = found.image.evaluate(image), found.weights(weights)
    wanted = op.evaluate(image, weights, bias)
    got = found.op.evaluate(padded.transpose(TO_FIRST), rows.transpose(TO_FIRST), bias)
    assert len(np.unique(wanted)) > 100
    # Columns behind those of the image fill a copy.
    np.testing.assert_array_equal(got[..., : wanted.shape[3]], wanted)


@pytest.mark.parametrize(
    ("case", "dilations"),
    [
        (Case(1, (12, 12), (5, 5), 1), (1, 1)),  # 30 copies of 8 elements for 25
        (Case(16, (12, 12), (3, 3), 1), (1, 1)),
        (Case(3, (12, 12), (3, 3), 2), (1, 2)),
    ],
)
def test_what_does_not_pay(case: Case, dilations: tuple[int, int]) -> None:
    op = Conv2d((case.stride, case.stride), case.pads, dilations, 1)
    image, weights = (1, case.channels, *case.size), (OUTPUTS, case.channels, *case.kernel)
    assert window_rows(op, image, weights, 2) is None
