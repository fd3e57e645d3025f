"""Files and objects that are no model which is read: what they are, and what to do with them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from os.path import isdir, isfile
from pathlib import Path, PurePosixPath

from ...isa.errors import VdlaError

#: How many bytes of a file are looked at.
HEAD_BYTES = 512
#: How many files of a folder or an archive a message names.
NAMED = 3
#: Suffixes of files that are read.
SUFFIXES = (".onnx", ".tflite", ".pt2", ".keras")
_EXPORT_TORCH = (
    "build the module in PyTorch and write torch.export.save(torch.export.export(module, inputs),"
    " 'model.pt2')"
)
_EXPORT_KERAS = "load it in Keras and write model.export('model.onnx', format='onnx')"
_EXPORT_LANGUAGE = "export the model that has these weights to ONNX, for example with optimum-cli"
_UNPACK = "unpack it, and give the model that is in it"
#: What a file is that has these bytes at this place, and what to do.
_BEGINNINGS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer",
     "run 'git lfs pull' in its repository, which brings the file itself"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras)", _EXPORT_KERAS),
    (0, b"GGUF", "a GGUF file, the weights of a language model",
     f"vdla generate writes text with one of the architecture llama; or {_EXPORT_LANGUAGE}"),
    (4, b"ORTM", "a model in ONNX Runtime's own format",
     "give the ONNX file that it was made from"),
    (4, b"ET12", "an ExecuTorch program", _EXPORT_TORCH),
    (0, b"\x93NUMPY", "an array of NumPy", "give a model; arrays are inputs"),
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"\xfd7zXZ", "an xz archive", _UNPACK),
    (0, b"\x80\x02", "a pickle (PyTorch before 1.6)", _EXPORT_TORCH),
    (257, b"ustar", "a tar archive", _UNPACK),
)  # fmt: skip


def refuse_other_kinds(source: object, where: str, *accepted: type) -> None:
    """Refuse a file, the bytes of one, or an object that is certainly no model of any format that
    is read. ``accepted`` are types of loaded models.

    Raises
    ------
    VdlaError
        One line that says what it is and what to do.
    """
    if isinstance(source, accepted):
        return
    if not isinstance(source, str | Path | bytes):
        cls = type(source)
        name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
        raise VdlaError(f"expected a model (a path, a file's bytes, a loaded model), got a {name}")
    path = None if isinstance(source, bytes) else Path(source)
    found = _folder(path) if path is not None and isdir(path) else _kind_of(source)
    if found is not None:
        kind, remedy = found
        raise VdlaError(f"{where}: expected a model, got {kind}: {remedy}")


def head_of(source: str | Path | bytes) -> bytes | None:
    """The first bytes of a file; None for one that cannot be read, or not twice, as a pipe."""
    if isinstance(source, bytes):
        return source[:HEAD_BYTES]
    try:
        if not isfile(source):
            return None
        with open(source, "rb") as file:
            return file.read(HEAD_BYTES)
    except (OSError, ValueError):
        return None


def _folder(path: Path) -> tuple[str, str]:
    """What a folder is."""
    names = sorted(item.name for item in path.iterdir())
    if "config.json" in names:
        return (
            "a folder of Hugging Face's",
            "export its model to ONNX (optimum-cli export onnx --model FOLDER OUTPUT)",
        )
    if "manifest.json" in names:
        return "a compiled module", "it is loaded by vdla.load, and run by vdla run"
    models = [name for name in names if name.endswith(SUFFIXES)]
    if models:
        return "a folder", f"give a file in it: {_listed(models)}"
    return (
        "a folder without saved_model.pb",
        f"give a file ({', '.join(SUFFIXES)}) or the folder of a SavedModel; vdla.load loads a"
        " compiled module",
    )


def _kind_of(source: str | Path | bytes) -> tuple[str, str] | None:
    """What a file is and what to do; None for one that may be a model, or that a reader cannot
    open."""
    head, name = head_of(source), "" if isinstance(source, bytes) else Path(source).name
    if head is None:
        return None
    if not head:
        return "an empty file", "was its download cut off?"
    for first, magic, kind, remedy in _BEGINNINGS:
        if head[first : first + len(magic)] == magic:
            return kind, remedy
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "an HTML page", "download the file itself, not the page that shows it"
    if text.startswith(b"<?xml"):
        return "an XML file", "give the ONNX or TensorFlow Lite file that it was made from"
    if head[:4] == b"PK\x03\x04":
        return _archive(source, name)
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return "weights without a model (safetensors)", _EXPORT_LANGUAGE
    if name.endswith(".caffemodel"):
        return "a Caffe model", "convert it to ONNX"
    if head[0] == 0x0A and name.endswith(".pb"):  # the first field of a GraphDef, not of ONNX
        return (
            "a graph of TensorFlow 1",
            "convert it to ONNX (python -m tf2onnx.convert --graphdef)",
        )
    return None


def _archive(source: str | Path | bytes, name: str) -> tuple[str, str] | None:
    """What a zip archive is; None for a program of torch.export that is named like one."""
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
            members = file.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError):
        return "a damaged zip archive", "was its download cut off?"
    names = {PurePosixPath(member).name for member in members}
    if names & {"archive_format", "serialized_exported_program.json"}:
        named = not name or name.endswith(".pt2")
        return None if named else ("a program of torch.export", "name it .pt2")
    if "constants.pkl" in names:
        return "a TorchScript module", _EXPORT_TORCH
    if "data.pkl" in names:
        return "what torch.save wrote (a state_dict or a pickled module)", _EXPORT_TORCH
    if "model.weights.h5" in names:
        return "a Keras archive", _EXPORT_KERAS
    if names and all(member.endswith(".npy") for member in members):
        return "arrays of NumPy (npz)", "give a model; arrays are inputs"
    return "a zip archive", f"{_UNPACK} ({_listed(members)})"


def _listed(names: Iterable[str]) -> str:
    """The first names, which may be of any length."""
    shown = [name[:60] for name in names]
    return ", ".join(shown[:NAMED]) + ", ..." * (len(shown) > NAMED)
