"""Saved modules: whole, without the compiler, in a process that never saw it; or refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.runtime import bundle, processor

MODELS = Path(__file__).parents[2] / "examples" / "models"
SHARED = Path(__file__).parents[3] / "shared" / "models"

#: Loads a module and runs it where importing the compiler, or what only it needs, is an error.
FRESH = """
import sys

class NoCompiler:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "onnx" or name.startswith("vdla.compiler"):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, NoCompiler())
import numpy as np, vdla
try:
    import vdla.compiler
except ImportError:
    pass
else:
    sys.exit("the compiler can be imported, so this shows nothing")
module = vdla.load(sys.argv[1])
given = np.load(sys.argv[2])
outputs = module.run(*(given[name] for name in sorted(given.files)))
np.savez(sys.argv[3], *outputs)
print(module.report["cycles"])
"""


def run_fresh(module: Path, arrays: list[np.ndarray], folder: Path) -> tuple[list, str]:
    """The outputs in another process, and the cycles that it reports."""
    np.savez(folder / "in.npz", **{f"x{i}": array for i, array in enumerate(arrays)})
    command = [sys.executable, "-c", FRESH, str(module), "in.npz", "out.npz"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(folder / "out.npz")
    return [found[name] for name in found.files], done.stdout.strip()


def digits(count: int) -> np.ndarray:
    return np.load(MODELS / "digits_test.npz")["x"][:count]


@pytest.mark.this_machine
@pytest.mark.slow
@pytest.mark.parametrize("model", ["digits_int8.onnx", "digits_float.onnx"])
def test_cpu_in_a_fresh_process_without_the_compiler(model: str, tmp_path: Path) -> None:
    module = vdla.compile(MODELS / model, target="cpu")
    module.save(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names == {"manifest.json", "model.so", "model.bin", "vdla.h"}
    (expected,) = module.run(digits(9))
    (got,), _ = run_fresh(tmp_path / "saved", [digits(9)], tmp_path)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.this_machine
@pytest.mark.slow
def test_accelerator_in_a_fresh_process_without_the_compiler(tmp_path: Path) -> None:
    module = vdla.compile(MODELS / "digits_int8.onnx", target="sim")
    module.save(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {"manifest.json", "step0.so", "step0.bin", "step1.vdla"} <= names
    (expected,) = module.run(digits(3))
    (got,), cycles = run_fresh(tmp_path / "saved", [digits(3)], tmp_path)
    np.testing.assert_array_equal(got, expected)
    assert int(cycles) == module.report["cycles"]


@pytest.mark.this_machine
@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sim"])
@pytest.mark.parametrize("model", ["mlperf_resnet8_int8", "mlperf_kws_int8", "mlperf_ad01_int8"])
def test_saved_models_give_the_reference(model: str, target: str, tmp_path: Path) -> None:
    """In a fresh process, what TensorFlow Lite's reference kernels gave."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is missing: no models to compare with")
    vdla.compile(SHARED / model / "model.tflite", target=target).save(tmp_path / "saved")
    data = np.load(SHARED / model / "random.npz")
    (got,), _ = run_fresh(tmp_path / "saved", [data["x0"]], tmp_path)
    np.testing.assert_array_equal(got, data["y0"])


def test_a_loaded_module_has_the_report_and_can_be_saved_again(tmp_path: Path) -> None:
    module = vdla.compile(MODELS / "digits_int8.onnx", target="cpu")
    module.save(tmp_path / "a")
    loaded = vdla.load(tmp_path / "a")
    loaded.save(tmp_path / "b")
    for name in ("model.so", "model.bin", "manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    module.run(digits(2))
    loaded.run(digits(2))
    assert loaded.report | {"wall_s": 0, "host_s": 0} == module.report | {"wall_s": 0, "host_s": 0}


@pytest.mark.this_machine
@pytest.mark.slow
def test_a_module_replaces_another_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    (other,) = vdla.compile(MODELS / "digits_float.onnx", target="cpu").run(digits(1))
    module = vdla.compile(MODELS / "digits_int8.onnx", target="cpu")
    module.save(path)
    np.testing.assert_array_equal(vdla.load(path).run(digits(1)), module.run(digits(1)))
    # The process has a library of this name open; the next one must be another.
    vdla.compile(MODELS / "digits_float.onnx", target="cpu").save(path)
    np.testing.assert_array_equal(vdla.load(path).run(digits(1))[0], other)
    for taken in (tmp_path / "file", tmp_path / "folder"):
        taken.write_text("mine") if taken.name == "file" else taken.mkdir()
        with pytest.raises(vdla.VdlaError, match="expected a module to replace, or nothing"):
            module.save(taken)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "saved"], "nothing is left beside"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules") / "saved"
    vdla.compile(MODELS / "digits_int8.onnx", target="sim").save(path)
    return path


def edit(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """A change of the manifest, with its checksum made right again."""

    def apply(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        change(manifest)
        manifest["sha256"] = bundle._manifest_hash(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))

    return apply


def truncate(name: str) -> Callable[[Path], None]:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size - 2)


def flip(name: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[len(data) // 2] ^= 1
        (path / name).write_bytes(data)

    return apply


DAMAGES = {
    "nothing there": (shutil.rmtree, "expected the folder of a saved module, found nothing"),
    "no manifest": (
        lambda path: (path / "manifest.json").unlink(), "a file manifest.json .*, No such file"
    ),
    "short manifest": (truncate("manifest.json"), None),
    "half a manifest": (
        lambda path: os.truncate(path / "manifest.json", 100), "manifest.json is damaged"
    ),
    "changed manifest": (flip("manifest.json"), None),
    "a folder": (
        lambda path: [(path / "step0.so").unlink(), (path / "step0.so").mkdir()], "Is a directory"
    ),
    "deep nesting": (
        lambda path: (path / "manifest.json").write_text("[" * 100_000), "is damaged"
    ),
    "a list": (lambda path: (path / "manifest.json").write_text("[]"), "is damaged"),
    "short code": (truncate("step0.so"), "expected [0-9]+ bytes in step0.so, got [0-9]+"),
    "changed code": (flip("step0.so"), "step0.so is corrupt"),
    "short parameters": (truncate("step0.bin"), "bytes in step0.bin"),
    "changed program": (flip("step1.vdla"), "step1.vdla is corrupt"),
    "no program": (
        lambda path: (path / "step1.vdla").unlink(), "a file step1.vdla .*, No such file"
    ),
    "another version": (edit(lambda m: m.update(format=2)), "expected a module of format 1, got 2"),
    "another machine": (
        edit(lambda m: m.update(triple="s390x-linux-gnu")), "expected code for .*, got s390x"
    ),
    "a file elsewhere": (
        edit(lambda m: m["files"].update({"../x": [0, ""]})), "is not the name of a file in it"
    ),
    "a field of another type": (
        edit(lambda m: m.update(layers=3)), "is malformed .'int' object is not"
    ),
    "a field missing": (edit(lambda m: m.pop("layers")), "manifest.json lacks 'layers'"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_in_one_line(damage: str, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    apply, words = DAMAGES[damage]
    apply(path)
    with pytest.raises(vdla.VdlaError, match=words) as caught:
        vdla.load(path)
    assert "\n" not in str(caught.value)
    assert ("malformed" in str(caught.value)) == (damage == "a field of another type")


@pytest.mark.parametrize("seed", range(40))
def test_any_flipped_bit_is_found(seed: int, saved: Path, tmp_path: Path) -> None:
    """In a random file; but white space of the manifest means nothing."""
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    rng = np.random.default_rng(seed)
    file = path / str(rng.choice(sorted(os.listdir(path))))
    data = bytearray(file.read_bytes())
    places = [i for i, byte in enumerate(data) if file.suffix != ".json" or byte not in b" \n"]
    data[int(rng.choice(places))] ^= 1 << int(rng.integers(8))
    file.write_bytes(data)
    with pytest.raises(vdla.VdlaError) as caught:
        vdla.load(path)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_module(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"PK")
    with pytest.raises(vdla.VdlaError, match="expected the folder of a saved module, found a file"):
        vdla.load(tmp_path / "m")


def test_a_processor_that_lacks_something(saved: Path) -> None:
    needed = json.loads((saved / "manifest.json").read_text())["features"]
    assert needed, "every processor has some feature"
    known = processor.host()
    poorer = replace(known, features={**known.features, needed[0]: False})
    expected = f"expected a processor with {needed[0]}, this one"
    with processor.assume(poorer), pytest.raises(vdla.VdlaError, match=expected):
        vdla.load(saved)


def test_without_a_linker_saving_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = vdla.compile(MODELS / "digits_int8.onnx", target="cpu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(vdla.VdlaError, match=r"expected g\+\+ to make a shared object, found none"):
        module.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
