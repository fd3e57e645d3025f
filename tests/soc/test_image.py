"""Images and firmware, without a simulation."""

from __future__ import annotations

import random
import re
import struct
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from vdla.hw.fpga import synthesis
from vdla.hw.soc.ulx3s import soc_board
from vdla.isa.errors import VdlaError
from vdla.isa.soc import DRAM_BASE, FLASH_IMAGE, LEAST_WINDOW_BYTES
from vdla.runtime.executable import Executable, State
from vdla.runtime.native import TensorType
from vdla.soc import firmware
from vdla.soc.bitstream import build_for_board
from vdla.soc.firmware import SOURCES, build_firmware, link_step
from vdla.soc.image import MAGIC, VERSION, build_image, checksum
from vdla.soc.model import PROCESSOR, SocModel, compile_for_soc

from .networks import DIGITS

pytest.importorskip("ziglang")
#: What the firmware may take.
MOST_BYTES = 12 << 10
MEMORY_BYTES = 1 << 25


def test_the_firmware_is_small() -> None:
    built = build_firmware(MEMORY_BYTES)
    assert 2000 < len(built) <= MOST_BYTES
    assert built == build_firmware(MEMORY_BYTES)


def test_header_and_builder_have_the_same_version() -> None:
    text = (SOURCES / "vdla_image.h").read_text()
    magic, version = re.findall(r"#define VDLA_IMAGE_(?:MAGIC|VERSION) (\w+)u", text)
    assert (int(magic, 16), int(version)) == (MAGIC, VERSION)
    structure = re.search(r"uint32_t magic.*?} vdla_image;", text, re.DOTALL)
    assert structure is not None
    lines = re.sub(r"/\*.*?\*/", "", structure[0]).split(";")[:-2]
    assert sum(line.count(",") + 1 for line in lines if line.strip()) == 14


def test_the_checksum_is_that_of_the_firmware() -> None:
    rng = random.Random(0)
    words = [rng.getrandbits(32) for _ in range(1000)]
    total = sums = 0
    for word in words:
        total = (total + word) & 0xFFFFFFFF
        sums = (sums + total) & 0xFFFFFFFF
    expected = total ^ (sums << 16 & 0xFFFFFFFF | sums >> 16)
    assert checksum(struct.pack("<1000I", *words)) == expected
    words[3], words[4] = words[4], words[3]
    assert checksum(struct.pack("<1000I", *words)) != expected


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firmware, "find_spec", lambda name: None)
    with pytest.raises(VdlaError, match=r"^ziglang is not installed, .*'vdla\[soc\]'$"):
        build_firmware(MEMORY_BYTES)


def step(body: str) -> bytes:
    """An object file with a function of LLVM's."""
    machine = PROCESSOR.target_machine()
    text = f"""
        target triple = "{machine.triple}"
        declare float @rintf(float)
        declare float @nothing_has_this(float)
        define float @vdla_run(float %x) {{ {body} ret float %y }}
    """
    return machine.emit_object(llvm.parse_assembly(text))


def test_a_step_is_linked_where_it_lies() -> None:
    address = DRAM_BASE + 0x1240
    rounds = "%z = fmul float %x, %x  %y = call float @rintf(float %z)"
    code, entry = link_step(step(rounds), address)
    assert address <= entry < address + len(code) < address + 5000


def test_a_function_that_is_nowhere_is_named() -> None:
    with pytest.raises(VdlaError, match=r"^zig cc failed: .*undefined symbol: nothing_has_this$"):
        link_step(step("%y = call float @nothing_has_this(float %x)"), DRAM_BASE)


@pytest.fixture(scope="module")
def digits():
    return compile_for_soc(DIGITS)


@pytest.mark.slow
def test_an_image_that_does_not_fit(digits) -> None:
    sample = [np.zeros((1, 1, 8, 8), np.float32)]
    with pytest.raises(VdlaError, match=r"^soc: expected a model and inputs that fit to 65,536"):
        build_image(digits.compiled, [sample], 1 << 16)
    image = build_image(digits.compiled, [sample], MEMORY_BYTES)
    with pytest.raises(VdlaError, match=r"take fewer inputs"):
        build_image(digits.compiled, [sample] * (1 << 17), MEMORY_BYTES)
    with pytest.raises(VdlaError, match=r"the 13,631,488 bytes of flash behind the bitstream, got"):
        build_image(digits.compiled, [sample] * 60_000, MEMORY_BYTES)
    size, known = struct.unpack_from("<II", image, 8)
    assert size == len(image) and known == checksum(image[16:])


def test_files_for_a_board(digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the bitstream, whose making another test looks at, the image, and where it goes."""
    asked = []

    def build(board, params, directory, *rest):
        asked.append((board.name, params, board.verilog[:20]))
        directory.mkdir()
        (directory / "name.bit").write_bytes(bytes(1000))
        return synthesis.Result({"bitstream": str(directory / "name.bit"), "met": True})

    monkeypatch.setattr(synthesis, "build", build)
    system = SocModel(digits, [np.zeros((2, 1, 8, 8), np.float32)])
    result = build_for_board(system, soc_board(system.firmware), tmp_path / "folder")
    image = tmp_path / "folder" / "image.bin"
    assert image.read_bytes() == system.image and not result.missed
    _, command = result.body["commands"]
    assert command == f"openFPGALoader -b ulx3s -f -o {FLASH_IMAGE:#x} {image}"
    assert [name for name, *_ in asked] == ["ulx3s-85f"] and asked[0][1] == digits.params


@pytest.mark.slow
def test_windows_are_apart_and_aligned(digits) -> None:
    """Two programs of one step each: their windows, as the programs say them."""
    (program,) = digits.compiled.programs
    two = replace(digits.compiled, steps=(program, program))
    image = build_image(two, [], MEMORY_BYTES)
    steps = struct.unpack_from("<I", image, 32)[0] - DRAM_BASE
    found = []
    for number in range(2):
        at = struct.unpack_from("<I", image, steps + 24 * number)[0] - DRAM_BASE
        window, size, seen = struct.unpack_from("<III", image, at)
        assert seen == window + DRAM_BASE and window % LEAST_WINDOW_BYTES == 0
        assert program.dram_bytes <= size <= LEAST_WINDOW_BYTES
        found.append(window)
    assert abs(found[0] - found[1]) == LEAST_WINDOW_BYTES


def test_states_are_kept() -> None:
    kept = TensorType("x", (4,), "int8"), TensorType("y", (4,), "int8")
    initial = np.arange(4, dtype=np.int8)
    model = Executable((), kept[1:], (), (), states=(State("x", "y", initial),))
    image = build_image(model, [], MEMORY_BYTES)
    at = struct.unpack_from("<I", image, 44)[0] - DRAM_BASE
    value, first, following, size = struct.unpack_from("<4I", image, at)
    assert size == 4 and value != following
    assert image[first - DRAM_BASE :][:4] == initial.tobytes()
