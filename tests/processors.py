"""The processors that tests run for, whatever the machine has: ``pytest --processor NAME``.

A processor's features decide which code is generated. The machine that runs the tests may lack
some of these features. LLVM then compiles operations on vectors to instructions that the machine
has, and calls of LLVM's intrinsics, such as ``llvm.x86.tdpbusd``, are replaced by calls of
functions in ``emulated.cpp``.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import llvmlite.binding as llvm
import numpy as np
from vdla.compiler.targets.cpu import processor
from vdla.compiler.targets.cpu.processor import Processor
from vdla.runtime.cache import cache_dir
from vdla.runtime.processor import Host, assume, host

#: The features of each processor, by LLVM's names.
AVX2 = ("64bit", "cmov", "cx8", "cx16", "fxsr", "mmx", "sahf", "sse", "sse2", "sse3", "ssse3",
        "sse4.1", "sse4.2", "crc32", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2",
        "lzcnt", "movbe")  # fmt: skip
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni",
          "avx512vpopcntdq", "avx512bitalg")  # fmt: skip
TILES = ("amx-tile", "amx-int8")
FEATURES = {
    "avx2": AVX2,
    "avx2-vnni": (*AVX2, "avxvnni"),
    "avx512-vnni": AVX512,
    "amx": (*AVX512, "avxvnni", *TILES),
}
DEFAULT = "avx512-vnni"

#: The feature that has an instruction, by LLVM's name after ``llvm.x86.``.
INSTRUCTIONS = {
    **dict.fromkeys(("ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64",
                     "tdpbusd"), "amx-int8"),
    "avx512.vpdpbusd.512": "avx512vnni",
    "avx512.vpdpwssd.512": "avx512vnni",
    "avx512.mask.cvtps2dq.512": "avx512f",
    "avx512.vfmadd.ps.512": "avx512f",
    "avx512.packssdw.512": "avx512bw",
    "avx512.packsswb.512": "avx512bw",
}  # fmt: skip
#: What the functions count, in order.
COUNTS = ("faults", "products", "loads", "stores", "configurations", "releases")
#: Features that are emulated although this machine may have them: so the emulation can be tested.
EMULATED = frozenset(filter(None, os.environ.get("VDLA_TESTS_EMULATED", "").split(",")))
THIS = host()
#: How the names of processors of tests begin.
_MARK = "tests: "


def has(feature: str) -> bool:
    """Whether the machine that runs the tests has a feature."""
    return THIS.features.get(feature, False) and feature not in EMULATED


#: What a result may depend on.
_TELLING = frozenset(("cpu", "features", "cache_bytes", "speeds"))
#: Who has asked for such a thing since :func:`was_asked`.
_ASKED: list[str] = []


def was_asked() -> bool:
    """Whether anything has depended on the assumed processor since the last call."""
    asked = bool(_ASKED)
    _ASKED.clear()
    return asked


@dataclass(frozen=True, eq=False)
class Assumed(Host):
    """A machine with some of the features of this one, and others. It notes when it is asked for
    anything that decides results; machine code of the simulators does not."""

    def __getattribute__(self, name: str) -> Any:
        if name in _TELLING:
            _ASKED.append(name)
        return super().__getattribute__(name)

    def __hash__(self) -> int:
        """What is kept by processor has been asked of it."""
        _ASKED.append("hash")
        return id(self)

    @property
    def key(self) -> str:
        """Its name says it all."""
        return vars(self)["cpu"]

    def target_machine(self, opt: int) -> Any:
        """For the features that both machines have. The simulators' code calls no intrinsics, so it
        needs no emulation."""
        mine = vars(self)["features"]
        known = {name: has(name) and mine.get(name, False) for name in THIS.features}
        return replace(THIS, cpu="x86-64", features=known).target_machine(opt)


@cache
def _assumed(name: str, emulated: frozenset[str]) -> Host:
    """Two cores with two units each, as large servers have them. What is kept of its code is not
    that of another machine: its name says what is emulated."""
    speeds = {"products_per_cycle": 2.0, "loads_per_cycle": 2.0, "dot_latency_cycles": 5}
    features = dict.fromkeys(THIS.features, False) | dict.fromkeys(FEATURES[name], True)
    cpu = " less ".join((f"{_MARK}{name}", *sorted(f for f in FEATURES[name] if not has(f))))
    caches = {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20}
    return Assumed(THIS.triple, cpu, features, 2, caches, speeds)


@contextmanager
def on_processor(name: str, emulated: Iterable[str] = ()) -> Iterator[None]:
    """Everything inside believes that this is a machine with such a processor. ``emulated`` are
    features whose instructions are emulated even if this machine has them."""
    with (
        patch(f"{__name__}.EMULATED", EMULATED.union(emulated)),
        patch.object(Processor, "target_machine", _target_machine),
        patch.object(processor, "parse", _parse),
    ):
        if any(feature in FEATURES[name] and not has(feature) for feature in INSTRUCTIONS.values()):
            functions()  # code that was kept needs them, too
        with assume(_assumed(name, EMULATED)):
            yield


@contextmanager
def on_this_machine() -> Iterator[None]:
    """Everything inside runs on the machine as it is."""
    with assume(THIS):
        yield


# ---- emulation -----------------------------------------------------------------------------------

_target_machine_of, _parse_for = Processor.target_machine, processor.parse


def _target_machine(self: Processor) -> llvm.TargetMachine:
    """Replaces the method: code uses only features that this machine has, too. Processors with
    LLVM's names stay as they are: tests read their code and do not run it."""
    if not self.cpu.startswith(_MARK):
        return _target_machine_of(self)
    runs = {name: has(name) and self.has(name) for name in THIS.features}
    signed = tuple(f"{'+' if known else '-'}{name}" for name, known in sorted(runs.items()))
    return _target_machine_of(replace(self, cpu="x86-64", features=signed))


def _parse(module: Any, known: Processor) -> llvm.ModuleRef:
    """Replaces ``processor.parse``: functions stand for instructions that this machine lacks."""
    if not known.cpu.startswith(_MARK):
        return _parse_for(module, known)
    text = str(module)
    for name, feature in INSTRUCTIONS.items():
        if f'@"llvm.x86.{name}"' in text and not has(feature):
            text = _emulated(text, name)
    return llvm.parse_assembly(text)


def _symbol(name: str) -> str:
    return f"vdla_{name.replace('.', '_')}"


def _emulated(text: str, name: str) -> str:
    """Replace calls of an intrinsic by calls of a function. Vectors are passed by address, because
    how they are passed by value depends on the processor."""
    symbol = _symbol(name)
    text = text.replace(f'@"llvm.x86.{name}"', f'@"{symbol}"')
    declared = re.search(rf'^declare (.+) @"{symbol}"\((.*)\)$', text, re.MULTILINE)
    assert declared
    result, operands = declared[1], re.findall(r"(<.*?>|\w+\*?) %", declared[2])
    if result == "void":
        return text
    taken = ", ".join(f"{kind} %x{i}" for i, kind in enumerate(operands))
    lines = [f'define internal {result} @"{symbol}_by_value"({taken}) alwaysinline {{']
    lines.append(f"  %y = alloca {result}")
    for i, kind in enumerate(operands):
        lines += [f"  %p{i} = alloca {kind}", f"  store {kind} %x{i}, ptr %p{i}"]
    addresses = ", ".join(("ptr %y", *(f"ptr %p{i}" for i in range(len(operands)))))
    lines += [f'  call void @"{symbol}"({addresses})', f"  %found = load {result}, ptr %y"]
    lines += [f"  ret {result} %found", "}"]
    pointers = ", ".join(["ptr"] * (1 + len(operands)))
    text = text.replace(declared[0], "").replace(f'@"{symbol}"', f'@"{symbol}_by_value"')
    return "\n".join((text, f'declare void @"{symbol}"({pointers})', *lines, ""))


def count_instructions(llvm_ir: str, name: str) -> int:
    """How often code has an instruction, or the function in its place."""
    return len(
        re.findall(rf"call [^@]*@(?:llvm\.x86\.{re.escape(name)}|{_symbol(name)})\(", llvm_ir)
    )


@cache
def functions() -> ctypes.CDLL:
    """The functions, which machine code finds by name, and saved modules, too."""
    source = Path(__file__).with_name("emulated.cpp")
    flags = ("-O3", "-march=native", "-frounding-math", "-Wall", "-Wextra", "-Werror", "-shared",
             "-fPIC")  # fmt: skip
    known = (source.read_text(), *flags, THIS.key)
    digest = hashlib.sha256("\0".join(known).encode()).hexdigest()[:24]
    library = cache_dir() / f"instructions_{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as work:
            new = Path(work) / "new.so"
            subprocess.run(["g++", *flags, "-o", new, source], check=True)
            os.replace(new, library)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    for name in INSTRUCTIONS:
        address = ctypes.cast(getattr(loaded, _symbol(name)), ctypes.c_void_p).value
        llvm.add_symbol(_symbol(name), address)
    return loaded


def counts() -> dict[str, int]:
    """What of AMX was emulated since the last call, and what a processor would have refused."""
    found = np.zeros(len(COUNTS), np.int64)
    functions().vdla_counts(found.ctypes.data_as(ctypes.c_void_p))
    return dict(zip(COUNTS, found.tolist(), strict=True))
