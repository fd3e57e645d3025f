"""Long sums that threads share, rows with sums, and elements side by side of one thread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    lanes = 32 if columns == 1 else 64
    assert f"[{lanes}];" in program.source and "__syncthreads();" in program.source
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


def rows_model(text: str, shape: Sequence[int], **constants: np.ndarray) -> bytes:
    header = '<ir_version: 8, opset_import: ["" : 17]>\n'
    rows = f"rows (float{list(shape)} x) => (float{list(shape)} y)"
    model = onnx.parser.parse_model(f"{header}{rows} {{ {text} }}")
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model.SerializeToString()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


SHAPES = [(3, 1), (3, 7), (2, 33), (2, 3, 197), (1, 3, 5, 64), (2, 1000), (2, 5000), (1, 13000)]


@pytest.mark.parametrize("target", ["cuda", "opencl"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_with_sums_are_one_kernel(shape: tuple[int, ...], target: str) -> None:
    """Softmax, with a scale and a mask of ``-inf`` before it, and layer normalisation; rows of 5000
    elements have no room in shared memory for two buffers, those of 13000 not for one."""
    if target == "opencl":
        pytest.importorskip("pyopencl")
    x = (RNG.normal(size=shape) * 3).astype(np.float32)
    hidden = np.where(RNG.random(shape[-2:]) < 0.3, -np.inf, 0).astype(np.float32)
    hidden[..., 0] = 0
    scale = np.array(0.125, np.float32)
    gain, shift = (RNG.normal(size=shape[-1]).astype(np.float32) for _ in range(2))
    wide = x.astype(np.float64)
    cases = [
        (rows_model("y = Softmax<axis = -1>(x)", shape), softmax(wide)),
        (rows_model("z = Mul(x, s) w = Add(z, m) y = Softmax<axis = -1>(w)", shape,
                    s=scale, m=hidden), softmax(wide * 0.125 + hidden)),
        (rows_model("y = LayerNormalization<axis = -1>(x, g, b)", shape, g=gain, b=shift),
         normalised(wide) * gain + shift),
    ]  # fmt: skip
    for model, wanted in cases:
        program = program_of(vdla.compile(model, target, emulate=target == "cuda"))
        assert len(program.calls) == 1
        assert program.calls[0].grid == (math.prod(shape[:-1]), 1, 1)
        np.testing.assert_allclose(program.run(x)[0], wanted, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("lanes", [32, 64, 512])
def test_every_number_of_lanes_adds_up(lanes: int) -> None:
    """In every order of threads, to the same bits."""
    model = rows_model("y = Softmax<axis = -1>(x)", (2, 300))
    [name] = [n for layer in vdla.compile(model, "cuda", emulate=True).compiled.layers
              if (n := layer.name) and layer.kernels]  # fmt: skip
    module = vdla.compile(model, "cuda", emulate=True, knobs={name: {"lanes": lanes}})
    program = program_of(module)
    assert program.calls[0].block == (min(lanes, 300), 1, 1)
    x = RNG.normal(size=(2, 300)).astype(np.float32)
    results = [
        replace(program, open=lambda p, o=order: EmulatedSession(p, o)).run(x)[0]
        for order in ORDERS
    ]
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        np.testing.assert_allclose(result, softmax(x.astype(np.float64)), rtol=2e-6)


def test_rows_that_others_read_are_stored() -> None:
    """Exponentials that are an output stay apart from the sum, and short rows of many stay apart,
    too."""
    text = "e = Exp(x) s = ReduceSum<keepdims = 1>(e, axis) d = Div(e, s) y = Add(e, d)"
    axis = np.array([1], np.int64)
    whole = rows_model(text, (3, 40), axis=axis)
    assert len(program_of(vdla.compile(whole, "cuda", emulate=True)).calls) == 1
    model = onnx.load_from_string(whole)
    model.graph.output.append(onnx.helper.make_tensor_value_info("e", 1, (3, 40)))
    program = program_of(vdla.compile(model.SerializeToString(), "cuda", emulate=True))
    assert len(program.calls) == 2
    x = RNG.normal(size=(3, 40)).astype(np.float32)
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(program.run(x)[0], e + e / e.sum(1, keepdims=True), rtol=2e-6)
    short = rows_model("y = Softmax<axis = -1>(x)", (1 << 14, 4))
    assert len(program_of(vdla.compile(short, "cuda", emulate=True)).calls) == 4
