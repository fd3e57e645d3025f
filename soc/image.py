"""The image of a model: one binary with everything that the firmware needs to run it.

The firmware brings it from flash to the beginning of the memory that core and processor share. At
the memory's end are the windows of the core's programs, before these the tensors. The structures
are those of ``firmware/vdla_image.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ..isa.errors import VdlaError
from ..isa.program import Program
from ..isa.soc import DRAM_BASE, LEAST_WINDOW_BYTES, MOST_IMAGE_BYTES
from ..runtime.executable import Executable
from ..runtime.native import ALIGN_BYTES, NativeCode, TensorType, align
from .firmware import link_step

MAGIC, VERSION = 0x414C4456, 1
_HEADER_WORDS = 14


class _Image:
    """Bytes at the memory's beginning, and room at its end."""

    def __init__(self, size_bytes: int):
        self.data = bytearray(align(4 * _HEADER_WORDS))
        self.end = DRAM_BASE + size_bytes
        self._texts: dict[str, int] = {}

    def add(self, data: bytes) -> int:
        """Add bytes; their address."""
        address = self.next
        self.data += data + bytes(-len(data) % ALIGN_BYTES)
        return address

    @property
    def next(self) -> int:
        """The address of what is added next."""
        return DRAM_BASE + len(self.data)

    def text(self, text: str) -> int:
        """The address of a string of C."""
        if text not in self._texts:
            self._texts[text] = self.add(text.encode() + b"\0")
        return self._texts[text]

    def table(self, rows: Iterable[Sequence[int]]) -> int:
        """The address of an array of structures, whose fields are words."""
        words = [word for row in rows for word in row]
        return self.add(struct.pack(f"<{len(words)}I", *words))

    def room(self, size_bytes: int, alignment: int = ALIGN_BYTES) -> int:
        """The address of memory that holds nothing yet."""
        self.end = (self.end - size_bytes) & -alignment
        return self.end


def build_image(
    executable: Executable, samples: Sequence[Sequence[np.ndarray]], memory_bytes: int
) -> bytes:
    """The image of a model whose steps on the host are object files for the processor.

    Parameters
    ----------
    executable : the model
    samples : for each run one array per input, of its dtype and shape
    memory_bytes : what core and processor share

    Raises
    ------
    VdlaError
        When memory or flash are too small, and where code of a step cannot be linked.
    """
    image = _Image(memory_bytes)
    windows = _windows(image, executable)
    tensors = {name: image.room(size) for name, size in _tensor_bytes(executable).items()}
    arenas = [s.plan.planned_bytes for s in executable.steps if isinstance(s, NativeCode)]
    arena = image.room(max(arenas, default=0))
    steps = []
    for number, step in enumerate(executable.steps):
        if isinstance(step, Program):
            steps.append([_program(image, step, windows[number], tensors), *[0] * 5])
        elif isinstance(step, NativeCode):
            steps.append([0, *_function(image, step, tensors), arena])
        else:
            raise VdlaError(f"soc: expected programs or native code, got {type(step).__name__}")
    states = [
        (tensors[s.input], image.add(s.initial.tobytes()), tensors[s.output], s.initial.nbytes)
        for s in executable.states
    ]
    content = b"".join(array.tobytes() for arrays in samples for array in arrays)
    tables = [
        image.table(steps),
        _types(image, executable.inputs, tensors),
        _types(image, executable.outputs, tensors),
        image.table(states),
    ]
    kept = image.add(content)
    if image.next > image.end:
        raise VdlaError(
            f"soc: expected a model and inputs that fit to {memory_bytes:,} bytes of memory, got "
            f"an image of {len(image.data):,} and {DRAM_BASE + memory_bytes - image.end:,} beside "
            "it; take fewer inputs or a smaller model"
        )
    if len(image.data) > MOST_IMAGE_BYTES:
        raise VdlaError(
            f"soc: expected a model and inputs that fit to the {MOST_IMAGE_BYTES:,} bytes of flash "
            f"behind the bitstream, got an image of {len(image.data):,}; take fewer inputs or a "
            "smaller model"
        )
    counts = [len(steps), len(executable.inputs), len(executable.outputs), len(states)]
    behind = struct.pack("<10I", *counts, *tables, len(samples), kept)
    image.data[16 : 16 + len(behind)] = behind
    checked = bytes(image.data[16:])
    image.data[:16] = struct.pack("<4I", MAGIC, VERSION, len(image.data), checksum(checked))
    return bytes(image.data)


def checksum(data: bytes) -> int:
    """Two sums over words, the second of which knows their order."""
    words = np.frombuffer(data, "<u4").astype(np.uint64)
    places = np.arange(len(words), 0, -1, dtype=np.uint64)
    first, second = int(words.sum()), int((words * places & 0xFFFFFFFF).sum())
    first, second = first & 0xFFFFFFFF, second & 0xFFFFFFFF
    return first ^ (second << 16 & 0xFFFFFFFF | second >> 16)


def _windows(image: _Image, executable: Executable) -> dict[int, int]:
    """The address of the window of each program by the number of its step, the largest last in
    memory, where its alignment costs nothing."""
    found = {}
    programs = [(n, s.dram_bytes) for n, s in enumerate(executable.steps) if isinstance(s, Program)]
    for number, size in sorted(programs, key=lambda known: -known[1]):
        window = max(LEAST_WINDOW_BYTES, 1 << (size - 1).bit_length())
        found[number] = image.room(window, window)
    return found


def _tensor_bytes(executable: Executable) -> dict[str, int]:
    """The size of every tensor that steps, callers and states share."""
    found = {t.name: t.size_bytes for t in (*executable.inputs, *executable.outputs)}
    for step in executable.steps:
        if isinstance(step, Program):
            regions = (*step.meta["inputs"], *step.meta["outputs"])
            found.update((region["name"], prod(region["shape"])) for region in regions)
        elif isinstance(step, NativeCode):
            found.update((t.name, t.size_bytes) for t in (*step.inputs, *step.outputs))
    for state in executable.states:
        found[state.input] = found[state.output] = state.initial.nbytes
    return found


def _types(image: _Image, types: Sequence[TensorType], tensors: Mapping[str, int]) -> int:
    return image.table(
        [image.text(t.name), image.text(t.dtype), tensors[t.name], t.size_bytes,
         t.shape[0] if t.shape else 1]
        for t in types
    )  # fmt: skip


def _function(image: _Image, step: NativeCode, tensors: Mapping[str, int]) -> list[int]:
    """Its address, inputs, outputs and parameters."""
    code, entry = link_step(step.file(), image.next)
    image.add(code)
    inputs, outputs = (
        image.table([[tensors[tensor.name] for tensor in types]])
        for types in (step.inputs, step.outputs)
    )
    return [entry, inputs, outputs, image.add(step.parameters.tobytes())]


def _program(image: _Image, program: Program, window: int, tensors: Mapping[str, int]) -> int:
    def activation(region: Mapping[str, Any]) -> list[int]:
        images, channels, *spatial = region["shape"]
        at = window + region["address"]
        return [tensors[region["name"]], at, images, channels, prod(spatial)]

    parts = [(program.program_addr, program.encoded()), *program.image.items()]
    segments = [(window + at, image.add(bytes(data)), len(data)) for at, data in parts]
    params, kinds = program.params, (program.meta["inputs"], program.meta["outputs"])
    fields = [
        window - DRAM_BASE, -(-program.dram_bytes // 4) * 4, window, int(params.hash, 16),
        program.program_addr, len(program.insns), params.batch, params.block,
        len(segments), *map(len, kinds), image.table(segments),
        *(image.table(map(activation, regions)) for regions in kinds),
    ]  # fmt: skip
    return image.table([fields])
