"""CUDA C++ to machine code for a GPU, by NVIDIA's run-time compiler (the extra ``cuda``).

It needs neither a driver nor a compiler of the host, so that kernels can be compiled, and their
registers counted, where there is no GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ...isa.errors import VdlaError

PACKAGE = "nvidia-cuda-nvrtc"
NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
#: Products and sums are rounded once only where the text says so; ptxas reports what kernels use.
OPTIONS = ("--fmad=false", "--std=c++17", "--ptxas-options=-v")


def compile_cubin(source: str, capability: tuple[int, int]) -> bytes:
    """Machine code of a text for a compute capability, such as (9, 0).

    Raises
    ------
    VdlaError
        Where NVRTC is missing, or refuses the text; then with the first error.
    """
    return compile_logged(source, capability)[0]


def compile_logged(source: str, capability: tuple[int, int]) -> tuple[bytes, str]:
    """As :func:`compile_cubin`, with the log: each kernel's registers, spills, shared memory."""
    library, program = _library(), c_void_p()
    arguments = (byref(program), c_char_p(source.encode()), c_char_p(b"kernels.cu"))
    _check(library.nvrtcCreateProgram(*arguments, c_int(0), None, None))
    options = [*OPTIONS, f"--gpu-architecture={nvrtc_architecture(capability)}"]
    values = (c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, c_int(len(options)), values)
    log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
    text = log.rstrip(b"\0").decode(errors="replace")
    if failed:
        lines = [line for line in text.splitlines() if "error" in line] or [text]
        major, minor = capability
        raise VdlaError(
            f"target cuda: NVRTC refused the kernels for compute capability {major}.{minor} (those "
            f"of --arch sm_80 need 8.0 or higher, those of sm_90a 9.0): {lines[0].strip()}"
        )
    cubin = _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    library.nvrtcDestroyProgram(byref(program))
    return cubin, text


def nvrtc_architecture(capability: tuple[int, int]) -> str:
    """NVIDIA's name of a compute capability; for 9.0 with the instructions that it alone has."""
    return f"sm_{capability[0]}{capability[1]}{'a' if capability == (9, 0) else ''}"


def _text(size_of: Any, copy: Any, program: c_void_p) -> bytes:
    size = c_size_t()
    _check(size_of(program, byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _check(copy(program, data))
    return data.raw


def _check(status: int) -> None:
    if status:
        raise VdlaError(f"target cuda: NVRTC failed with status {status}")


def has_compiler() -> bool:
    """Whether NVIDIA's run-time compiler is at hand."""
    try:
        _library()
    except VdlaError:
        return False
    return True


@cache
def _library() -> ctypes.CDLL:
    for name in _places():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise VdlaError(
        f"target cuda: expected NVIDIA's run-time compiler, found none; pip install {PACKAGE}"
    )


def _places() -> Iterator[str]:
    """Where the library may be: in its package, or where the loader looks."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    found = [Path(str(f.locate())) for f in files if ".so" in f.name]
    for path in sorted(found, key=lambda p: "builtins" not in p.name):
        if "builtins" in path.name:
            ctypes.CDLL(str(path))  # the compiler looks for it by its name
        elif ".alt." not in path.name:
            yield str(path)
    yield from NAMES
