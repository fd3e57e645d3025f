"""Somebody deploys a float network: quantise, run by name, save, load, call from C, in batches."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.sim.rtl.driver import build_library, kept_verilog

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = EXAMPLES / "models" / "digits_int8.onnx"
FLOAT = EXAMPLES / "models" / "digits_float.onnx"
IMAGES = np.load(EXAMPLES / "models" / "digits_test.npz")["x"]


@pytest.fixture(scope="module")
def quantized() -> vdla.Module:
    """The network in int8, compiled for the accelerator."""
    found = vdla.quantize(FLOAT, {"image": IMAGES[:200]}, bias_correction=True)
    assert found.report["top1_agreement"] > 0.98
    return vdla.compile(found.model, "sim")


@pytest.mark.slow
def test_run_by_name_save_and_load(quantized: vdla.Module, tmp_path: Path) -> None:
    (image,), (output,) = quantized.inputs, quantized.outputs
    assert (image.name, image.shape, image.dtype) == ("image", (1, 1, 8, 8), "float32")
    assert output.name == "logits"
    (logits,) = quantized.run(image=IMAGES[:20])
    # float64, as NumPy makes it, and a dictionary do the same; a wrong name is refused.
    for given in ({"image": IMAGES[:20].astype(np.float64)}, {"image": IMAGES[:20]}):
        np.testing.assert_array_equal(quantized.run(given)[0], logits)
    with pytest.raises(vdla.VdlaError, match="expected inputs named image, got 'picture'"):
        quantized.run(picture=IMAGES)
    quantized.save(tmp_path / "digits")
    again = vdla.load(tmp_path / "digits")
    np.testing.assert_array_equal(again.run(IMAGES[:20])[0], logits)
    assert again.report["cycles"] == quantized.report["cycles"]


@pytest.mark.slow
def test_batches_on_a_machine_with_rows(tmp_path: Path) -> None:
    """A core that multiplies four rows at once takes the images by fours, and gives the same."""
    model = vdla.quantize(FLOAT, {"image": IMAGES[:100]}).model
    hw = vdla.HwParams(batch=4, block_in=8, block_out=8)
    by_four, by_one = vdla.compile(model, hw=hw), vdla.compile(model, hw="8x8")
    assert by_four.inputs[0].shape == (4, 1, 8, 8)
    np.testing.assert_array_equal(by_four.run(IMAGES[:16])[0], by_one.run(IMAGES[:16])[0])
    assert by_four.report["batches"] == 4 and by_one.report["batches"] == 16
    assert by_four.report["cycles"] < 4 * by_one.report["cycles"]
    with pytest.raises(vdla.VdlaError, match="a multiple of 4"):
        by_four.run(IMAGES[:6])


@pytest.mark.slow
def test_c_on_the_cpu(tmp_path: Path) -> None:
    model = vdla.quantize(FLOAT, {"image": IMAGES[:100]}).model
    module, folder = vdla.compile(model, "cpu"), tmp_path / "digits"
    (expected,) = module.run(IMAGES)
    module.save(folder)
    program = tmp_path / "run_model"
    source = EXAMPLES / "04_c_api" / "run_model.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", folder, f"-Wl,-rpath,{folder}"]
    subprocess.run(["gcc", *flags, source, folder / "model.so", "-o", program], check=True)
    IMAGES.tofile(tmp_path / "images")
    files = [folder / "model.bin", tmp_path / "images", tmp_path / "scores"]
    subprocess.run([program, *files], check=True)
    found = np.fromfile(tmp_path / "scores", np.float32).reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_c_on_the_accelerator(tmp_path: Path) -> None:
    """The C program drives the registers of the Verilog, and gets Python's bits and cycles."""
    hw = vdla.HwParams.load("4x4")
    module, folder = vdla.compile(DIGITS, "rtl", hw), tmp_path / "digits"
    (expected,) = module.run(IMAGES[:1])
    module.save(folder)
    program, source = tmp_path / "run_accelerator", EXAMPLES / "04_c_api" / "run_accelerator.c"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", folder]
    subprocess.run(["gcc", *flags, source, "-o", program, "-ldl"], check=True)
    core = build_library(kept_verilog(hw))
    IMAGES[:1].tofile(tmp_path / "image")
    command = [program, folder, core, tmp_path / "image", tmp_path / "scores"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = np.fromfile(tmp_path / "scores", np.float32).reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)
    assert text == f"logits: {module.report['cycles']} cycles\n"
    # A file that was changed is refused.
    damaged = folder / "step1.vdla"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "the content is another" in done.stderr
