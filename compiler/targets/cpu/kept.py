"""Compiled graphs in the cache folder: machine code, found by everything that it depends on.

That is a graph's loop programs before any pass, in order, with the operands of their calls; the
processor; LLVM's version; and the compiler's own source. Where all this is equal, so is the code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from ....runtime.cache import cache_dir, keep_checked, read_checked, source_digest
from .processor import Processor


@dataclass(frozen=True)
class KeptCode:
    """An object file, and the bytes of workspace of each of its kernels."""

    object_file: bytes
    workspaces: tuple[int, ...]


def place_of(processor: Processor, parts: Iterable[str]) -> Path:
    """The file for the code that depends on these ``parts``, for a processor."""
    versions = (
        llvmlite.__version__,
        str(llvm.llvm_version_info),
        source_digest("compiler", "runtime"),
    )
    digest = hashlib.sha256()
    for part in (*versions, repr(processor), *parts):
        digest.update(hashlib.sha256(part.encode()).digest())
    return cache_dir() / f"cpu_{digest.hexdigest()[:32]}.bin"


def read(place: Path) -> KeptCode | None:
    """Code that was kept; None where it is missing or damaged."""
    data = read_checked(place)
    if data is None:
        return None
    head, _, object_file = data.partition(b"\n")
    return KeptCode(object_file, tuple(json.loads(head)))


def keep(place: Path, code: KeptCode) -> None:
    """Keep code for :func:`read`."""
    keep_checked(place, json.dumps(code.workspaces).encode() + b"\n" + code.object_file)
