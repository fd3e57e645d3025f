"""Long sums that threads share, and elements side by side of one thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest
import vdla
from vdla.module import Module
from vdla.runtime.gpu.emulated import ORDERS, EmulatedSession
from vdla.runtime.gpu.program import KernelProgram

RNG = np.random.default_rng(6)
ROWS, COLUMNS = 5, 203
LONG = {
    "softmax": ("y = Softmax<axis = 1>(x)", COLUMNS),
    "layer norm": ("y = LayerNormalization<axis = 1>(x, g)", COLUMNS),
    "mean": ("y = ReduceMean<axes = [1], keepdims = 1>(x)", 1),
    "largest": ("y = ReduceMax<axes = [1], keepdims = 1>(x)", 1),
}


def model_of(text: str, inputs: int, result: int, **constants: np.ndarray) -> bytes:
    """An operator of rows."""
    header = '<ir_version: 8, opset_import: ["" : 17]>\n'
    rows = ", ".join(f"float[{ROWS}, {COLUMNS}] {name}" for name in "xz"[:inputs])
    model = onnx.parser.parse_model(
        f"{header}rows ({rows}) => (float[{ROWS}, {result}] y) {{ {text} }}"
    )
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model.SerializeToString()


def compiled(text: str, inputs: int, result: int, **constants: np.ndarray) -> Module:
    return vdla.compile(model_of(text, inputs, result, **constants), "cuda", emulate=True)


def program_of(module: Module) -> KernelProgram:
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    return step


def exact(name: str, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """In float64."""
    e = np.exp(x)
    of_rows: Mapping[str, np.ndarray] = {
        "softmax": e / e.sum(1, keepdims=True),
        "layer norm": (x - x.mean(1, keepdims=True))
        / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g,
        "mean": x.mean(1, keepdims=True),
        "largest": x.max(1, keepdims=True),
    }  # fmt: skip
    return of_rows[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_threads_share_long_sums(name: str) -> None:
    """The lanes of a row add up a part each, and get the same bits in every order of threads."""
    text, columns = LONG[name]
    g = RNG.normal(size=COLUMNS).astype(np.float32)
    program = program_of(compiled(text, 1, columns, **({"g": g} if "g)" in text else {})))
    assert "[32];" in program.source and "__syncthreads();" in program.source
    x = (RNG.normal(size=(ROWS, COLUMNS)) * 3).astype(np.float32)
    results = [
        replace(program, open=lambda p, o=order: EmulatedSession(p, o)).run(x)[0]
        for order in ORDERS
    ]
    wanted = exact(name, x.astype(np.float64), g)
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("vector", [4, 1])
def test_elements_side_by_side_are_moved_at_once(vector: int) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]>\n'
    text += "sums (float[3, 64] x, float[3, 64] z) => (float[3, 64] y)"
    text += " { a = Add(x, z)  y = Mul(a, x) }"
    data = onnx.parser.parse_model(text).SerializeToString()
    names = [layer.name for layer in vdla.compile(data, "cuda", emulate=True).compiled.layers]
    knobs = {names[-1]: {"vector": vector}}  # both operators in one
    module = vdla.compile(data, "cuda", emulate=True, knobs=knobs)
    kernel = program_of(module).source.partition('extern "C"')[2]
    assert kernel.count("copy_16(") == (3 if vector == 4 else 0)
    x, z = (RNG.normal(size=(3, 64)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(module.run(x, z)[0], (x + z) * x)
    [moved] = module.compiled.layers[-1].kernels
    assert moved["bytes_read"] == (2 if vector == 4 else 3) * x.nbytes  # x is read twice
    assert moved["bytes_written"] == x.nbytes
    assert set(moved["sectors"].values()) == {1.0}
