"""Damaged and unsupported TensorFlow Lite files: one line that names the operator or tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret
from vdla.isa.errors import VdlaError

from .single.table import ROWS, TYPES, draw
from .tflite_builder import TfliteBuilder
from .tflite_cases import CASES

CORRUPTED = 300
#: A line that a terminal shows whole.
LONGEST = 400


def refused(data: bytes) -> str:
    with pytest.raises(VdlaError) as error:
        import_tflite(data)
    message = str(error.value)
    assert "\n" not in message and len(message) < LONGEST
    return message


def dense(x: int | None = None, b: TfliteBuilder | None = None, **weight: object) -> bytes:
    """A dense layer whose weight is as given."""
    b = b or TfliteBuilder()
    x = b.tensor((1, 4), "int8", [0.1], [0], name="x") if x is None else x
    given = {"scale": [0.1], "zero": [0], "data": np.ones((3, 4), np.int8), "name": "w"}
    w = b.tensor((3, 4), "int8", **(given | weight))  # type: ignore[arg-type]
    y = b.tensor((1, 3), "int8", [0.1], [0], name="y")
    b.operator("FULLY_CONNECTED", [x, w], [y], "FullyConnectedOptions")
    return b.file([x], [y])


def with_input(dtype: str = "int8", shape: tuple[int, ...] = (1, 4), **input_: object) -> bytes:
    b = TfliteBuilder()
    return dense(b.tensor(shape, dtype, name="x", **input_), b)  # type: ignore[arg-type]


def unary(kind: str, table: str = "", **options: int) -> bytes:
    b = TfliteBuilder()
    x = b.tensor((1, 4, 4, 2), "int8", [0.1], [0])
    y = b.tensor((1, 4, 4, 2), "int8", [0.1], [0])
    b.operator(kind, [x], [y], table, **options)
    return b.file([x], [y])


def shape_is_wrong() -> bytes:
    b = TfliteBuilder()
    x = b.tensor((1, 4), "int8", [0.1], [0])
    y = b.tensor((1, 5), "int8", [0.1], [0])
    b.operator("RELU", [x], [y])
    return b.file([x], [y])


def result_type_is_wrong() -> bytes:
    b = TfliteBuilder()
    x, y = b.tensor((1, 4), "float32"), b.tensor((1, 4), "int8", [0.1], [0])
    b.operator("RELU", [x], [y])
    return b.file([x], [y])


def output_is_missing() -> bytes:
    b = TfliteBuilder()
    x, y = (b.tensor((1, 4), "int8", [0.1], [0]) for _ in range(2))
    return b.file([x], [y])


def index_is_wrong() -> bytes:
    b = TfliteBuilder()
    x = b.tensor((1, 4), "int8", [0.1], [0])
    b.operator("RELU", [x], [7])
    return b.file([x], [x])


def slice_of_computed(kind: str, table: str, *constants: list[int], **options: int) -> bytes:
    """Its begin is an input, and what it says of the shape is not enough."""
    b = TfliteBuilder()
    x, begin, y = b.tensor((2, 3), "float32"), b.tensor((2,), "int32"), b.tensor((2, 1), "float32")
    known = [b.tensor((2,), "int32", data=np.array(value, np.int32)) for value in constants]
    b.operator(kind, [x, begin, *known], [y], table, **options)
    return b.file([x, begin], [y])


def state_is_constant() -> bytes:
    b = TfliteBuilder()
    x, y = (b.tensor((1, 4), "float32") for _ in range(2))
    weights = [b.tensor((4, n), "float32", data=np.ones((4, n), np.float32)) for n in (4, 1)]
    state = b.tensor((1, 4), "float32", data=np.ones((1, 4), np.float32), name="state")
    b.operator("SVDF", [x, *weights, -1, state], [y], "SVDFOptions", Rank=1)
    return b.file([x], [y])


ACTIVATION = {"FilterHeight": 1, "FilterWidth": 1, "StrideH": 1, "StrideW": 1}
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "expected a model, got an empty file: was its download cut off?"),
    "other_file": (lambda: b"not a model at all", "expected a TensorFlow Lite model"),
    "unknown": (lambda: unary("UNIQUE"), "operator 0: UNIQUE is not supported; see docs/tflite.md"),
    "no_input_scale": (with_input, "expected one scale and zero point of tensor 0 'x', got 0"),
    "no_weight_scale": (lambda: dense(scale=[]), "weight tensor 1 'w' has no scale"),
    "buffer_too_short": (
        lambda: dense(stored=np.ones(5, np.int8)),
        "tensor 1 'w': expected 12 bytes of int8[3, 4] in buffer 1, got 5",
    ),
    "computed_weight": (
        lambda: dense(data=None),
        "operator 0 (FULLY_CONNECTED): tensor 1 'w' is read, and nothing before it defines it",
    ),
    "negative_scale": (
        lambda: dense(scale=[-0.5]),
        "quantisation of tensor 1 'w': expected positive finite scales",
    ),
    "scale_per_nothing": (
        lambda: dense(scale=[0.1, 0.2], zero=[0, 0]),
        "expected one scale per element of dimension 0 of [3, 4], got 2",
    ),
    "zero_points": (
        lambda: dense(scale=[0.1] * 3, zero=[0, 0]),
        "quantisation of tensor 1 'w': expected 3 zero points, got 2",
    ),
    "wrong_axis": (
        lambda: dense(scale=[0.1] * 4, zero=[0] * 4, axis=1),
        "weight tensor 1 'w' is scaled along dimension 1, not 0",
    ),
    "zero_point_range": (
        lambda: with_input(scale=[0.1], zero=[300]),
        "zero point 300 of tensor 0 'x' is not int8",
    ),
    "scales_too_far_apart": (
        lambda: with_input(scale=[1e30], zero=[0]),
        "operator 0 (FULLY_CONNECTED): expected a scale from 0 to below 2**30, got ",
    ),
    "float_input": (lambda: with_input("float32"), "computes float32, the file says int8 for"),
    "type": (
        lambda: with_input("int32", scale=[0.1], zero=[0]),
        "operator 0 (FULLY_CONNECTED): supported are int8, uint8, ",
    ),
    "odd_rows": (lambda: with_input(shape=(1, 5), scale=[1], zero=[0]), "has no rows of 4"),
    "shape": (shape_is_wrong, "computes shape [1, 4], the file says [1, 5]"),
    "result_type": (
        result_type_is_wrong,
        "operator 0 (RELU): computes float32, the file says int8 for tensor 1 'tensor_1'",
    ),
    "missing_output": (output_is_missing, "output tensor 1 'tensor_1' is not computed"),
    "wrong_index": (index_is_wrong, "operator 0 (RELU) is damaged: 7 is none of the 1 tensors"),
    "softmax_scale": (
        lambda: unary("SOFTMAX", "SoftmaxOptions", Beta=1),
        "operator 0 (SOFTMAX): expected a result of scale 1/256",
    ),
    "slice_size": (
        lambda: slice_of_computed("SLICE", "", [2, -1]),
        "operator 0 (SLICE): expected constant sizes of a slice whose begin is computed, got -1",
    ),
    "slice_end": (
        lambda: slice_of_computed(
            "STRIDED_SLICE", "StridedSliceOptions", [2, 3], [1, 1], BeginMask=1, EndMask=1
        ),
        "(STRIDED_SLICE): expected a constant begin and end in dimension 1: they decide a shape",
    ),
    "constant_state": (
        state_is_constant,
        "operator 0 (SVDF): expected a variable of float32, got tensor 4 'state', which is none",
    ),
    "stride": (
        lambda: unary("MAX_POOL_2D", "Pool2DOptions", **ACTIVATION | {"StrideH": 0}),
        "operator 0 (MAX_POOL_2D): expected strides of at least 1, got (0, 1)",
    ),
    "window": (
        lambda: unary("MAX_POOL_2D", "Pool2DOptions", **ACTIVATION | {"FilterWidth": 2**30}),
        "expected a window within 16384 pixels",
    ),
    "activation": (
        lambda: unary("MAX_POOL_2D", "Pool2DOptions", FusedActivationFunction=4, **ACTIVATION),
        "fused activation TANH is not supported; supported are NONE, RELU",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_message(name: str) -> None:
    make, expected = BAD[name]
    assert expected in refused(make())


@pytest.mark.slow
def test_command_line_says_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.tflite"
    path.write_bytes(CASES["conv"]()[0][:200])
    assert run_app(["run", str(path), "--target", "cpu"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"vdla: {path}: ") and line.count("\n") == 1
    assert run_app(["run", str(tmp_path / "none.tflite")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.slow
def test_module_runs_saves_and_loads(tmp_path: Path) -> None:
    data, inputs = CASES["inverted_residual"]()
    path = tmp_path / "block.tflite"
    path.write_bytes(data)
    module = vdla.compile(path, target="cpu")
    (y,) = module.run(*inputs)
    module.save(tmp_path / "block.vdlamod")
    (again,) = vdla.load(tmp_path / "block.vdlamod").run(*inputs)
    np.testing.assert_array_equal(again, y)


def test_command_line_takes_inputs_by_name(tmp_path: Path) -> None:
    data, inputs = CASES["add"]()
    path = tmp_path / "add.tflite"
    path.write_bytes(data)
    np.savez(tmp_path / "x.npz", tensor_1=inputs[1], tensor_0=inputs[0])
    output = tmp_path / "y.npz"
    arguments = ["--target", "cpu", "--input", str(tmp_path / "x.npz"), "--output", str(output)]
    assert run_app(["run", str(path), *arguments, "--json", str(tmp_path / "report.json")]) == 0
    (expected,) = interpret(import_tflite(data), *inputs)
    np.testing.assert_array_equal(np.load(output)["tensor_2"], expected)


def corrupt(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut short, bytes changed, words replaced by offsets that do most harm, or noise."""
    changed = bytearray(data)
    match rng.integers(4):
        case 0:
            return data[: rng.integers(len(data))]
        case 1:
            for _ in range(rng.integers(1, 9)):
                changed[rng.integers(len(data))] = rng.integers(256)
        case 2:
            words = [0, 1, 2**32 - 1, 2**31 - 1, 2**31, len(data), 2 * len(data)]
            for _ in range(rng.integers(1, 4)):
                at = int(rng.integers(len(data) // 4)) * 4
                changed[at : at + 4] = int(rng.choice(words)).to_bytes(4, "little")
        case _:
            at = int(rng.integers(len(data)))
            changed[at : at + 64] = rng.bytes(len(changed[at : at + 64]))
    return bytes(changed)


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", ["network", "operator"])
def test_corrupted_files_never_crash(kind: str) -> None:
    rng = np.random.default_rng(5)
    names, kinds = list(CASES), sorted(ROWS)
    refusals = 0
    for _ in range(CORRUPTED):
        if kind == "network":
            data = CASES[names[rng.integers(len(names))]]()[0]
        else:
            dtype = TYPES[rng.integers(len(TYPES))]
            data = draw(kinds[rng.integers(len(kinds))], dtype, int(rng.integers(1000))).data
        data = corrupt(data, rng)
        try:
            import_tflite(data)
        except VdlaError as error:
            refusals += 1
            assert "\n" not in str(error) and len(str(error)) < LONGEST
    assert refusals > CORRUPTED / 2


@pytest.mark.parametrize("name", ['odd "name"\\0', "ends\x00here", "two\nlines", "", "größe"])
def test_names_that_compilers_stumble_over(name: str) -> None:
    b = TfliteBuilder()
    x = b.tensor((1, 4), "int8", [0.1], [0], name=name)
    y = b.tensor((1, 4), "int8", [0.1], [-3], name=name + "2")
    b.operator("RELU", [x], [y])
    value = np.array([[-9, 0, 3, 127]], np.int8)
    data = b.file([x], [y])
    for target in ("cpu", "sim"):
        (result,) = vdla.compile(data, target).run(value)
        np.testing.assert_array_equal(result, [[-3, -3, 0, 124]])
