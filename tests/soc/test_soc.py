"""Models on the system, simulated from the Verilog: against target sim, to the byte and the
cycle."""

from __future__ import annotations

import re
import shutil
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Load
from vdla.isa.program import Program
from vdla.isa.sdram import PARTS, ULX3S
from vdla.isa.soc import DRAM_BASE
from vdla.runtime.native import TensorType
from vdla.sim.model.values import run as run_values
from vdla.soc import firmware
from vdla.soc.image import checksum
from vdla.soc.model import SocModel, compile_for_soc
from vdla.soc.simulator import SocSimulator

from .networks import DIGITS, SAMPLES, TRANSFORMER, images

pytest.importorskip("ziglang")
#: More than any of the runs takes.
MOST_CYCLES = 12_000_000
pytestmark = pytest.mark.more
RUN = re.compile(
    r"run (\d+), class (\d+), ([\d,]+) cycles of the core, ([\d,]+) in all, outputs ([0-9a-f]{8})"
)


def expected(model: Path, given: np.ndarray) -> list[tuple[int, int, int, str]]:
    """Number, class, cycles and CRC-32 of each run, by target sim."""
    module = vdla.compile(model, "sim", "4x4", ULX3S)
    (outputs,) = module.run(given)
    cycles = module.report["cycles"]
    return [
        (n, int(row.argmax()), cycles, f"{zlib.crc32(row.tobytes()):08x}")
        for n, row in enumerate(outputs)
    ]


def said(lines: list[str]) -> list[tuple[int, int, int, str]]:
    """The same from the lines of the firmware."""
    first, *lines = lines
    assert re.fullmatch(r"image of [\d,]+ bytes, loaded in [\d,]+ cycles", first)
    found = []
    for line in lines:
        match = RUN.fullmatch(line)
        assert match is not None, line
        number, which, cycles, passed, crc = match.groups()
        assert int(passed.replace(",", "")) > int(cycles.replace(",", ""))
        found.append((int(number), int(which), int(cycles.replace(",", "")), crc))
    return found


@pytest.fixture(scope="module")
def digits():
    return compile_for_soc(DIGITS)


def test_twenty_images(capsys: pytest.CaptureFixture[str]) -> None:
    """By the command, as users run it."""
    command = ["soc", "run", str(DIGITS), "--input", str(SAMPLES), "--images", "20"]
    assert run_app(command) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert said(lines) == expected(DIGITS, images(20))
    assert re.fullmatch(r"firmware [\d,]+ bytes, image [\d,]+; .* kcycle/s", last)


def test_many_programs_and_steps() -> None:
    """The transformer: ten programs, with steps of the processor before, between and behind."""
    module = compile_for_soc(TRANSFORMER)
    assert len(module.compiled.programs) > 5
    model = SocModel(module, [images(2)])
    runs = said(list(model.run()))
    assert runs == expected(TRANSFORMER, images(2))
    assert model.simulator.leds == runs[-1][1]


def changed_firmware(folder: Path, name: str, changed: dict[str, str]) -> Path:
    """Sources of the firmware, one of which has other lines."""
    sources = shutil.copytree(firmware.SOURCES, folder / "firmware")
    text = (sources / name).read_text()
    for before, after in changed.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (sources / name).write_text(text)
    return sources


def test_polling_takes_the_same_cycles(
    digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the processor reads the core's registers, too, the memory is the core's alone."""
    counter = "static uint32_t count_interrupts(void) { return interrupts; }\n"
    changed = {counter: "", "{core, count_interrupts, ": "{core, 0, "}
    monkeypatch.setattr(firmware, "SOURCES", changed_firmware(tmp_path, "main.c", changed))
    lines = list(SocModel(digits, [images(1)]).run())
    assert said(lines) == expected(DIGITS, images(1))


def test_the_bridge_forgets_what_the_core_wrote(
    digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that it has read last is of the outputs; it is the first that is read again, and
    goes to the processor's cache."""
    start = "    write_register(machine, VDLA_REGISTER_CONTROL, VDLA_CONTROL_START);\n"
    invalidate = "    if (machine->invalidate) machine->invalidate();\n"
    look = "    (void)*seen;\n"
    seen = "    const volatile int8_t *seen = program->outputs[0].packed;\n"
    changed = {start: seen + look + start, invalidate: invalidate + look}
    sources = changed_firmware(tmp_path, "vdla_runtime.c", changed)
    monkeypatch.setattr(firmware, "SOURCES", sources)
    lines = list(SocModel(digits, [images(2)]).run())
    assert said(lines) == expected(DIGITS, images(2))


def test_caches_forget_what_the_core_wrote() -> None:
    """A program alone, again and again: its results are in the cache while the core computes the
    next ones, and little else passes through."""
    module = compile_for_soc(TRANSFORMER)
    programs = module.compiled.programs
    program = max(programs, key=lambda p: sum(r["bytes"] for r in p.meta["outputs"]))
    inputs, outputs = (
        tuple(TensorType(r["name"], tuple(r["shape"]), "int8") for r in program.meta[kind])
        for kind in ("inputs", "outputs")
    )
    alone = replace(module.compiled, inputs=inputs, outputs=outputs, steps=(program,))
    rng = np.random.default_rng(0)
    given = [rng.integers(-128, 128, (3, *t.shape[1:]), np.int8) for t in inputs]
    lines = list(SocModel(vdla.Module(alone, module.settings), given).run())[1:]
    for number, line in enumerate(lines):
        results = alone.run([array[number : number + 1] for array in given], run_values)
        assert line.endswith(f"{zlib.crc32(b''.join(r.tobytes() for r in results)):08x}"), line


@pytest.mark.parametrize("after", [5_000, 900_000])
def test_a_button_begins_again(digits, after: int) -> None:
    """While the image is loaded, and in the middle of a run, whose lines stay on the terminal."""
    model = SocModel(digits, [images(1)])
    whole = list(model.run())
    again = list(model.simulator.run(model.firmware, model.image, button_at=after))
    assert again[-len(whole) :] == whole and len(again) >= len(whole)


def test_a_button_while_the_core_runs(digits) -> None:
    """The core's bursts are cut off wherever they are, in eight places."""
    model = SocModel(digits, [images(1)])
    loaded, run = model.run()
    (begun,) = (int(n.replace(",", "")) for n in re.findall(r"in ([\d,]+) cycles", loaded))
    ended = model.simulator.cycles
    for at in range(begun, ended, (ended - begun) // 8):
        *_, first, last = model.simulator.run(model.firmware, model.image, button_at=at)
        assert first.endswith(loaded) and last == run, at  # a byte was cut off, too


# ---- faults, each of which ends in one line ----


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that hangs fails the test."""
    monkeypatch.setattr(SocSimulator.run, "__defaults__", (MOST_CYCLES, MOST_CYCLES))


def failure(model: SocModel) -> str:
    """What the firmware says, as the command would."""
    with pytest.raises(VdlaError) as error:
        list(model.run())
    return str(error.value)


def with_program(module, program: Program) -> vdla.Module:
    """The module with another program in place of its one."""
    steps = [program if isinstance(s, Program) else s for s in module.compiled.steps]
    return vdla.Module(replace(module.compiled, steps=tuple(steps)), module.settings)


def test_no_interrupt(digits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor listens to another line than the core's."""
    monkeypatch.setattr(firmware, "INTERRUPT_LINE", firmware.FAULT_LINE + 1)
    found = failure(SocModel(digits, [images(1)]))
    assert found == "soc: the core has stopped, and no interrupt came"


def test_bus_error(digits) -> None:
    """A LOAD from beyond the memory; then the memory serves the processor again, which tells."""
    (program,) = digits.compiled.programs
    number = next(i for i, insn in enumerate(program.insns) if isinstance(insn, Load))
    insns = list(program.insns)
    insns[number] = replace(insns[number], dram_addr=PARTS[ULX3S].size_bytes)
    found = failure(SocModel(with_program(digits, replace(program, insns=insns)), [images(1)]))
    assert found.startswith("soc: the core has stopped with BUS: the memory answered a burst")


def test_program_of_another_configuration(digits) -> None:
    (program,) = digits.compiled.programs
    other = replace(program, params=replace(program.params, queue_depth=2))
    assert other.params.hash != program.params.hash
    found = failure(SocModel(with_program(digits, other), [images(1)]))
    assert found == "soc: the image has programs for a core of another configuration"


def test_damaged_images(digits) -> None:
    model = SocModel(digits, [images(1)])
    whole = model.image
    for at, said_of_it in (
        (0, "there is no image, or a damaged one"),
        (4, "the image is for another version of this runtime"),
        (len(whole) // 2, "there is no image, or a damaged one"),
    ):
        model.image = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert failure(model) == f"soc: {said_of_it}"


@pytest.mark.parametrize(
    "address,told",
    [
        (0x7000_0000, "has asked for an address where nothing is, before 7000"),
        (DRAM_BASE + PARTS[ULX3S].size_bytes, "has asked for an address where nothing is, before"),
        (DRAM_BASE + (8 << 20), "has trapped, cause 2 at 40800000"),
    ],
)
def test_code_that_is_not_there(digits, address: int, told: str) -> None:
    """The first step begins where nothing is, beyond the memory, or where it holds zeros."""
    model = SocModel(digits, [images(1)])
    image = bytearray(model.image)
    steps = struct.unpack_from("<I", image, 32)[0] - DRAM_BASE
    struct.pack_into("<I", image, steps + 4, address)
    struct.pack_into("<I", image, 12, checksum(bytes(image[16:])))
    model.image = bytes(image)
    assert failure(model).startswith(f"soc: the processor {told}")


def test_firmware_that_does_not_end(digits) -> None:
    model = SocModel(digits, [images(1)])
    with pytest.raises(VdlaError, match=r"has not ended after 50,000 cycles"):
        list(model.simulator.run(model.firmware, model.image, max_cycles=50_000))
