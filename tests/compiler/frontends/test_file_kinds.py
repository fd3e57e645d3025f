"""Files that are no model: one line says what each is, and what to do."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.frontends.onnx.model import load_model
from vdla.compiler.frontends.tflite.importer import is_tflite
from vdla.isa.errors import VdlaError

#: A line that a terminal shows whole.
LONGEST = 300
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 17\n"
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()


def archive(*names: str) -> bytes:
    """A zip archive with empty files of these names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return buffer.getvalue()


#: The name of a file, its bytes, what it is called, and a part of what to do.
KINDS = [
    ("a.onnx", POINTER, "a Git LFS pointer", "git lfs pull"),
    ("a.tflite", POINTER, "a Git LFS pointer", "git lfs pull"),
    ("a.pt2", POINTER, "a Git LFS pointer", "git lfs pull"),
    ("a.onnx", b"\n<!DOCTYPE html>\n<html>", "an HTML page", "download the file itself"),
    ("a.tflite", b"<html lang=en>", "an HTML page", "download the file itself"),
    ("a.xml", b"<?xml version='1.0'?><net/>", "an XML file", "made from"),
    ("a.h5", b"\x89HDF\r\n\x1a\n\0\0", "an HDF5 file (Keras)", "model.export('model.onnx'"),
    ("a.pt", archive("a/data.pkl", "a/data/0"), "what torch.save wrote", "torch.export.save"),
    ("a.pt", archive("a/data.pkl", "a/constants.pkl"), "a TorchScript module", "torch.export"),
    ("a.pth", b"\x80\x02\x8a\nl\xfc\x9cF", "a pickle", "torch.export.save"),
    ("a.pt", archive("a/archive_format", "a/models/m.json"), "a program of torch.export", ".pt2"),
    ("a.pb", b"\x0a\x0c\x0a\x01x\x12\x05Const", "a graph of TensorFlow 1", "tf2onnx"),
    ("a.safetensors", struct.pack("<Q", len(HEADER)) + HEADER, "safetensors", "to ONNX"),
    ("a.gguf", b"GGUF\x03\0\0\0", "a GGUF file", "vdla generate writes text"),
    ("a.ort", b"\x18\0\0\0ORTM", "ONNX Runtime's own format", "made from"),
    ("a.pte", b"\x18\0\0\0ET12", "an ExecuTorch program", "torch.export"),
    ("a.caffemodel", b"\x0a\x03net", "a Caffe model", "to ONNX"),
    ("a.npz", archive("x.npy"), "arrays of NumPy (npz)", "arrays are inputs"),
    ("a.npy", b"\x93NUMPY\x01\0", "an array of NumPy", "arrays are inputs"),
    ("a.zip", archive("m/model.onnx", "m/readme"), "a zip archive", "m/model.onnx"),
    ("a.zip", b"PK\x03\x04 cut off", "a damaged zip archive", "cut off"),
    ("a.onnx.gz", b"\x1f\x8b\x08", "a gzip archive", "unpack it"),
    ("a.tar", bytes(257) + b"ustar\0", "a tar archive", "unpack it"),
    ("a.onnx", b"", "an empty file", "cut off"),
    ("a.tflite", b"", "an empty file", "cut off"),
]


@pytest.mark.parametrize(
    "name, data, kind, remedy", KINDS, ids=[f"{kind[:20]}-{name}" for name, _, kind, _ in KINDS]
)
def test_a_file_of_another_kind_is_named(
    tmp_path: Path, name: str, data: bytes, kind: str, remedy: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(VdlaError) as error:
        load_graph(path)
    said = str(error.value)
    assert said.startswith(f"{path}: expected a model, got ")
    assert kind in said and remedy in said.split(kind, 1)[1]
    assert "\n" not in said and len(said) - len(str(path)) < LONGEST


@pytest.mark.parametrize(
    "model", [None, 3, {}, np.zeros(3), object()], ids=lambda m: type(m).__name__
)
def test_an_object_that_is_no_model_is_named(model: object) -> None:
    with pytest.raises(VdlaError, match=f"expected a model .*{type(model).__name__}"):
        load_model(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "files, said",
    [
        ([], "a folder without saved_model.pb: give a file"),
        (["config.json", "model.safetensors"], "Hugging Face.*optimum-cli"),
        (["manifest.json"], "got a compiled module: it is loaded by vdla.load"),
        (["a.onnx", "b.tflite", "read.me"], "give a file in it: a.onnx, b.tflite$"),
    ],
    ids=["empty", "transformers", "compiled", "models"],
)
def test_a_folder_is_named(tmp_path: Path, files: list[str], said: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(VdlaError, match=said):
        load_graph(tmp_path)


def test_all_doors_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(POINTER)
    for refuse in (load_model, vdla.compile, lambda p: load_model(p.read_bytes())):
        with pytest.raises(VdlaError, match="a Git LFS pointer"):
            refuse(path)
    capsys.readouterr()
    assert run_app(["run", str(path)]) == 2
    assert "a Git LFS pointer: run 'git lfs pull'" in " ".join(capsys.readouterr().err.split())


def test_a_tensorflow_lite_file_needs_no_suffix(tmp_path: Path) -> None:
    path = tmp_path / "model.lite"
    path.write_bytes(b"\x1c\0\0\0TFL3")
    assert is_tflite(path) and is_tflite(str(path)) and is_tflite(path.read_bytes())
    assert not is_tflite(tmp_path / "missing.lite")
