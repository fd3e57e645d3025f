"""``vdla cosim``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from .arrays import model_inputs
from .options import JsonFile, Memory
from .output import count, emit, new_table, progress_bar

if TYPE_CHECKING:
    import numpy as np

    from ..cosim.runner import Design
    from ..isa.memory import MemoryParams
    from ..isa.params import HwParams
    from ..isa.program import Program

    #: Runs everything by a function that runs one program on its memory.
    RunAll = Callable[[Callable[[Program, np.ndarray], object]], object]

PROGRAM_SUFFIX = ".vdla"
#: Where the core is: each a method of ``Design``.
PLACES = ("core", "ip", "board", "gates")


def cosim(
    source: Annotated[Path, typer.Argument(metavar="MODEL|PROGRAM", help="Model or .vdla file.")],
    hw: Annotated[
        str | None,
        typer.Option("--hw", metavar="F", help="Configuration; 16x16, or the program's own."),
    ] = None,
    memory: Memory = "vta",
    axi_ram: Annotated[
        bool, typer.Option("--axi-ram", help="cocotbext-axi's memory in place of our model.")
    ] = False,
    pauses: Annotated[
        str, typer.Option(help="Of the AXI RAM's channels: off, light or heavy.")
    ] = "off",
    seed: Annotated[int, typer.Option(help="Seed of random inputs and pauses.")] = 0,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Inputs by name (.npz); random without.")
    ] = None,
    bench: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Your cocotb tests in place of ours.")
    ] = None,
    replace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BLOCK=FILE.v|FILE.py:CLASS",
            help="Your block in place of ours: fetch, load, gemm, vector or store.",
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="core; ip: with the AXI ports of vdla fpga export; board: the ULX3S with its "
            "SDRAM; gates: the core's netlist.",
        ),
    ] = "core",
    waves: Annotated[
        Path | None, typer.Option(metavar="FILE.vcd", help="Write a waveform (slower).")
    ] = None,
    until: Annotated[int | None, typer.Option(min=0, help="Stop after this cycle.")] = None,
    json_file: JsonFile = None,
) -> int:
    """Run a model or a program on the Verilog RTL under cocotb, compared as it runs: bytes when
    instructions end, cycles with SimPy, the rules of AXI, counters.
    """
    from ..cosim.runner import require_tools

    require_tools()
    from ..cosim.axi import PAUSES
    from ..cosim.job import Settings
    from ..cosim.session import Session
    from ..report import header

    if pauses not in PAUSES:
        raise VdlaError(f"pauses: expected one of {', '.join(PAUSES)}, got {pauses!r}")
    if pauses != "off" and not axi_ram:
        raise VdlaError(f"pauses: expected --axi-ram with {pauses!r}; the memory model has none")
    _check_place(on, axi_ram, replace or [])
    params, memory_params, run_all = _load(source, hw, memory, input_file, seed)
    modelled = not axi_ram and on != "board"
    settings = Settings(memory_params if modelled else None, pauses, seed, until)
    design = _design(params, on) if not replace else _core_with(params, replace)
    if design is None:
        return 2
    session = Session(design, settings, bench, waves)
    results: list[dict[str, Any]] = []

    with progress_bar(f"{source.name} on the RTL") as progress:

        def execute(program: Program, dram: np.ndarray) -> None:
            results.append(session.run(program, dram, progress))
            if results[-1]["first_divergence"] is not None:
                raise _FoundError

        with suppress(_FoundError):
            run_all(execute)
    report = header("cosim", params, memory_params, seed) | _summary(source, results, settings, on)
    if report["first_divergence"] is not None:
        report["repeat"] = _repeat(
            source, hw, memory, settings, replace or [], on, report["first_divergence"]
        )
    emit(report, json_file, lambda console: _show(console, report, waves))
    return 1 if report["first_divergence"] else 0


def _check_place(on: str, axi_ram: bool, replace: list[str]) -> None:
    """Raise VdlaError for an unknown place, and for options that do not fit to it."""
    if on not in PLACES:
        raise VdlaError(f"on: expected one of {', '.join(PLACES)}, got {on!r}")
    if on == "board" and axi_ram:
        raise VdlaError("on: expected no --axi-ram with 'board', whose memory is its SDRAM")
    if on != "core" and replace:
        raise VdlaError(f"on: expected 'core' with --replace, got {on!r}")


def _design(params: HwParams, on: str) -> Design:
    """The core of a configuration in a place."""
    from ..cosim.runner import Design

    return getattr(Design, on)(params)


def _core_with(params: HwParams, replace: list[str]) -> Design | None:
    """The core with blocks of the user's; None where ports do not fit, which is said."""
    from ..cosim.replace import PortMismatch, Replacement, core_with

    try:
        return core_with(params, [Replacement.parse(text, params) for text in replace])
    except PortMismatch as error:
        for line in error.lines:
            print(f"vdla: {line}", file=sys.stderr)
        return None


class _FoundError(Exception):
    """A divergence has been found: nothing behind it is run."""


def _load(
    source: Path, hw: str | None, memory: str, input_file: Path | None, seed: int
) -> tuple[HwParams, MemoryParams, RunAll]:
    """Configuration, memory, and what runs all programs of a model or the one of a file."""
    from ..isa.memory import MemoryParams
    from ..isa.params import HwParams
    from ..isa.program import Program
    from ..module import compile

    if source.suffix != PROGRAM_SUFFIX:
        module = compile(source, "sim", hw or "16x16", memory)
        if not module.compiled.programs:
            raise VdlaError(f"{source}: no operator of this model runs on the accelerator")
        arrays = model_inputs(module, input_file, seed)
        return (
            module.params, module.memory, lambda execute: module.compiled.run(arrays, execute)
        )  # fmt: skip
    if input_file is not None:
        raise VdlaError("input: expected a model; a program's inputs are random bytes")
    program = Program.load(source)
    if hw is not None:
        program.check_params(HwParams.load(hw))
    memory_params = MemoryParams.load(memory)
    memory_params.check_bus(program.params)
    dram = _random_inputs(program, seed)
    return program.params, memory_params, lambda execute: execute(program, dram)


def _random_inputs(program: Program, seed: int) -> np.ndarray:
    """DRAM before the run, with random bytes where the host puts tensors."""
    import numpy as np

    dram, rng = program.dram_image(), np.random.default_rng(seed)
    for region in program.meta.get("inputs", ()):
        end = region["address"] + region["bytes"]
        dram[region["address"] : end] = rng.integers(0, 256, region["bytes"], np.uint8)
    return dram


def _summary(source: Path, results: list[dict[str, Any]], settings: Any, on: str) -> dict[str, Any]:
    """The fields of the report that say what was compared, and what was found."""
    wall_s = sum(result["wall_s"] for result in results)
    cycles = sum(result["cycles"] for result in results)
    return {
        "model": source.name,
        "on": on,
        "checks": results[-1]["checks"] if results else [],
        "memory_model": _memory_model(settings, on),
        "pauses": settings.pauses,
        "programs": len(results),
        "instructions": sum(result["instructions"] for result in results),
        "cycles": cycles,
        "cycles_compared": all(result["cycles_compared"] for result in results),
        "wall_s": wall_s,
        "kcycles_per_s": cycles / wall_s / 1000 if wall_s else 0.0,
        "expected_divergences": [
            expected for result in results for expected in result["expected_divergences"]
        ],
        "first_divergence": results[-1]["first_divergence"] if results else None,
    }


def _memory_model(settings: Any, on: str) -> str:
    if on == "board":
        return "sdram"
    return "axi-ram" if settings.memory is None else "model"


def _repeat(
    source: Path,
    hw: str | None,
    memory: str,
    settings: Any,
    replace: list[str],
    on: str,
    found: dict[str, Any],
) -> str:
    """The command that shows a divergence again, with a waveform that ends a little behind it."""
    words = ["vdla cosim", str(source), "--memory", memory, "--seed", str(settings.seed)]
    words += ["--hw", hw] if hw is not None else []
    words += ["--on", on] if on != "core" else []
    if _memory_model(settings, on) == "axi-ram":
        words += ["--axi-ram", "--pauses", settings.pauses]
    words += [word for text in replace for word in ("--replace", text)]
    return " ".join([*words, "--until", str(found["cycle"] + 20), "--waves divergence.vcd"])


def _show(console: Console, report: dict[str, Any], waves: Path | None) -> None:
    from ..cosim.job import CHECKS

    compared = "bytes and cycles" if report["cycles_compared"] else "bytes"
    console.print(
        f"{report['model']}: {count(report['instructions'])} instructions in "
        f"{count(report['cycles'])} cycles, {compared} compared, "
        f"{report['kcycles_per_s']:.1f} thousand cycles a second"
    )
    left_out = [name for name in CHECKS if name not in report["checks"]]
    console.print(
        f"on {report['on']}: checked {', '.join(report['checks'])}"
        + (f"; not {', '.join(left_out)}" if left_out else "")
    )
    found = report["first_divergence"]
    for expected in report["expected_divergences"]:
        console.print(
            f"expected by the bench: cycle {expected['cycle']:,}, "
            f"instruction {expected['instruction']}: {expected['what']}: expected "
            f"{expected['expected']}, got {expected['got']}"
        )
    if found is None:
        console.print("no divergence")
    else:
        _show_divergence(console, found)
        console.print(f"again, with a waveform: {report['repeat']}")
    if waves is not None:
        console.print(f"waveform: {waves} (10 ns a cycle)")


def _show_divergence(console: Console, found: dict[str, Any]) -> None:
    table = new_table("first divergence", "", "", left=2)
    table.show_header = False
    rows = {
        "cycle": count(found["cycle"]),
        "instruction": "" if found["instruction"] is None else str(found["instruction"]),
        "unit": found["unit"], "text": found["text"], "layer": found["layer"],
        "stage": found["stage"], "tensor": found["tensor"], "what": found["what"],
        "address": "" if found["address"] is None else hex(found["address"]),
        "expected": found["expected"], "got": found["got"],
    }  # fmt: skip
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    console.print(table)
