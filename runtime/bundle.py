"""A saved module: a folder with everything that is needed to run it without the compiler.

``manifest.json`` says what the module is for and describes its steps; every other file is named
there with its size and SHA-256. A step on the host is a shared object and its parameters; a step on
the accelerator is a program file. ``model.so``, ``model.bin`` and ``vdla.h`` of a module for the
CPU are its interface for C; ``model.h`` and ``vdla_accelerator.h`` are that of programs. Loading
runs native code: load only what you trust.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.program import Program
from .c_steps import c_steps
from .executable import Executable, LayerInfo, State, Step
from .gpu.program import KernelProgram
from .gpu.saved import describe, restore
from .native import ENTRY_NAME, MemoryPlan, NativeCode, NativeFunction, TensorType, aligned_memory
from .processor import check_features, host, needed_features

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CodeFor:
    """The processor that the native code of a module needs: LLVM's triple and features."""

    triple: str
    features: tuple[str, ...]

    @staticmethod
    def host() -> CodeFor:
        """The processor of this machine."""
        return CodeFor(host().triple, tuple(needed_features()))


@dataclass(frozen=True)
class Settings:
    """What a module was compiled for."""

    target: str
    params: HwParams
    memory: MemoryParams
    vthreads: int
    model_sha256: str
    code_for: CodeFor = field(default_factory=CodeFor.host)
    threads: int = 1


# ---- writing -----------------------------------------------------------------------------------


def save(path: str | Path, executable: Executable, settings: Settings) -> None:
    """Write a module that :func:`load` reads.

    Raises
    ------
    VdlaError
        When something else than a module exists at ``path``, or the code cannot be linked.
    """
    files: dict[str, bytes] = {}
    described = []
    for number, step in enumerate(executable.steps):
        stem = "model" if len(executable.steps) == 1 else f"step{number}"
        described.append(_describe(step, stem, files))
    states = [_describe_state(state, i, files) for i, state in enumerate(executable.states)]
    headers = ["vdla.h"] if settings.target == "cpu" or executable.programs else []
    if executable.programs:
        headers.append("vdla_accelerator.h")
        files["model.h"] = c_steps(_programs(executable, described), described).encode()
    files |= {name: Path(__file__).with_name(name).read_bytes() for name in headers}
    manifest = {
        "format": FORMAT_VERSION,
        "vdla": __version__,
        "target": settings.target,
        "model_sha256": settings.model_sha256,
        "hw": settings.params.to_dict(),
        "memory": settings.memory.to_dict(),
        "vthreads": settings.vthreads,
        "threads": settings.threads,
        "triple": settings.code_for.triple,
        "features": list(settings.code_for.features),
        "inputs": [asdict(tensor) for tensor in executable.inputs],
        "outputs": [asdict(tensor) for tensor in executable.outputs],
        "states": states,
        "layers": [asdict(layer) for layer in executable.layers],
        "steps": described,
        "memory_plan": executable.memory_plans,
        "files": {name: [len(data), _sha256(data)] for name, data in files.items()},
    }
    manifest["sha256"] = _manifest_hash(manifest)
    files[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    _write_folder(Path(path), files)


def _programs(executable: Executable, described: Sequence[Mapping[str, Any]]) -> dict[str, Program]:
    """The programs by the names of their files."""
    pairs = zip(executable.steps, described, strict=True)
    return {known["program"]: step for step, known in pairs if isinstance(step, Program)}


def _describe(step: Step, stem: str, files: dict[str, bytes]) -> dict[str, Any]:
    """Describe one step for the manifest, and add its files to ``files``."""
    if isinstance(step, Program):
        files[f"{stem}.vdla"] = step.to_bytes()
        return {"program": f"{stem}.vdla"}
    if isinstance(step, KernelProgram):
        return describe(step, stem, files)
    if not isinstance(step, NativeCode):
        raise VdlaError(
            f"save: expected steps that are programs or native code, got {type(step).__name__}"
        )
    files[f"{stem}.{step.suffix}"] = step.file()
    files[f"{stem}.bin"] = step.parameters.tobytes()
    return {
        "name": step.name,
        "code": f"{stem}.{step.suffix}",
        "parameters": f"{stem}.bin",
        "inputs": [asdict(tensor) for tensor in step.inputs],
        "outputs": [asdict(tensor) for tensor in step.outputs],
    }


def _describe_state(state: State, number: int, files: dict[str, bytes]) -> dict[str, Any]:
    """Describe a state for the manifest, and add the file of its initial value to ``files``."""
    name, value = f"state{number}.bin", state.initial
    files[name] = value.tobytes()
    return {
        "input": state.input,
        "output": state.output,
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "initial": name,
    }


def _write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write all files or none: they are written beside ``path``, which is then replaced."""
    if path.exists() and not (path / MANIFEST).is_file():
        raise VdlaError(f"{path}: expected a module to replace, or nothing, found something else")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        new.mkdir()
        for name, data in files.items():
            (new / name).write_bytes(data)
        if path.exists():
            path.rename(old)
        new.rename(path)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _manifest_hash(manifest: Mapping[str, Any]) -> str:
    """The hash of everything in a manifest but the hash itself."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


# ---- reading -----------------------------------------------------------------------------------


def load(path: str | Path) -> tuple[Executable, Settings]:
    """Read a module.

    Raises
    ------
    VdlaError
        Unless it is whole, unchanged, of this version, and for this processor.
    """
    path = Path(path)
    manifest = read_manifest(path)
    try:
        return _load(path, manifest)
    except VdlaError:
        raise
    except KeyError as error:
        raise VdlaError(f"{path}: {MANIFEST} lacks {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise VdlaError(f"{path}: {MANIFEST} is malformed ({error})") from None


def _load(path: Path, manifest: Mapping[str, Any]) -> tuple[Executable, Settings]:
    files = {
        name: _read_file(path, name, size, digest)
        for name, (size, digest) in manifest["files"].items()
    }
    code_for = CodeFor(manifest["triple"], tuple(manifest["features"]))
    if any("code" in step for step in manifest["steps"]):
        check_features(path, code_for.triple, code_for.features)
    params = HwParams.from_dict(manifest["hw"], where=f"{path}: hw")
    executable = Executable(
        _types(manifest["inputs"]),
        _types(manifest["outputs"]),
        tuple(map(LayerInfo.from_dict, manifest["layers"])),
        tuple(
            _load_step(path, step, _plan(plan), files)
            for step, plan in zip(manifest["steps"], manifest["memory_plan"], strict=True)
        ),
        # Modules that were saved before this field existed have none.
        states=tuple(_load_state(state, files) for state in manifest.get("states", ())),
    )
    memory = MemoryParams(**manifest["memory"])
    settings = Settings(
        manifest["target"],
        params,
        memory,
        manifest["vthreads"],
        manifest["model_sha256"],
        code_for,
        manifest.get("threads", 1),  # modules that were saved before this field existed
    )
    return executable, settings


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a module, whole and of this version; errors as :func:`load`."""
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise VdlaError(f"{path}: expected the folder of a saved module, found {found}")
    text = _read_bytes(path, MANIFEST)
    try:
        manifest = json.loads(text)
        version, digest = manifest["format"], manifest["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise VdlaError(f"{path}: expected a saved module, {MANIFEST} is damaged") from None
    if version != FORMAT_VERSION:
        raise VdlaError(
            f"{path}: expected a module of format {FORMAT_VERSION}, got {version!r} of VDLA "
            f"{manifest.get('vdla')}; compile the model again"
        )
    if digest != _manifest_hash(manifest):
        raise VdlaError(f"{path}: {MANIFEST} was changed, its content does not match its checksum")
    return manifest


def _read_bytes(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise VdlaError(
            f"{path}: expected a file {name} of a saved module, {error.strerror}"
        ) from None


def _read_file(path: Path, name: str, size: int, digest: str) -> bytes:
    if Path(name).name != name:
        raise VdlaError(f"{path}: {name!r} is not the name of a file in it")
    data = _read_bytes(path, name)
    if len(data) != size:
        raise VdlaError(f"{path}: expected {size} bytes in {name}, got {len(data)}")
    if _sha256(data) != digest:
        raise VdlaError(f"{path}: {name} is corrupt, its content does not match its checksum")
    return data


def _load_step(
    path: Path, step: dict[str, Any], plan: MemoryPlan, files: Mapping[str, bytes]
) -> Program | NativeFunction | KernelProgram:
    if "kernels" in step:
        return restore(step, plan, files)
    if "program" in step:
        return Program.from_bytes(files[step["program"]], path / step["program"])
    if not step["code"].endswith(".so"):
        raise VdlaError(
            f"{path}: expected a shared object, got the object file {step['code']} that is to be"
            " linked; compile the model without a triple for a module that loads"
        )
    library = _open_library(path / step["code"], files[step["code"]])
    entry = library[ENTRY_NAME]
    entry.argtypes, entry.restype = [ctypes.c_void_p] * 4, None
    raw = np.frombuffer(files[step["parameters"]], np.uint8)
    parameters = aligned_memory(raw.size)
    parameters[...] = raw
    return NativeFunction(
        step["name"],
        _types(step["inputs"]),
        _types(step["outputs"]),
        parameters,
        plan,
        lambda: files[step["code"]],
        "so",
        entry,
        library,
    )


def _load_state(state: Mapping[str, Any], files: Mapping[str, bytes]) -> State:
    data = np.frombuffer(files[state["initial"]], state["dtype"])
    return State(state["input"], state["output"], data.reshape(state["shape"]))


def _open_library(path: Path, code: bytes) -> ctypes.CDLL:
    """Load a library from a copy under a new name, because the loader takes any file of a known
    name for the library that it has loaded before."""
    with tempfile.NamedTemporaryFile(suffix=".so") as copy:
        copy.write(code)
        copy.flush()
        try:
            return ctypes.CDLL(copy.name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise VdlaError(f"{path}: cannot be loaded here ({error})") from None


def _plan(entry: Mapping[str, Any]) -> MemoryPlan:
    return MemoryPlan(**{key: value for key, value in entry.items() if key != "where"})


def _types(tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorType, ...]:
    return tuple(
        TensorType(t["name"], tuple(t["shape"]), t["dtype"], t.get("axis", 0)) for t in tensors
    )
