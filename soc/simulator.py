"""The system in Verilator."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..isa.sdram import PARTS
from ..isa.soc import END_OF_TEXT, FLASH_IMAGE, FLASH_READ, RAM_BYTES
from ..runtime.cache import one_process
from ..sim.rtl import toolchain
from ..sim.rtl.driver import CHIP, chip_flag
from ..sim.rtl.kept import kept_text

HARNESS = Path(__file__).with_name("harness.cpp")
TOP = "vdla_soc"
#: Clock cycles of a bit on the serial line: few, because they are simulated.
BIT_CYCLES = 4
#: Cycles that are simulated before the text is looked at.
_TURN_CYCLES = 100_000
#: Where firmware that never ends is cut off.
MAX_CYCLES = 20_000_000_000
_RAM = re.compile(r"(module \\vdla_soc\.soc\.ram .*?reg \[31:0\] storage \[\d+:0\]);", re.DOTALL)
_RESET_PORT = re.compile(
    rf"(module {TOP}\([^)]*)\brst, ([^)]*\);.*?)input rst;\s*wire rst;", re.DOTALL
)


class SocSimulator:
    """The system of one configuration with a part of SDRAM, built at once.

    Raises VdlaError where a tool is missing.
    """

    def __init__(self, params: HwParams, part: str):
        self.part = PARTS[part]
        self._library = ctypes.CDLL(str(_built(params, part)))
        pointer, size = ctypes.c_void_p, ctypes.c_uint64
        self._library.soc_new.argtypes = [
            ctypes.c_char_p, size, ctypes.c_char_p, size, size, size,
        ]  # fmt: skip
        self._library.soc_new.restype = pointer
        self._library.soc_delete.argtypes = [pointer]
        self._library.soc_run.argtypes = [pointer, size, ctypes.c_char]
        self._library.soc_run.restype = size
        self._library.soc_text.argtypes = [pointer, ctypes.POINTER(size)]
        self._library.soc_text.restype = pointer
        self._library.soc_fault.argtypes = [pointer]
        self._library.soc_fault.restype = ctypes.c_char_p
        self._library.soc_leds.argtypes = [pointer]
        self._library.soc_leds.restype = ctypes.c_uint8
        #: Cycles of the last run, and what the LEDs showed at its end.
        self.cycles = self.leds = 0

    def run(
        self,
        firmware: bytes,
        image: bytes,
        max_cycles: int = MAX_CYCLES,
        button_at: int = MAX_CYCLES,
    ) -> Iterator[str]:
        """Run firmware from power-on to its end, with the image in flash; the lines that it prints,
        as they come. In the cycle ``button_at`` somebody presses the button, which resets.

        Raises VdlaError where the memory is misused, and after ``max_cycles``.
        """
        assert len(firmware) <= RAM_BYTES and len(image) <= self.part.size_bytes
        library, end = self._library, bytes([END_OF_TEXT])
        system = library.soc_new(
            firmware, len(firmware), image, len(image), self.part.size_bytes, button_at
        )  # fmt: skip
        told, size, self.cycles = b"", ctypes.c_uint64(), 0
        try:
            while not told.endswith(end):
                passed = library.soc_run(system, min(_TURN_CYCLES, max_cycles - self.cycles), end)
                self.cycles += passed
                self.leds = library.soc_leds(system)
                if fault := library.soc_fault(system):
                    raise VdlaError(f"soc: the memory was misused: {fault.decode()}")
                text = library.soc_text(system, ctypes.byref(size))
                lines_before = told.count(b"\n")
                told = ctypes.string_at(text, size.value)
                yield from told.decode("ascii", "replace").split("\n")[
                    lines_before : told.count(b"\n")
                ]
                if self.cycles >= max_cycles:
                    raise VdlaError(f"soc: the firmware has not ended after {max_cycles:,} cycles")
        finally:
            library.soc_delete(system)


def _built(params: HwParams, part: str) -> Path:
    """The shared library of a system, from the cache folder if it was built before."""
    from ..hw.soc.soc import cpu_verilog, soc_verilog

    processor = cpu_verilog().read_text("utf-8")
    rooms = ("hw/core", "hw/boards", "hw/soc", "isa")
    text = kept_text(f"soc {part}", params, rooms, lambda: soc_verilog(params, part, BIT_CYCLES))
    text = _RAM.sub(r"\1 /*verilator public_flat_rw*/;", text)
    # Registers start with their initial values, as in the core's own simulation.
    text = _RESET_PORT.sub(r"\1\2wire rst = 1'h0;", text, count=1) + processor
    values = {"BIT_CYCLES": BIT_CYCLES, "FLASH_IMAGE": FLASH_IMAGE, "FLASH_READ": FLASH_READ}
    flags = (chip_flag(part), *(f"-D{name}={value}" for name, value in values.items()), "-O1")
    parts = [text, *(p.read_text("utf-8") for p in (HARNESS, CHIP)), repr(toolchain.versions())]
    key = hashlib.sha256("\0".join([*parts, *flags]).encode()).hexdigest()[:24]
    target = toolchain.cache_dir() / f"soc_{key}.so"
    with one_process(target):
        if not target.exists():
            _build(text, target, flags)
    return target


def _build(text: str, target: Path, flags: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="build_", dir=target.parent) as folder:
        work = Path(folder)
        source = work / "soc.v"
        source.write_text(text, "utf-8")
        toolchain.verilate(source, TOP, work / "cpp", "--flatten")  # the harness names a memory
        sources = [HARNESS, *sorted((work / "cpp").glob("*.cpp"))]
        library = work / "soc.so"
        toolchain.compile_shared(sources, [work / "cpp", CHIP.parent], library, *flags)
        os.replace(library, target)
