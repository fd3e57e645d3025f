"""A model in a C program, and in a Rust program where rustc is installed: compile, build, run, and
compare with Python.

``run_model.c`` and ``run_model.rs`` know no model: they get the inputs and outputs from the
description that comes with every model.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import vdla

HERE = Path(__file__).parent
MODELS = HERE.parent / "models"


def build_c(folder: Path) -> Path:
    """The C program, linked with the model in a folder."""
    program = folder / "run_model"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", folder]
    library = [folder / "model.so", f"-Wl,-rpath,{folder}"]
    subprocess.run([*command, HERE / "run_model.c", *library, "-o", program], check=True)
    return program


def build_rust(folder: Path) -> Path:
    """The Rust program, linked with the model in a folder."""
    program = folder / "run_model_rust"
    linked = [f"-Clink-arg={folder / 'model.so'}", f"-Clink-arg=-Wl,-rpath,{folder}"]
    command = ["rustc", "-O", "-Dwarnings", "--edition=2021", HERE / "run_model.rs"]
    subprocess.run([*command, *linked, "-o", program], check=True)
    return program


def main() -> None:
    """All test images through Python and through the other languages."""
    languages = {"C": build_c}
    if shutil.which("rustc"):
        languages["Rust"] = build_rust
    else:
        print("rustc is not installed: no Rust")
    images = np.load(MODELS / "digits_test.npz")["x"]
    for model in ("digits_int8.onnx", "digits_float.onnx"):
        module = vdla.compile(MODELS / model, target="cpu")
        (expected,) = module.run(images)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "module"
            module.save(folder)
            images.tofile(folder / "images")
            for language, build in languages.items():
                files = [folder / name for name in ("model.bin", "images", "scores")]
                subprocess.run([build(folder), *files], check=True)
                scores = np.fromfile(folder / "scores", np.float32).reshape(expected.shape)
                different = int((scores != expected).sum())
                print(
                    f"{model}: {different} of {expected.size} outputs of {language} and Python "
                    "differ",
                    flush=True,
                )


if __name__ == "__main__":
    main()
