"""C for the processor of the system, compiled and linked by the clang of the package ziglang."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from ..isa.errors import VdlaError
from ..isa.regmap import CONTROL_RESET, CONTROL_START, OFFSETS
from ..isa.soc import (
    BOARD_BASE,
    CORE_BASE,
    DRAM_BASE,
    END_OF_TEXT,
    FAULT_LINE,
    FLASH,
    FLASH_IMAGE,
    INTERRUPT,
    INTERRUPT_LINE,
    LEDS,
    RAM_BASE,
    RAM_BYTES,
    WINDOW,
)
from ..isa.status import Status
from ..runtime.cache import cache_dir
from ..runtime.native import ENTRY_NAME

SOURCES = Path(__file__).parent / "firmware"
#: What the firmware's memory leaves to its stack, code of steps included.
STACK_BYTES = 4 << 10
#: RV32IM without floating point, which is computed by functions.
_FLAGS = (
    "-target", "riscv32-freestanding-none", "-mcpu=generic_rv32+m", "-Os", "-std=c11", "-Wall",
    "-Wextra", "-Werror", "-ffreestanding", "-fno-builtin", "-ffunction-sections",
    "-fno-stack-protector", "-fno-sanitize=all", "-fno-pic", "-static",
    "-Wl,--gc-sections", "-Wl,--build-id=none",
)  # fmt: skip


def registers_header(memory_bytes: int) -> str:
    """``vdla_registers.h``: numbers that the firmware shares with the hardware."""

    def lines() -> Iterator[str]:
        yield "/* Generated: registers, addresses and status codes. */"
        for name, offset in OFFSETS.items():
            yield f"#define VDLA_REGISTER_{name.upper()} {offset}"
        for name, value in {
            "REGISTER_WINDOW": WINDOW,
            "REGISTER_INTERRUPT": INTERRUPT,
            "CONTROL_START": CONTROL_START,
            "CONTROL_RESET": CONTROL_RESET,
            "CORE_BASE": CORE_BASE,
            "BOARD_BASE": BOARD_BASE,
            "BOARD_FLASH": FLASH,
            "BOARD_LEDS": LEDS,
            "FLASH_IMAGE": FLASH_IMAGE,
            "IMAGE_BASE": DRAM_BASE,
            "MEMORY_BYTES": memory_bytes,
            "INTERRUPT_MASK": 1 << INTERRUPT_LINE | 1 << FAULT_LINE,
            "FAULT_MASK": 1 << FAULT_LINE,
            "END_OF_TEXT": END_OF_TEXT,
            **{f"STATUS_{status.name}": status.value for status in Status},
        }.items():
            yield f"#define VDLA_{name} {value:#x}"
        texts = ", ".join(f'"the core has stopped with {s.name}: {s.doc}"' for s in Status)
        yield f"#define VDLA_STATUS_TEXTS {{{texts}}}"

    return "\n".join(lines()) + "\n"


def build_firmware(memory_bytes: int) -> bytes:
    """What the processor's memory begins with, for a system with so much memory beside it.

    Raises VdlaError where the compiler is missing.
    """
    sizes = {"RAM_BASE": RAM_BASE, "RAM_BYTES": RAM_BYTES, "STACK_BYTES": STACK_BYTES}
    sources = [SOURCES / name for name in ("start.S", "main.c", "vdla_runtime.c")]
    with TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "vdla_registers.h").write_text(registers_header(memory_bytes), "utf-8")
        linked = _link(work, [f"-I{work}", *map(str, sources)], "firmware.ld", "start", sizes)
    return _loaded(linked, RAM_BASE)


def link_step(object_file: bytes, base: int) -> tuple[bytes, int]:
    """A function of LLVM's for the processor as bytes for an address, and where it begins.

    Raises VdlaError where the compiler is missing, or for a function that the code calls and that
    is not there.
    """
    with TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "step.o").write_bytes(object_file)
        inputs = [str(work / "step.o"), str(SOURCES / "step_math.c")]
        linked = _link(work, inputs, "step.ld", ENTRY_NAME, {"STEP_BASE": base})
    return _loaded(linked, base), struct.unpack_from("<I", linked, 24)[0]


def _link(
    work: Path, inputs: Sequence[str], script: str, entry: str, values: Mapping[str, int]
) -> bytes:
    """An ELF file; ``values`` are those of symbols in the linker's script."""
    if find_spec("ziglang") is None:
        raise VdlaError(
            "ziglang is not installed, whose clang compiles for RISC-V; install the soc extra: "
            "pip install 'vdla[soc]'"
        )
    text = (SOURCES / script).read_text("utf-8")
    head = "".join(f"{name} = {value:#x};\n" for name, value in values.items())
    (work / script).write_text(head + text, "utf-8")
    target = work / "linked.elf"
    command = [sys.executable, "-m", "ziglang", "cc", *_FLAGS, *inputs, "-o", str(target)]
    command += [f"-Wl,-T,{work / script}", f"-Wl,--entry={entry}"]
    kept = str(cache_dir() / "zig")
    env = os.environ | {"ZIG_GLOBAL_CACHE_DIR": kept, "ZIG_LOCAL_CACHE_DIR": kept}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise VdlaError(f"zig cc failed: {next((x for x in lines if 'error' in x), lines[0])}")
    return target.read_bytes()


def _loaded(elf: bytes, base: int) -> bytes:
    """What an ELF file of 32 bits brings to memory, from an address on."""
    at, size, count = struct.unpack_from("<I10xHH", elf, 28)
    memory = bytearray()
    for number in range(count):
        kind, offset, address, _, stored, wanted = struct.unpack_from(
            "<6I", elf, at + number * size
        )
        if kind != 1 or not wanted:  # PT_LOAD
            continue
        end = address - base + wanted
        memory.extend(bytes(max(0, end - len(memory))))
        memory[address - base : address - base + stored] = elf[offset : offset + stored]
    return bytes(memory)
