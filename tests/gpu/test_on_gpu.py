"""Kernels on an NVIDIA GPU: exact products, and how its tensor cores round sums (``make gpu``).

They need a driver, and are skipped where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.bench.gpu import TOLERANCE, error_of
from vdla.bench.workloads import TABLE_2
from vdla.cli.arrays import model_inputs
from vdla.compiler.dumps import Dumps
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.func_code import FuncKernels
from vdla.isa.errors import VdlaError
from vdla.runtime.gpu.cuda import load_driver

from ..compiler.targets.gpu.test_epilogues import transformer_layer
from ..compiler.targets.gpu.test_tensor_cores import arrays_for, expected, product, residual

DIGITS = Path(__file__).parents[2] / "examples" / "models" / "digits_int8.onnx"


def has_driver() -> bool:
    try:
        load_driver()
    except VdlaError:
        return False
    return True


pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(not has_driver(), reason="no driver of an NVIDIA GPU"),
]


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_product(dtype: str, by_column: bool) -> None:
    func = product(dtype, by_column)
    arrays = arrays_for(func)
    result = np.zeros(func.params[-1].shape, func.params[-1].dtype)
    FuncKernels.of(func, CUDA, "cuda", Dumps())(*arrays, result)
    np.testing.assert_array_equal(result, expected(arrays))


def test_how_sums_are_rounded(record_property: Callable[[str, object], None]) -> None:
    """Products of random floats: no farther from the exact sums than the products' rounding."""
    func = product("float16")
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=b.shape).astype(b.dtype) for b in func.params[:-1]]
    result = np.zeros(func.params[-1].shape, np.float32)
    FuncKernels.of(func, CUDA, "cuda", Dumps())(*arrays, result)
    a, b = (array.astype(np.float64) for array in arrays)
    sizes = np.abs(a) @ np.abs(b).T
    error = float((np.abs(result[0] - a @ b.T) / sizes).max())
    print(f"largest error of a sum, relative to the sum of absolute products: {error:.3g}")
    record_property("largest_error", error)
    assert error < a.shape[1] * 2.0**-23


#: Layers of the paper's table 2, and the numbers that they are computed in, which have kernels of
#: every template.
LAYERS = (
    ("C12", "int8"), ("C12", "float16"), ("C12", "tf32"), ("C12", "float32"), ("C11", "float16"),
    ("D9", "float32"), ("D9", "int8"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), LAYERS)
def test_a_layer_of_each_template(name: str, kind: str) -> None:
    [layer] = [layer for layer in TABLE_2 if layer.name == name]
    data = layer.model(1, kind == "int8").SerializeToString()
    module = vdla.compile(data, "cuda", precision="float32" if kind == "int8" else kind)
    arrays = model_inputs(module, None, 0)
    assert error_of(module.run(*arrays), vdla.compile(data, "cpu").run(*arrays)) < TOLERANCE[kind]


@pytest.mark.parametrize("kind", ["float32", "tf32", "float16"])
def test_a_layer_of_a_transformer(kind: str) -> None:
    """Rows with sums, epilogues, and products of transposed tensors."""
    data = transformer_layer().SerializeToString()
    module = vdla.compile(data, "cuda", precision=kind)
    arrays = model_inputs(module, None, 0)
    assert error_of(module.run(*arrays), vdla.compile(data, "cpu").run(*arrays)) < TOLERANCE[kind]


def test_networks() -> None:
    for model in (DIGITS, residual(True).SerializeToString()):
        module = vdla.compile(model, "cuda")
        arrays = model_inputs(module, None, 0)
        for got, wanted in zip(
            module.run(*arrays), vdla.compile(model, "cpu").run(*arrays), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)
