"""TensorFlow's SavedModels, through Python and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")

import vdla  # noqa: E402
from vdla.cli import run_app  # noqa: E402
from vdla.isa.errors import VdlaError  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


class Network(tf.Module):
    """A convolution, a variable, and two inputs, of which one is the batch's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.kernel = tf.Variable(rng.normal(size=(3, 3, 2, 4)).astype("f"))
        self.scale = tf.Variable(rng.normal(size=(4,)).astype("f"))

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, 8, 8, 2), tf.float32, name="image"),
            tf.TensorSpec((None, 4), tf.float32, name="more"),
        ]
    )
    def serve(self, image: Any, more: Any) -> Any:
        y = tf.nn.relu(tf.nn.conv2d(image, self.kernel, 2, "SAME")) * self.scale
        return {"result": tf.nn.softmax(tf.reduce_mean(y, (1, 2)) + more)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Network]:
    network, path = Network(0), tmp_path_factory.mktemp("saved") / "network"
    tf.saved_model.save(network, str(path), signatures=network.serve)
    return path, network


def test_a_folder(folder: tuple[Path, Network], tmp_path: Path) -> None:
    """Compiled for a batch of 1, run on 3 images."""
    path, network = folder
    rng = np.random.default_rng(1)
    image, more = rng.normal(size=(3, 8, 8, 2)).astype("f"), rng.normal(size=(3, 4)).astype("f")
    wanted = network.serve(tf.constant(image), tf.constant(more))["result"].numpy()
    module = vdla.compile(path, "cpu")
    assert sorted(tensor.name for tensor in module.inputs) == ["image", "more"]
    [got] = module.run(image=image, more=more)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    np.savez(tmp_path / "inputs.npz", image=image, more=more)
    arguments = ["--input", str(tmp_path / "inputs.npz"), "--output", str(tmp_path / "out.npz")]
    assert run_app(["run", str(path), "--target", "cpu", *arguments]) == 0
    [again] = np.load(tmp_path / "out.npz").values()
    np.testing.assert_array_equal(again, got)


def test_its_file_becomes_a_module(folder: tuple[Path, Network], tmp_path: Path) -> None:
    path, made = str(folder[0] / "saved_model.pb"), tmp_path / "module"
    assert run_app(["compile", path, "--target", "cpu", "--output", str(made)]) == 0
    assert vdla.load(made).outputs[0].name == "result"


def test_a_damaged_folder_is_one_line(folder: tuple[Path, Network], tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"nothing")
    with pytest.raises(VdlaError, match="tf2onnx cannot convert the SavedModel: ") as caught:
        vdla.compile(tmp_path, "cpu")
    assert "\n" not in str(caught.value)
