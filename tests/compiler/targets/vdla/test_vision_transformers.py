"""Vision transformers, whose tokens fill no blocks, as one program: by ONNX Runtime's quantiser and
by ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from vdla.bench.distance import distances
from vdla.bench.modern import vit_tiny
from vdla.isa.params import HwParams

from .machines import RTL_TABLES

pytestmark = pytest.mark.filterwarnings("default")  # the quantiser's own
HW = HwParams(vector_table=2)


class Samples(CalibrationDataReader):
    def __init__(self, images: np.ndarray):
        self.rows: Iterator[Any] = iter([{"x": image[None]} for image in images])

    def get_next(self) -> Any:
        return next(self.rows, None)


def quantised(model: onnx.ModelProto, images: np.ndarray, by: str, folder: Path) -> Path:
    """The model in int8, by "vdla" or "onnxruntime"."""
    made = folder / "int8.onnx"
    if by == "vdla":
        onnx.save(vdla.quantize(model, images).model, made)
    else:
        onnx.save(model, folder / "float.onnx")
        int8 = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
        quantize_static(folder / "float.onnx", made, Samples(images), **int8)
    return made


def images_of(model: onnx.ModelProto) -> np.ndarray:
    _, *shape = (d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    return np.random.default_rng(3).standard_normal((4, *shape)).astype(np.float32)


#: Side of the image and of a patch, width, heads.
CASES = {
    "17 tokens, heads of 16": (16, 4, 32, 2),
    "50 tokens, heads of 32": (28, 4, 64, 2),
    "10 tokens, heads of 64": (12, 4, 128, 2),
    "65 tokens, a head of 48": (32, 4, 48, 1),
}


@pytest.mark.parametrize(
    ("case", "by"),
    [
        ("17 tokens, heads of 16", "onnxruntime"),
        pytest.param("50 tokens, heads of 32", "onnxruntime", marks=pytest.mark.sweep),
        *(pytest.param(case, "vdla", marks=pytest.mark.sweep) for case in CASES),
    ],
)
def test_one_program(case: str, by: str, tmp_path: Path) -> None:
    """All multiplications are in it, host and accelerator give the same bits, and every operator is
    within a step of ONNX's definition, 99 % of it as defined."""
    side, patch, width, heads = CASES[case]
    model = vit_tiny(side, patch, width, heads, layers=1)
    images = images_of(model)
    made = quantised(model, images, by, tmp_path)
    module = vdla.compile(made, hw=HW)
    y, z = module.run(images[:1])[0], vdla.compile(made, "cpu").run(images[:1])[0]
    np.testing.assert_array_equal(y, z)
    assert len(module.compiled.programs) == 1
    layers = module.compiled.layers
    assert all(layer.target == "accel" for layer in layers if layer.macs)
    kinds = {"ReplaceEnd", "Slice", "QTableSoftmax", "RowDigits", "QNormalise", "TransposeGroups"}
    assert {layer.op for layer in layers if layer.target == "accel"} >= kinds
    rows = distances(made, [images[:1]])
    # Ours quantises a normalisation's result as rows, which a Reshape makes of it.
    seen = {"QTableSoftmax", "QMatMul"} | ({"QLayerNorm"} if by == "onnxruntime" else set())
    assert {row.op for row in rows} >= seen
    for row in rows:
        assert row.largest <= 1 and row.counts[0] >= 0.99 * row.elements, row


@pytest.mark.sweep
def test_the_rtl_takes_the_same_cycles(tmp_path: Path) -> None:
    """A whole network on a small configuration, whose 10 tokens fill no blocks of 4."""
    model = vit_tiny(12, 4, 16, 2, layers=1)
    images = images_of(model)
    made = quantised(model, images, "vdla", tmp_path)
    runs = []
    for target in ("sim", "rtl"):
        module = vdla.compile(made, target, hw=RTL_TABLES)
        runs.append((module.run(images[:1])[0], module.report["cycles"]))
        assert len(module.compiled.programs) == 1
    (y, cycles), (z, others) = runs
    np.testing.assert_array_equal(y, z)
    assert cycles == others


@pytest.mark.sweep
def test_what_a_layer_of_vit_tiny_costs(tmp_path: Path) -> None:
    """197 tokens of three heads of 64: a layer's multiplications take 398,625 cycles at least."""
    model = vit_tiny(layers=1)
    images = images_of(model)
    made = quantised(model, images, "vdla", tmp_path)
    module = vdla.compile(made, hw=HW)
    module.run(images[:1])
    assert len(module.compiled.programs) == 1
    layers = module.report["layers"]
    cycles = {layer["name"]: layer["cycles"] for layer in layers if layer["cycles"]}
    ends = ("conv_0", "concat_3", "add_4", "gemm")
    of_layer = sum(c for name, c in cycles.items() if not name.startswith(ends))
    assert of_layer < 1.4 * 398_625
