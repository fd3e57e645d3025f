"""Code for other processors, built with their gcc and run under qemu, agrees with this one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.compiler.targets.cpu.processor import CROSS_PROCESSORS

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = EXAMPLES / "models"

#: GNU's triple, its emulator, the machine in an ELF header.
MACHINES = [
    ("aarch64-linux-gnu", "qemu-aarch64", 183),
    ("arm-linux-gnueabihf", "qemu-arm", 40),
    ("riscv64-linux-gnu", "qemu-riscv64", 243),
]


def cross(model: str, triple: str, folder: Path) -> dict:
    """What ``vdla compile --triple --json`` reports."""
    command = ["compile", str(MODELS / model), "--target", "cpu", "--triple", triple]
    report = folder.parent / f"{folder.name}.json"
    assert run_app([*command, "-o", str(folder), "--json", str(report)]) == 0
    return json.loads(report.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("triple", "emulator", "machine"), MACHINES)
def test_an_object_file_of_the_architecture(
    triple: str, emulator: str, machine: int, tmp_path: Path
) -> None:
    report = cross("digits_int8.onnx", triple, tmp_path / "out")
    assert report["triple"] == triple
    assert set(report["files"]) == {"model.o", "model.bin", "vdla.h"}
    code = (tmp_path / "out" / "model.o").read_bytes()
    assert len(code) == report["files"]["model.o"]
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == machine
    with pytest.raises(vdla.VdlaError, match=f"expected code for .*, got {triple.split('-')[0]}"):
        vdla.load(tmp_path / "out")


@pytest.mark.parametrize("model", ["digits_int8.onnx", "digits_float.onnx"])
@pytest.mark.parametrize(("triple", "emulator", "machine"), MACHINES)
def test_outputs_under_qemu(
    triple: str, emulator: str, machine: int, model: str, tmp_path: Path
) -> None:
    compiler = f"{triple}-gcc"
    for tool in (emulator, compiler):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    cross(model, triple, tmp_path / "out")
    build = [compiler, "-std=c11", "-O2", "-static", "-I", tmp_path / "out"]
    sources = [EXAMPLES / "04_c_api" / "run_model.c", tmp_path / "out" / "model.o"]
    subprocess.run([*build, *sources, "-lm", "-o", tmp_path / "run"], check=True)
    images = np.load(MODELS / "digits_test.npz")["x"][:20]
    (expected,) = vdla.compile(MODELS / model, target="cpu").run(images)
    images.tofile(tmp_path / "images")
    command = [emulator, tmp_path / "run", tmp_path / "out" / "model.bin", tmp_path / "images"]
    subprocess.run([*command, tmp_path / "scores"], check=True, stdout=subprocess.DEVNULL)
    scores = np.fromfile(tmp_path / "scores", np.float32).reshape(expected.shape)
    if "int8" in model:
        np.testing.assert_array_equal(scores, expected)
    else:  # vectors of other sizes: float sums are in another order
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_object_file_for_this_machine_is_to_be_linked(tmp_path: Path) -> None:
    triple = next(t for t in CROSS_PROCESSORS if t.startswith("x86_64"))
    cross("digits_int8.onnx", triple, tmp_path / "out")
    with pytest.raises(
        vdla.VdlaError, match=r"expected a shared object, got the object file|got x86"
    ):
        vdla.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "cpu", "--triple", "vax"], "triple: expected one of aarch64-linux-gnu, "),
        (["--triple", "aarch64-linux-gnu"], "triple: expected target 'cpu'"),
        (["--target", "tpu"], "target: expected one of"),
    ],
)
def test_bad_usage(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(MODELS / "digits_int8.onnx")
    assert run_app(["compile", model, *options, "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_table_of_a_compiled_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", str(MODELS / "digits_int8.onnx"), "-o", str(tmp_path / "out")]
    assert run_app(command) == 0
    shown = capsys.readouterr().out
    assert "step1.vdla" in shown
    assert "step 1, DRAM" in shown
    assert vdla.load(tmp_path / "out").target == "sim"
