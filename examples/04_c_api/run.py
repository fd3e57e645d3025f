"""A model in a C program: compile, build with gcc, run, and compare with Python.

``run_model.c`` knows no model: it gets the inputs and outputs from the description that comes with
every model.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import vdla

HERE = Path(__file__).parent
MODELS = HERE.parent / "models"


def build(folder: Path) -> Path:
    """The C program, linked with the model in a folder."""
    program = folder / "run_model"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", folder]
    library = [folder / "model.so", f"-Wl,-rpath,{folder}"]
    subprocess.run([*command, HERE / "run_model.c", *library, "-o", program], check=True)
    return program


def main() -> None:
    """All test images through Python and through C."""
    images = np.load(MODELS / "digits_test.npz")["x"]
    for model in ("digits_int8.onnx", "digits_float.onnx"):
        module = vdla.compile(MODELS / model, target="cpu")
        (expected,) = module.run(images)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "module"
            module.save(folder)
            images.tofile(folder / "images")
            command = [build(folder), folder / "model.bin", folder / "images", folder / "scores"]
            subprocess.run(command, check=True)
            scores = np.fromfile(folder / "scores", np.float32).reshape(expected.shape)
        different = int((scores != expected).sum())
        print(f"{model}: {different} of {expected.size} outputs of C and Python differ", flush=True)


if __name__ == "__main__":
    main()
