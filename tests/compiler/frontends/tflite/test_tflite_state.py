"""State across runs: variables of TensorFlow Lite on every target, saved, reset, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tflite
import vdla
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret_runs
from vdla.isa.errors import VdlaError

from .single.draft import Case, micro
from .single.table import draw
from .tflite_builder import TfliteBuilder

RNG = np.random.default_rng(5)
RUNS = 4


def sequence(case: Case) -> list[list[np.ndarray]]:
    return [case.inputs, *case.later]


def filtered() -> bytes:
    """A convolution of an image whose result is averaged with that of the run before; the
    accelerator computes the convolution, and the addition where it pays."""
    b = TfliteBuilder()
    quant = {"scale": [0.05], "zero": [3]}
    x = b.tensor((1, 8, 8, 16), scale=[0.1], zero=[-2])
    weight = b.tensor((16, 3, 3, 16), scale=[0.01], zero=[0],
                      data=RNG.integers(-60, 60, (16, 3, 3, 16), np.int8))  # fmt: skip
    bias = b.tensor((16,), "int32", data=RNG.integers(-900, 900, 16, np.int32))
    made = b.tensor((1, 8, 8, 16), scale=[0.2], zero=[1])
    b.operator("CONV_2D", [x, weight, bias], [made], "Conv2DOptions", StrideH=1, StrideW=1)
    at = b.tensor((), "resource")
    b.operator("VAR_HANDLE", [], [at], "VarHandleOptions",
               SharedName=b.builder.CreateString("average"))  # fmt: skip
    before, after = (b.tensor((1, 8, 8, 16), **quant) for _ in range(2))
    b.operator("READ_VARIABLE", [at], [before])
    b.operator("ADD", [made, before], [after], "AddOptions")
    b.operator("ASSIGN_VARIABLE", [at, after], [])
    return b.file([x], [after])


@pytest.fixture(scope="module")
def model() -> bytes:
    return filtered()


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return RNG.integers(-128, 128, (RUNS, 1, 8, 8, 16), np.int8)


@pytest.fixture(scope="module")
def expected(model: bytes, images: np.ndarray) -> list[np.ndarray]:
    pytest.importorskip("tflite_micro")
    return micro(Case(model, [images[0]], 1, [[image] for image in images[1:]]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"target": "sim"}, {"target": "cpu"}, {"target": "cuda", "emulate": True}], ids=str
)
def test_targets_keep_state(
    model: bytes, images: np.ndarray, expected: list[np.ndarray], options: dict
) -> None:
    module = vdla.compile(model, hw="8x8" if options["target"] == "sim" else "16x16", **options)
    assert [tensor.name for tensor in module.inputs] == ["tensor_0"]
    assert len(module.outputs) == 1
    for _ in range(2):
        module.reset()
        for image, wanted in zip(images, expected, strict=True):
            np.testing.assert_array_equal(module.run(image)[0], wanted)
    assert not np.array_equal(module.run(images[0])[0], expected[0])


@pytest.mark.slow
def test_several_batches_are_a_sequence(
    model: bytes, images: np.ndarray, expected: list[np.ndarray]
) -> None:
    module = vdla.compile(model, "cpu")
    (made,) = module.run(np.concatenate(images))
    np.testing.assert_array_equal(made, np.concatenate(expected))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_saved_modules_keep_state(
    model: bytes, images: np.ndarray, expected: list[np.ndarray], target: str, tmp_path: Path
) -> None:
    module = vdla.compile(model, target, hw="8x8")
    module.run(images[2])
    module.save(tmp_path / "saved")  # with the initial values, not those of now
    loaded = vdla.load(tmp_path / "saved")
    for image, wanted in zip(images, expected, strict=True):
        np.testing.assert_array_equal(loaded.run(image)[0], wanted)
    assert (tmp_path / "saved" / "state0.bin").read_bytes() == bytes([3]) * 1024
    steps = json.loads((tmp_path / "saved" / "manifest.json").read_text())["steps"]
    if target == "cpu":  # what programs in C see
        assert [t["name"] for t in steps[0]["inputs"]] == ["tensor_0", "state0"]
        assert [t["name"] for t in steps[0]["outputs"]] == ["tensor_6", "state0.next"]


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", ["SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "CALL_ONCE", "WHILE"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_operators_with_state_are_compiled(kind: str, dtype: str) -> None:
    for number in range(3):
        case = draw(kind, dtype, number)
        module = vdla.compile(case.data, "cpu")
        wanted = interpret_runs(import_tflite(case.data), *sequence(case))
        for inputs, outputs in zip(sequence(case), wanted, strict=True):
            for y, z in zip(module.run(*inputs), outputs, strict=True):
                np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6 * (dtype == "float32"))


def test_a_batch_of_the_file_is_not_cut() -> None:
    """On hardware of one image, as the state of all images goes to the next run."""
    b = TfliteBuilder()
    x, kept = b.tensor((2, 4, 4, 1), "float32"), b.tensor((2, 4, 4, 1), "float32")
    weight = b.tensor((1, 3, 3, 1), "float32", data=np.ones((1, 3, 3, 1), np.float32))
    at = b.tensor((), "resource")
    b.operator("VAR_HANDLE", [], [at], "VarHandleOptions",
               SharedName=b.builder.CreateString("v"))  # fmt: skip
    made, y = b.tensor((2, 4, 4, 1), "float32"), b.tensor((2, 4, 4, 1), "float32")
    b.operator("READ_VARIABLE", [at], [kept])
    b.operator("CONV_2D", [x, weight], [made], "Conv2DOptions", StrideH=1, StrideW=1)
    b.operator("ADD", [made, kept], [y], "AddOptions")
    b.operator("ASSIGN_VARIABLE", [at, y], [])
    module = vdla.compile(b.file([x], [y]), hw="8x8")
    images = RNG.normal(size=(2, 4, 4, 1)).astype(np.float32)
    first, second = module.run(images)[0], module.run(images)[0]
    np.testing.assert_allclose(second, 2 * first, rtol=1e-5)


def test_variables_whose_long_names_end_otherwise_are_apart() -> None:
    b, outputs = TfliteBuilder(), []
    x = b.tensor((4,), "float32")
    for last in "ab":
        at, before, after = (b.tensor((), "resource"), *(b.tensor((4,), "float32") for _ in "xy"))
        b.operator("VAR_HANDLE", [], [at], "VarHandleOptions",
                   SharedName=b.builder.CreateString("encoder/layer/" * 8 + last))  # fmt: skip
        b.operator("READ_VARIABLE", [at], [before])
        b.operator("ADD", [before, x if last == "a" else outputs[0]], [after], "AddOptions")
        b.operator("ASSIGN_VARIABLE", [at, after], [])
        outputs.append(after)
    module = vdla.compile(b.file([x], outputs), "cpu")
    ones = np.ones(4, np.float32)
    sums = [tuple(int(y[0]) for y in module.run(ones)) for _ in range(3)]
    assert sums == [(1, 1), (2, 3), (3, 6)]


@pytest.mark.slow
def test_a_failed_run_leaves_the_state(model: bytes, images: np.ndarray) -> None:
    module = vdla.compile(model, "cpu")
    first = module.run(images[0])[0]
    with pytest.raises(VdlaError):
        module.run(images[0][:, :4])
    module.reset()
    np.testing.assert_array_equal(module.run(images[0])[0], first)


# ---- variables and subgraphs ---------------------------------------------------------------------


def refused(data: bytes) -> str:
    with pytest.raises(VdlaError) as error:
        import_tflite(data)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_result_that_is_a_state_is_read_as_both() -> None:
    """The result of the one step of a matrix is the state, which another operator reads, too."""
    b = TfliteBuilder()
    x, y, z = (b.tensor((1, 2), "float32") for _ in range(3))
    one, none = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    weights = [b.tensor(data.shape, "float32", data=data) for data in (one, one, none)]
    state = b.tensor((1, 2), "float32", variable=True)
    b.operator("RNN", [x, *weights, state], [y], "RNNOptions")
    b.operator("NEG", [state], [z])
    value = np.array([[1, 2]], np.float32)
    runs = interpret_runs(import_tflite(b.file([x], [y, z])), [value], [value])
    for number, (made, negative) in enumerate(runs, 1):
        np.testing.assert_array_equal(made, number * value)
        np.testing.assert_array_equal(negative, -number * value)


def test_a_variable_that_nothing_assigns_is_a_constant() -> None:
    b = TfliteBuilder()
    x, kept = b.tensor((2,), "float32"), b.tensor((2,), "float32", variable=True)
    y = b.tensor((2,), "float32")
    b.operator("ADD", [x, kept], [y], "AddOptions")
    data = b.file([x], [y])
    assert not import_tflite(data).states
    (made,) = vdla.compile(data, "cpu").run(np.array([1, 2], np.float32))
    np.testing.assert_array_equal(made, [1, 2])


def branch_with_variable(first: str, second: str) -> bytes:
    """Both branches assign one variable, which the next run reads."""
    b = TfliteBuilder()
    numbers = []
    for kind in (first, second):
        x, at = b.tensor((3,), "float32"), b.tensor((), "resource")
        b.operator("VAR_HANDLE", [], [at], "VarHandleOptions",
                   SharedName=b.builder.CreateString("v"))  # fmt: skip
        before, made = b.tensor((3,), "float32"), b.tensor((3,), "float32")
        b.operator("READ_VARIABLE", [at], [before])
        b.operator(kind, [before, x], [made])
        if kind == "ADD":
            b.operator("ASSIGN_VARIABLE", [at, made], [])
        numbers.append(b.subgraph([x], [made]))
    flag, x, y = b.tensor((1,), "bool"), b.tensor((3,), "float32"), b.tensor((3,), "float32")
    b.operator("IF", [flag, x], [y], "IfOptions",
               ThenSubgraphIndex=numbers[0], ElseSubgraphIndex=numbers[1])  # fmt: skip
    return b.file([flag, x], [y])


def test_only_the_branch_that_is_taken_assigns() -> None:
    pytest.importorskip("tflite_micro")
    data = branch_with_variable("ADD", "SUB")
    runs = [[np.array([flag]), RNG.standard_normal(3).astype(np.float32)]
            for flag in (True, False, True, True, False)]  # fmt: skip
    module = vdla.compile(data, "cpu")
    wanted = micro(Case(data, runs[0], 1, runs[1:]))
    for inputs, y in zip(runs, wanted, strict=True):
        np.testing.assert_array_equal(module.run(*inputs)[0], y)


def test_refusals_of_variables_and_subgraphs() -> None:
    b = TfliteBuilder()
    at = b.tensor((), "resource")
    assert "handle of a variable cannot be given" in refused(b.file([at], [at]))
    b = TfliteBuilder()
    at, y = b.tensor((), "resource"), b.tensor((2,), "float32")
    b.operator("READ_VARIABLE", [at], [y])
    assert "expected a handle from VAR_HANDLE" in refused(b.file([], [y]))
    b = TfliteBuilder()
    x, y = b.tensor((2,), "float32"), b.tensor((2,), "float32")
    b.operator("WHILE", [x], [y], "WhileOptions", CondSubgraphIndex=0, BodySubgraphIndex=0)
    assert "at most 8 subgraphs that call each other" in refused(b.file([x], [y]))
    b = TfliteBuilder()
    x, y = b.tensor((2,), "float32"), b.tensor((2,), "float32")
    b.operator("IF", [x], [y], "IfOptions", ThenSubgraphIndex=7, ElseSubgraphIndex=0)
    assert "expected a condition of one bool, got float32[2]" in refused(b.file([x], [y]))
    b = TfliteBuilder()
    x, y = b.tensor((1,), "bool"), b.tensor((2,), "float32")
    b.operator("IF", [x], [y], "IfOptions", ThenSubgraphIndex=7, ElseSubgraphIndex=0)
    assert "expected one of 1 subgraphs, got 7" in refused(b.file([x], [y]))


def test_a_loop_that_depends_on_inputs_is_refused() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((1,), "float32"), b.tensor((1,), "bool")
    b.operator("LESS", [x, b.tensor((1,), "float32", data=np.ones(1, np.float32))], [y])
    test = b.subgraph([x], [y])
    x, y = b.tensor((1,), "float32"), b.tensor((1,), "float32")
    b.operator("ADD", [x, x], [y], "AddOptions")
    body = b.subgraph([x], [y])
    x, y = b.tensor((1,), "float32"), b.tensor((1,), "float32")
    b.operator("WHILE", [x], [y], "WhileOptions", CondSubgraphIndex=test, BodySubgraphIndex=body)
    assert "depends on the model's inputs" in refused(b.file([x], [y]))


def test_a_damaged_option_is_one_line() -> None:
    b = TfliteBuilder()
    x, y = b.tensor((1, 2, 3), "float32"), b.tensor((1, 2, 3), "float32")
    b.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", [x, -1], [y], "UnidirectionalSequenceLSTMOptions",
               FusedActivationFunction=tflite.ActivationFunctionType.TANH)  # fmt: skip
    assert "input 8 is missing" in refused(b.file([x], [y]))
