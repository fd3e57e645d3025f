"""Sizes that a model leaves open and values of inputs, as its user gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import vdla
from vdla.cli import run_app

SEQUENCES = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> g (float[batch, sequence, 4] x, float[?, 4] m) =>'
    " (float[batch, sequence, 4] y) {a = Constant<value_ints=[1]>() s = Softmax<axis=1>(x)"
    " n = ReduceMean<keepdims=0>(m, a) t = Constant<value_ints=[0]>()"
    " r = ReduceMean<keepdims=1>(n, t) y = Mul(s, r)}"
)
CHOICE = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> g (float[1, 8] x, int64 rate) => (float[1, 8] y) {'
    "  k = Constant<value = int64 {16000}>() c = Equal(rate, k) y = If (c) <"
    "    then_branch = a () => (float[1, 8] p) {p = Neg(x)},"
    "    else_branch = b () => (float[?, ?] q) {"
    "      s = Constant<value_ints=[3, 3]>() q = Reshape(x, s)}> }"
)


def expect_equal(module: vdla.Module, model: onnx.ModelProto, *shapes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shapes))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    names = [tensor.name for tensor in module.inputs]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    [wanted] = session.run(None, dict(zip(names, arrays, strict=True)))
    (got,) = module.run(*arrays)
    np.testing.assert_allclose(got, np.asarray(wanted), atol=1e-6, strict=True)


def test_a_range_of_sizes_is_compiled_as_they_come() -> None:
    module = vdla.compile(SEQUENCES, "cpu", dims={"sequence": (1, 12)}, shapes={"m": (2, 4)})
    assert [t.shape for t in module.inputs] == [(1, 12, 4), (2, 4)]
    for length in (12, 5, 7, 5):
        expect_equal(module, SEQUENCES, (1, length, 4), (2, 4))
    with pytest.raises(vdla.VdlaError, match="expected 1 to 12 for dimension 'sequence', got 13"):
        module.run(np.zeros((1, 13, 4), np.float32), np.zeros((2, 4), np.float32))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"input 'x': expected sizes of its open dimensions, got \[batch, sequence, 4\]; give"
             " them with --dim sequence=N or --shape x=NxNx4"),
        ({"dims": {"length": 3}}, r"expected open dimensions of the model \(batch, m.0, sequence"),
        ({"dims": {"sequence": 0}}, "dims: expected a size of at least 1 for 'sequence', .* got 0"),
        ({"dims": {"sequence": (3, 2)}}, r"the smallest and the largest, got \(3, 2\)"),
        ({"shapes": {"z": (1, 2)}}, r"shapes: expected inputs of the model \(m, x\), got 'z'"),
        ({"shapes": {"x": (1, 2)}}, r"a shape like \[batch, sequence, 4\], got \[1, 2\]"),
        ({"shapes": {"x": (1, 2, 5)}}, r"a shape like \[batch, sequence, 4\], got \[1, 2, 5\]"),
        ({"shapes": {"x": (1, -2, 4)}}, r"expected sizes of at least 0 for 'x', got \[1, -2, 4\]"),
        ({"shapes": {"x": (1, 2, 4)}, "dims": {"sequence": 3}}, "expected 3 for dimension 'seq"),
        ({"dims": {"sequence": 3}, "values": {"m": np.ones(3, np.float32)}},
         r"values: input 'm' expects float32\[\?, 4\], got float32\[3\]"),
        ({"dims": {"sequence": 3}, "values": {"k": 1}}, "values: expected inputs of the model"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(vdla.VdlaError, match=said):
        vdla.compile(SEQUENCES, "cpu", **given)


def test_a_value_takes_the_place_of_an_input() -> None:
    with pytest.raises(vdla.VdlaError, match=r"depends on input 'rate' \(--value rate=V"):
        vdla.compile(CHOICE, "cpu")
    module = vdla.compile(CHOICE, "cpu", values={"rate": 16000})
    assert [tensor.name for tensor in module.inputs] == ["x"]
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    np.testing.assert_array_equal(module.run(x)[0], -x)
    for wrong, said in ((1.5, r"got float64\[\] 1.5"), ([1, 2], r"got int64\[2\]")):
        with pytest.raises(vdla.VdlaError, match=f"input 'rate' expects int64, {said}"):
            vdla.compile(CHOICE, "cpu", values={"rate": wrong})


def test_commands_take_sizes_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(SEQUENCES, tmp_path / "s.onnx")
    onnx.save(CHOICE, tmp_path / "c.onnx")
    run = ["run", str(tmp_path / "s.onnx"), "--target", "cpu"]
    assert run_app([*run, "--dim", "sequence=1..6", "--shape", "m=3x4"]) == 0
    assert "float32 1x6x4, sha" in capsys.readouterr().out
    for option, said in {
        "--dim=sequence": "--dim: expected NAME=N or NAME=1..N, got 'sequence'",
        "--shape=x=3xq": "--shape: expected NAME=1x3x32, got 'x=3xq'",
        "--value=m=": "--value: expected NAME=NUMBER or NAME=FILE.npy, got 'm='",
        "--value=m=none.npy": "--value: none.npy: ",
    }.items():
        assert run_app([*run, option]) == 2
        assert said in capsys.readouterr().err
    folder = tmp_path / "module"
    compiled = ["compile", str(tmp_path / "c.onnx"), "--target", "cpu", "-o", str(folder)]
    assert run_app([*compiled, "--value", "rate=16000"]) == 0
    assert [tensor.name for tensor in vdla.load(folder).inputs] == ["x"]


def test_operators_of_a_model_with_open_sizes_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 4, length] x, float s) =>'
        " (float[N, 4, length] y) {z = Constant<value = int8 {3}>() q = QuantizeLinear(x, s, z)"
        " d = DequantizeLinear(q, s, z) r = MaxPool<kernel_shape=[3], pads=[1, 1]>(d)"
        " p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z)}"
    )
    onnx.save(model, tmp_path / "m.onnx")
    given = ["--dim", "length=6", "--value", "s=0.125", "--against", "onnxruntime"]
    assert run_app(["run", str(tmp_path / "m.onnx"), *given, "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["distance"]
    assert {row["name"] for row in rows} and all(row["counts"] for row in rows)
