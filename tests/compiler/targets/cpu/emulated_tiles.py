"""A processor with AMX for tests: this one, with functions (``tiles.cpp``) in place of the
instructions that it lacks."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import llvmlite.binding as llvm
import numpy as np
from vdla.compiler.targets.cpu import graph_code
from vdla.compiler.targets.cpu.processor import Processor, host
from vdla.compiler.targets.cpu.processor import optimise as real_optimise

INSTRUCTIONS = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64", "tdpbusd")
FEATURES = ("amx-int8", "amx-tile")
COUNTS = ("faults", "products", "loads", "stores", "configurations", "releases")


def without_tiles(processor: Processor) -> Processor:
    """A processor, less AMX."""
    return replace(
        processor, features=tuple(f for f in processor.features if f[1:] not in FEATURES)
    )


def with_tiles(processor: Processor) -> Processor:
    """A processor, and AMX."""
    features = (*without_tiles(processor).features, *(f"+{name}" for name in FEATURES))
    return replace(processor, features=features)


@dataclass
class _Emulated:
    """A module as text, in which functions take the place of the instructions."""

    module: Any
    triple: str = ""
    data_layout: str = ""

    def __str__(self) -> str:
        self.module.triple, self.module.data_layout = self.triple, self.data_layout
        text = str(self.module)
        for name in INSTRUCTIONS:
            text = text.replace(f'@"llvm.x86.{name}"', f'@"vdla_tiles_{name}"')
        return text


def optimise(module: Any, processor: Processor) -> llvm.ModuleRef:
    """As ``processor.optimise``."""
    return real_optimise(_Emulated(module), processor)


@dataclass
class Emulation:
    """``processor`` has AMX."""

    processor: Processor
    functions: ctypes.CDLL

    def counts(self) -> dict[str, int]:
        """What was executed since the last call, and what a processor would have refused."""
        found = np.zeros(len(COUNTS), np.int64)
        self.functions.vdla_tiles_counts(found.ctypes.data_as(ctypes.c_void_p))
        return dict(zip(COUNTS, found.tolist(), strict=True))


def build(folder: Path) -> ctypes.CDLL:
    """Compile the functions, and let machine code find them by name."""
    source, library = Path(__file__).with_name("tiles.cpp"), folder / "tiles.so"
    flags = ("-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run(["g++", *flags, "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    for name in INSTRUCTIONS:
        address = ctypes.cast(getattr(loaded, f"vdla_tiles_{name}"), ctypes.c_void_p).value
        llvm.add_symbol(f"vdla_tiles_{name}", address)
    return loaded


@contextmanager
def emulation(library: ctypes.CDLL, cache: Path) -> Iterator[Emulation]:
    """Compile for a processor with AMX inside, and run that on this one. ``cache`` is the folder of
    compiled code meanwhile: no other code may find this one."""
    place = patch.dict("os.environ", {"VDLA_CACHE": str(cache)})
    with patch.object(graph_code, "optimise", optimise), place:
        found = Emulation(with_tiles(host()), library)
        found.counts()
        yield found
