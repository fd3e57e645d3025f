"""Keras 3: models and files, with each of its backends that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch, the backend of these tests, is not installed")
os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported, which is once
keras = pytest.importorskip("keras", reason="keras is not installed")

import vdla  # noqa: E402
from keras import layers as L  # noqa: E402
from vdla.isa.errors import VdlaError  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


def convolutional() -> Any:
    return keras.Sequential([
        L.Input((16, 16, 3)), L.Conv2D(8, 3, activation="relu", padding="same"),
        L.BatchNormalization(), L.MaxPooling2D(), L.DepthwiseConv2D(3, padding="same"),
        L.Dropout(0.5), L.Flatten(), L.Dense(10, activation="softmax"),
    ])  # fmt: skip


def recurrent() -> Any:
    x = L.Input((12, 6))
    y = L.LSTM(5)(L.LSTM(7, return_sequences=True)(x))
    return keras.Model(x, L.Dense(3)(y))


class Own(keras.Model):
    """A class of its own, which knows its inputs after a call."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


NETWORKS = {"cnn": (convolutional, (2, 16, 16, 3)), "lstm": (recurrent, (2, 12, 6))}


def expected(model: Any, *arrays: np.ndarray) -> np.ndarray:
    return keras.ops.convert_to_numpy(model(*arrays))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, tmp_path: Path) -> None:
    """As an object, as a file, and as a file on the command line under the other backends."""
    keras.utils.set_random_seed(0)
    build, shape = NETWORKS[name]
    model, x = build(), np.random.default_rng(0).normal(size=shape).astype("f")
    wanted, path = expected(model, x), tmp_path / f"{name}.keras"
    model.save(path)
    for source in (model, path):
        [got] = vdla.compile(source, "cpu").run(x)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    for backend, package in (("tensorflow", "tf2onnx"), ("jax", "jax2onnx")):
        if find_spec(backend) is not None and find_spec(package) is not None:
            got = through_the_command_line(path, x, backend)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def through_the_command_line(path: Path, x: np.ndarray, backend: str) -> np.ndarray:
    """The output for the input in a process whose Keras has another backend."""
    inputs, output = path.with_name("in.npz"), path.with_name("out.npz")
    np.savez(inputs, input_layer=x, input_layer_1=x)
    command = "import sys, numpy, vdla; x = numpy.load(sys.argv[2])['input_layer']; " + (
        "numpy.savez(sys.argv[3], y=vdla.compile(sys.argv[1], 'cpu').run(x)[0])"
    )
    files = [str(path), str(inputs), str(output)]
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-c", command, *files], env=environment, check=True)
    return np.load(output)["y"]


def test_the_command_line_takes_a_file(tmp_path: Path) -> None:
    from vdla.cli import run_app

    model, x = convolutional(), np.ones((1, 16, 16, 3), "f")
    model.save(tmp_path / "cnn.keras")
    np.savez(tmp_path / "in.npz", **{model.inputs[0].name: x})
    files = ["--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz")]
    assert run_app(["run", str(tmp_path / "cnn.keras"), "--target", "cpu", *files]) == 0
    [got] = np.load(tmp_path / "out.npz").values()
    np.testing.assert_allclose(got, expected(model, x), rtol=1e-4, atol=1e-6)


def test_a_model_becomes_int8(tmp_path: Path) -> None:
    """As an object and as a file."""
    model, path = convolutional(), tmp_path / "model.keras"
    model.save(path)
    x = np.random.default_rng(0).standard_normal((4, 16, 16, 3)).astype(np.float32)
    for source in (model, path):
        made = vdla.quantize(source, x)
        found = vdla.compile(made.model).run(x[:1])[0]
        np.testing.assert_allclose(found, expected(model, x[:1]), rtol=0, atol=0.05)


def test_several_inputs_and_outputs() -> None:
    a, b = L.Input((4,), name="a"), L.Input((4,), name="b")
    model = keras.Model({"a": a, "b": b}, [L.Add()([a, b]), L.Dense(3)(a)])
    x = np.random.default_rng(0).normal(size=(1, 4)).astype("f")
    added, dense = vdla.compile(model, "cpu").run(a=x, b=2 * x)
    np.testing.assert_allclose(added, 3 * x, rtol=1e-6)
    assert dense.shape == (1, 3)


def test_a_class_of_its_own_needs_a_call_or_example_inputs() -> None:
    model, x = Own(), np.random.default_rng(0).normal(size=(2, 4)).astype("f")
    with pytest.raises(VdlaError, match=r"expected example_inputs .* neither called nor built"):
        vdla.compile(model, "cpu")
    [got] = vdla.compile(model, "cpu", example_inputs=(x,)).run(x)
    np.testing.assert_allclose(got, expected(model, x), rtol=1e-5)
    [again] = vdla.compile(model, "cpu").run(x)
    np.testing.assert_allclose(again, got, rtol=1e-5)


def test_open_sizes_come_from_example_inputs() -> None:
    model = keras.Sequential([L.Input((None, 6)), L.GRU(4)])
    x = np.random.default_rng(0).normal(size=(1, 9, 6)).astype("f")
    [got] = vdla.compile(model, "cpu", example_inputs=(x,)).run(x)
    np.testing.assert_allclose(got, expected(model, x), rtol=1e-4, atol=1e-6)


def test_wrong_uses_are_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.keras"
    damaged.write_bytes(b"PK\x03\x04 and nothing else")
    cases: list[tuple[Any, Any, str]] = [
        (damaged, None, "damaged.keras: Keras cannot read it: "),
        (L.Dense(3), None, "expected a keras.Model, got Dense"),
        (convolutional(), np.ones(3), "example_inputs: expected a tuple .* got ndarray"),
        (convolutional(), {"x": np.ones(3)}, "example_inputs: expected a tuple .* got a mapping"),
        (convolutional(), (np.ones((1, 3), "f"),), "Keras cannot export it to ONNX with"),
        (Own, None, "got the class Own; give an instance of it"),
    ]  # fmt: skip
    for model, examples, message in cases:
        with pytest.raises(VdlaError, match=message) as caught:
            vdla.compile(model, "cpu", example_inputs=examples)
        assert "\n" not in str(caught.value)
