"""CUDA kernels on the host's processor: their text, compiled by g++ around ``fibres.h``."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...isa.errors import VdlaError
from ..cache import cache_dir, keep
from ..native import aligned_memory
from ..processor import host
from .program import KernelCall, KernelProgram, TensorMap

COMPILER = "g++"
FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fwrapv", "-shared", "-fPIC",
         "-fno-strict-aliasing", "-fno-stack-protector",
         "-ftrivial-auto-var-init=pattern")  # fmt: skip
#: In which order the threads of a block run between two barriers.
ORDERS = ("forwards", "backwards", "shuffled")
_HEADERS = tuple(
    Path(__file__).with_name(name) for name in ("fibres.h", "warp.h", "warpgroup.h", "sanitizers.h")
)
_KERNEL = re.compile(
    r'extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\((.*?)\) \{\n(.*?)^\}',
    re.DOTALL | re.MULTILINE,
)

#: What a thread may wait in.
_WAITS = re.compile(
    r"__syncthreads|\b(?:w?g?mma|load_fragment|load_swizzled|products)_|\bcop(?:y_async|ies)_|\bsignals?_"
)
#: What ``warpgroup.h`` has.
_OF_GROUPS = re.compile(r"\bwgmma_|\bTensorMap\b \w+[,)]")
#: Shared memory that the launch asks for, and its size.
_ASKED = re.compile(r"extern (__shared__ .*)\[\];  // (\d+)$", re.MULTILINE)

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Counts:
    """What a launch did: how often its blocks waited at a barrier; bytes of main memory, which are
    counted only in a text that was compiled to count."""

    waits: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, eq=False)
class EmulatedKernels:
    """The kernels of a text, in this process."""

    host_code: ctypes.CDLL

    def launch(
        self, name: str, grid: Size, block: Size, addresses: Sequence[int], order: str = ORDERS[0]
    ) -> Counts:
        """Run a kernel on arguments at these addresses; returns what was counted.

        Raises
        ------
        VdlaError
            For a barrier that not all threads of a block reach, an instruction of a warp that not
            all of its threads reach, an endless wait, and what an instruction cannot do.
        """
        entry = self.host_code[f"emulate_{name}"]
        values = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        sizes = (ctypes.c_uint * 6)(*grid, *block)
        counts = (ctypes.c_uint64 * 3)()
        match entry(values, sizes, ORDERS.index(order), counts):
            case 1:
                raise VdlaError(f"kernel {name}: not all threads of a block reach a barrier")
            case 4:
                self.host_code.emulation_failure.restype = ctypes.c_char_p
                raise VdlaError(f"kernel {name}: {self.host_code.emulation_failure().decode()}")
            case 3:
                raise VdlaError(f"kernel {name}: threads wait for copies that nobody starts")
            case 2:
                raise VdlaError(
                    f"kernel {name}: not all threads of a warp or warpgroup reach an instruction"
                )
        return Counts(*counts)


def load_emulated(
    source: str, flags: Sequence[str] = (), counting: bool = False
) -> EmulatedKernels:
    """The kernels of a CUDA text; arguments and errors as :func:`emulated_library`."""
    return EmulatedKernels(ctypes.CDLL(str(emulated_library(source, flags, counting))))


def emulated_library(source: str, flags: Sequence[str] = (), counting: bool = False) -> Path:
    """Compile a CUDA text for the host, or find its library in the cache. For each kernel it has
    ``emulate_NAME``, and ``arguments_NAME``, which says how many arguments it has, of which the
    last ``maps_NAME`` are tensor maps. ``counting`` kernels count their bytes of main memory, and
    are slower.

    Raises
    ------
    VdlaError
        Where g++ is missing, or refuses the text; then with the first error.
    """
    text = _host_text(source, counting)
    command = [COMPILER, *FLAGS, *flags, "-I", str(_HEADERS[0].parent)]
    headers = [header.read_text("utf-8") for header in _HEADERS]
    digest = hashlib.sha256(repr((text, headers, command, host().key)).encode()).hexdigest()
    place = cache_dir() / f"emulated_{digest[:32]}.so"
    if not place.exists():
        _compile(text, command, place)
    return place


def _host_text(source: str, counting: bool) -> str:
    """The text with an entry for each kernel, which has a section of its own for shared memory."""
    source = _ASKED.sub(r"\1[\2];", source)
    parts, end = ['#define SHARED_SECTION "unused"\n#include "fibres.h"\n'], 0
    if _OF_GROUPS.search(source):
        parts.append('#include "warpgroup.h"\n')
    for number, found in enumerate(_KERNEL.finditer(source)):
        parts.append(source[end : found.start()])
        parts.append(f'#undef SHARED_SECTION\n#define SHARED_SECTION "shared{number}"\n')
        kernel, parameters, body = found.groups()
        given = [
            p.replace("__restrict__ ", "").rpartition(" ") for p in parameters.split(", ") if p
        ]
        kinds = [kind for kind, _, _ in given]
        if counting:
            kinds = [f"vdla::Counted<{k.rstrip('* ')}>" if "*" in k else k for k in kinds]
        pairs = zip(kinds, (name for _, _, name in given), strict=True)
        declared = ", ".join(f"{kind} {name}" for kind, name in pairs)
        parts.append(found.group().replace(f"({parameters})", f"({declared})", 1))
        parts.append(_entry(number, kernel, kinds, body))
        end = found.end()
    failure = 'extern "C" const char* emulation_failure() { return vdla::block.failure; }\n'
    return "".join((*parts, source[end:], failure))


def _entry(number: int, name: str, kinds: Sequence[str], body: str) -> str:
    arguments = ", ".join(
        f"*(const TensorMap*)values[{i}]" if kind.endswith("TensorMap") else f"({kind})values[{i}]"
        for i, kind in enumerate(kinds)
    )
    first, size = "nullptr", "0"
    declared = ""
    if "__shared__" in body:
        names = f"__start_shared{number}", f"__stop_shared{number}"
        declared = "".join(f'extern "C" char {n}[] __attribute__((weak, visibility("hidden")));\n'
                           for n in names)  # fmt: skip
        first, size = names[0], f"{names[1]} - {names[0]}"
    waits = "true" if _WAITS.search(body) else "false"
    return f"""
{declared}static void call_{name}(void** values) {{ {name}({arguments}); }}
extern "C" int arguments_{name}() {{ return {len(kinds)}; }}
extern "C" int maps_{name}() {{ return {sum(k.endswith("TensorMap") for k in kinds)}; }}
extern "C" int emulate_{name}(void** values, const unsigned* size, int order, uint64_t* counts) {{
  return vdla::launch(call_{name}, values, {{size[0], size[1], size[2]}},
                      {{size[3], size[4], size[5]}}, (vdla::Order)order, {waits},
                      {first}, {size}, counts);
}}
"""


def _compile(text: str, command: Sequence[str], place: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        source.write_text(text, "utf-8")
        try:
            done = subprocess.run(
                [*command, "-o", str(target), str(source)], capture_output=True, text=True
            )
        except FileNotFoundError:
            raise VdlaError(
                f"emulation: expected {COMPILER} to compile kernels, found none; install it"
            ) from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            raise VdlaError(f"emulation: {COMPILER} failed: {(lines or [done.stderr])[0]}")
        keep(place, target.read_bytes())


def map_bytes(address: int, tensor: TensorMap) -> np.ndarray:
    """A tensor map at an address, as ``TensorMap`` in ``warpgroup.h``: dimensions begin with that
    of elements side by side."""
    rank, size = len(tensor.shape), np.dtype(tensor.dtype).itemsize
    row_bytes = tensor.box[-1] * size
    numbers = [address, rank, size, row_bytes, *tensor.shape[::-1], *([1] * (5 - rank))]
    numbers += [*tensor.box[::-1], *([1] * (5 - rank))]
    return np.array([*numbers, *([0] * (16 - len(numbers)))], np.uint64)


# ---- programs ----------------------------------------------------------------------------------


class Emulation:
    """Kernels with memories of this process, by name; ``order`` is that of their threads."""

    def __init__(
        self, kernels: EmulatedKernels, memory: Mapping[str, np.ndarray], order: str = ORDERS[0]
    ):
        self.kernels, self.memory, self.order = kernels, memory, order
        #: What the last calls counted, one by one.
        self.counts: list[Counts] = []

    def launch(self, calls: Sequence[KernelCall]) -> None:
        self.counts = []
        for call in calls:
            maps = [self.bytes_of(a) for a in call.arguments if isinstance(a, TensorMap)]
            left = iter(maps)
            at = [
                next(left).ctypes.data if isinstance(a, TensorMap) else self.address(*a)
                for a in call.arguments
            ]
            self.counts.append(
                self.kernels.launch(call.kernel, call.grid, call.block, at, self.order)
            )

    def address(self, memory: str, offset: int) -> int:
        """Where a place is in this process."""
        return self.memory[memory].ctypes.data + offset

    def bytes_of(self, tensor: TensorMap) -> np.ndarray:
        """A tensor map as the emulation reads it."""
        return map_bytes(self.address(tensor.memory, tensor.offset), tensor)


class EmulatedSession(Emulation):
    """A program of CUDA kernels in this process."""

    def __init__(self, program: KernelProgram, order: str = ORDERS[0]):
        arena = aligned_memory(program.plan.planned_bytes)
        memory = {"arena": arena, "parameters": program.parameters}
        super().__init__(load_emulated(program.source), memory, order)

    def write(self, offset: int, data: np.ndarray) -> None:
        self.memory["arena"][offset : offset + data.size] = data

    def read(self, offset: int, data: np.ndarray) -> None:
        data[...] = self.memory["arena"][offset : offset + data.size]
