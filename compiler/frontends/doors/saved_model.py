"""The door of TensorFlow: SavedModel folders, by ``tf2onnx``.

``tf2onnx`` keeps recurrent layers, which TensorFlow's converter to TensorFlow Lite refuses where
the batch is open. It runs in a process of its own: TensorFlow takes seconds and writes a log.
"""

from __future__ import annotations

import os
import subprocess
import sys
from os.path import isfile
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from ....isa.errors import VdlaError
from .package import need_found

#: The file that makes a folder a SavedModel.
FILE = "saved_model.pb"


def is_saved_model(model: object) -> bool:
    """Whether a model is a path to a SavedModel: its folder, or the file in it."""
    if not isinstance(model, str | Path):
        return False
    return Path(model).name == FILE or isfile(Path(model) / FILE)


def convert_saved_model(model: str | Path) -> onnx.ModelProto:
    """The ONNX model of a SavedModel's signature ``serving_default``.

    Raises
    ------
    VdlaError
        Where TensorFlow or tf2onnx is missing, and where it cannot read or convert the model.
    """
    need_found("tensorflow")
    need_found("tf2onnx")
    folder = Path(model).parent if Path(model).name == FILE else Path(model)
    with TemporaryDirectory() as made:
        path = Path(made) / "model.onnx"
        command = [sys.executable, "-m", "tf2onnx.convert", "--saved-model", str(folder)]
        done = subprocess.run(
            [*command, "--output", str(path)],
            capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )  # fmt: skip
        if done.returncode or not path.is_file():
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise VdlaError(
                f"{folder}: tf2onnx cannot convert the SavedModel:"
                f" {said[-1].strip() if said else f'exit status {done.returncode}'}"
            )
        return onnx.load(path)
