"""What is no model, and what no door can take without its package: one line each. No package of a
door need be installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from sklearn.neural_network import MLPRegressor
from vdla.cli import run_app
from vdla.isa.errors import VdlaError

DIGITS = Path(__file__).parents[4] / "examples" / "models" / "digits_int8.onnx"
X = np.ones((1, 4), "f")


class Keras2:
    """An instance of a class of the package tf_keras."""

    __module__ = "tf_keras.src.engine.training"


class Frozen:
    __module__ = "tensorflow.python.eager.def_function"

    def __call__(self) -> None: ...


class Session:
    __module__ = "onnxruntime.capi.onnxruntime_inference_collection"


NOT_MODELS: dict[str, tuple[Any, str]] = {
    "None": (None, "got NoneType"),
    "a number": (3, "got int"),
    "a list": ([DIGITS], "got list"),
    "a set": ({"conv1"}, "got set"),
    "an array": (X, "got ndarray"),
    "a state dict": ({"conv1.weight": X}, "a state dict has weights and no operators"),
    "a class": (MLPRegressor, "got the class MLPRegressor; give an instance of it"),
    "scikit-learn": (MLPRegressor(), "got MLPRegressor; convert it with skl2onnx.to_onnx"),
    "part of ONNX": (onnx.GraphProto(), "got GraphProto; put it into an onnx.ModelProto"),
    "a session": (Session(), "got Session; give the model's file"),
    "Keras 2": (Keras2(), "this is Keras 2; write it with model.export"),
    "a function of TensorFlow": (Frozen(), "got Frozen; write it with tf.saved_model.save"),
}


@pytest.mark.parametrize("name", NOT_MODELS)
def test_what_is_no_model(name: str) -> None:
    model, message = NOT_MODELS[name]
    with pytest.raises(VdlaError, match=message) as caught:
        vdla.compile(model, "cpu")
    assert "\n" not in str(caught.value)
    with pytest.raises(VdlaError, match=message):  # examples do not make a model of it
        vdla.compile(model, "cpu", example_inputs=(X,))


def test_a_compiled_module_is_no_model() -> None:
    module = vdla.compile(DIGITS, "cpu")
    with pytest.raises(VdlaError, match="got Module; it is compiled already"):
        vdla.compile(module, "cpu")  # type: ignore[arg-type]


EXAMPLES: dict[str, tuple[Any, Any, str]] = {
    "of a file": (DIGITS, (X,), "got the file .*digits_int8.onnx, which says what its inputs are"),
    "of bytes": (DIGITS.read_bytes(), (X,), "got bytes, which says what its inputs are"),
    "of ONNX": (onnx.load(DIGITS), (X,), "got ModelProto, which says what its inputs are"),
    "none for a function": (np.tanh, None, "expected a tuple .* with a function, got None"),
    "an array for a function": (np.tanh, X, "expected a tuple .* with a function, got ndarray"),
    "a number for a function": (lambda x: x, 3, "expected a tuple .* with a function, got int"),
    "names for a function": (lambda x: x, {"x": X}, "expected a tuple with a function, got a map"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_wrong_example_inputs(name: str) -> None:
    model, examples, message = EXAMPLES[name]
    with pytest.raises(VdlaError, match=f"example_inputs: .*{message}") as caught:
        vdla.compile(model, "cpu", example_inputs=examples)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "extra", "model"),
    [
        ("keras", "keras", "model.keras"),
        ("tensorflow", "tensorflow", "folder"),
        ("tf2onnx", "tensorflow", "folder"),
        ("jax2onnx", "jax", lambda x: x),
    ],
)
def test_a_missing_package_is_named(
    package: str, extra: str, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.keras").write_bytes(b"PK")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "saved_model.pb").write_bytes(b"")
    monkeypatch.setattr(
        "vdla.compiler.frontends.doors.package.find_spec",
        lambda name: None if name == package else name,
    )
    monkeypatch.setitem(sys.modules, package, None)
    examples = (X,) if callable(model) else None
    if isinstance(model, str):
        model = tmp_path / model
    with pytest.raises(VdlaError) as caught:
        vdla.compile(model, "cpu", example_inputs=examples)
    wanted = f"this needs the package '{package}'; install it with pip install 'vdla[{extra}]'"
    assert str(caught.value) == wanted


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(VdlaError, match=r"none\.keras: cannot read: no such file"):
        vdla.compile(tmp_path / "none.keras", "cpu")
    with pytest.raises(VdlaError, match="cannot read: "):
        vdla.compile("long" * 2000, "cpu")
    with pytest.raises(VdlaError, match=r"got a folder without saved_model\.pb"):
        vdla.compile(tmp_path, "cpu")
    assert run_app(["compile", str(tmp_path), "--output", str(tmp_path / "new")]) == 2
    assert "got a folder without saved_model.pb" in capsys.readouterr().err


def test_no_package_of_a_door_is_imported_without_need() -> None:
    text = (
        f"import sys, vdla; vdla.compile({str(DIGITS)!r}, 'cpu');"
        "found = {'torch', 'keras', 'tensorflow', 'tf2onnx', 'jax', 'jax2onnx'} & set(sys.modules);"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
