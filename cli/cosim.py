"""``vdla cosim``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.sdram import PARTS, ULX3S
from .arrays import model_inputs
from .coverage import show_lines, show_summary, summary
from .files import Merges, Reads, Writes
from .options import MOST, CoverageFile, Inputs, JsonFile, Memory, Seed
from .output import count, emit, progress_bar
from .replay import recorded_block, replacements, replay_block, save_recording, show_divergence

if TYPE_CHECKING:
    from ..cosim.replace import Replacement
    from ..cosim.runner import Design

    #: Runs everything by a function that runs one program on its memory.
    RunAll = Callable[[Callable[[Program, np.ndarray], object]], object]

PROGRAM_SUFFIX = ".vdla"
#: What the waveform around a divergence shows.
_BEFORE_CYCLES, _AFTER_CYCLES = 200, 20
#: Where the core is: each a method of ``Design``.
PLACES = ("core", "ip", "board", "gates")


def cosim(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL|PROGRAM", help="Model or .vdla file; none with --replay."),
        Reads(),
    ] = None,
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
    seed: Seed = 0,
    input_file: Inputs = None,
    bench: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Your cocotb tests in place of ours."),
        Reads(".py"),
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
        Path | None,
        typer.Option(metavar="FILE.vcd", help="Write a waveform (slower)."),
        Writes(".vcd"),
    ] = None,
    waves_from: Annotated[
        int, typer.Option("--from", min=0, max=MOST, help="First cycle of the waveform.")
    ] = 0,
    until: Annotated[
        int | None, typer.Option(min=0, max=MOST, help="Stop after this cycle.")
    ] = None,
    coverage: CoverageFile = None,
    line_coverage: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Merge lines, branches and toggles of the RTL (slower)."),
        Merges(),
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="BLOCK=FILE", help="Record the traffic at the ports of a block."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Drive the recorded block, or the one of --replace, by itself."
        ),
        Reads(),
    ] = None,
    untimed: Annotated[
        bool, typer.Option("--untimed", help="Compare a replay in order only, not by cycles.")
    ] = False,
    quiet_cycles: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Give up what does nothing, or is late, for so many cycles."
        ),
    ] = None,
    json_file: JsonFile = None,
    *,
    context: typer.Context,
) -> int:
    """Run a model or a program on the Verilog RTL under cocotb, compared as it runs: bytes when
    instructions end, cycles with SimPy, the rules of AXI, counters.
    """
    from ..cosim.runner import require_tools

    require_tools()
    from ..cosim.axi import PAUSES
    from ..cosim.job import Settings
    from ..cosim.lines import LineCoverage
    from ..cosim.session import Session
    from ..sim.coverage.coverage import Coverage
    from ..sim.coverage.timeline import Moments

    if replay is not None:
        _check_replay(context)
        return replay_block(source, replay, replace, untimed, quiet_cycles, waves, json_file)
    if source is None:
        raise VdlaError("cosim: expected a model or a program, or --replay with a recording")
    if untimed:
        raise VdlaError("untimed: expected --replay with a recording; a core runs by cycles")
    block, record_file = recorded_block(record)
    if pauses not in PAUSES:
        raise VdlaError(f"pauses: expected one of {', '.join(PAUSES)}, got {pauses!r}")
    if pauses != "off" and not axi_ram:
        raise VdlaError(f"pauses: expected --axi-ram with {pauses!r}; the memory model has none")
    inside = {
        "replace": replace, "record": record, "line-coverage": line_coverage, "from": waves_from,
    }  # fmt: skip
    _check_place(on, axi_ram, inside)
    memory = _memory_of(on, memory, context)
    params, memory_params, run_all = _load(source, hw, memory, input_file, seed)
    settings = Settings(None if axi_ram else memory_params, pauses, seed, until, record=block)
    if quiet_cycles is not None:
        settings = dataclasses.replace(settings, quiet_cycles=quiet_cycles)
    if (blocks := replacements(replace, params)) is None:
        return 2
    collected = None if coverage is None else Coverage.of_file(coverage, params)
    if line_coverage is not None:
        LineCoverage.load(line_coverage)  # refuses another file now
    design = _design(params, on, blocks, line_coverage is not None)
    session = Session(design, settings, bench, waves, waves_from, line_coverage)
    results: list[dict[str, Any]] = []

    with progress_bar(f"{source.name} on the RTL") as progress:

        def execute(program: Program, dram: np.ndarray) -> None:
            before = dram.copy()
            results.append(session.run(program, dram, progress))
            if collected is not None:
                collected.sample(program, before, Moments.of(results[-1]))
            if results[-1]["first_divergence"] is not None:
                raise _FoundError

        with suppress(_FoundError):
            run_all(execute)
    report = _summary(source, results, settings, on)
    if coverage is not None and collected is not None:
        collected.ran(source.name, "cosim", seed, len(results))
        collected.save(coverage)
        report["coverage"] = summary(collected)
    if line_coverage is not None:
        report["line_coverage"] = LineCoverage.load(line_coverage).summary()
    if report["first_divergence"] is not None:
        report["repeat"] = _repeat(
            source, hw, memory, settings, replace or [], on, report["first_divergence"]
        )
    elif record_file is not None:
        report["recording"] = save_recording(session.recordings, source, record_file)
    machine = (params, memory_params, seed)
    emit("cosim", report, json_file, lambda out, told: _show(out, told, waves), *machine)
    return 1 if report["first_divergence"] else 0


#: Parameters that a replay follows.
_OF_REPLAY = ("source", "replay", "replace", "untimed", "quiet_cycles", "waves", "json_file")


def _check_replay(context: typer.Context) -> None:
    """Raise VdlaError for an option that a replay would ignore: a recording says all else."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        by_user = given is not None and given.name == "COMMANDLINE"
        if by_user and parameter.name not in _OF_REPLAY:
            option = parameter.opts[0]
            raise VdlaError(f"replay: expected no {option} with it; a recording says what happens")


def _check_place(on: str, axi_ram: bool, inside: dict[str, object]) -> None:
    """Raise VdlaError for an unknown place, and for options that do not fit to it; ``inside`` has
    those that look into the core.
    """
    if on not in PLACES:
        raise VdlaError(f"on: expected one of {', '.join(PLACES)}, got {on!r}")
    if on == "board" and axi_ram:
        raise VdlaError("on: expected no --axi-ram with 'board', whose memory is its SDRAM")
    for name, value in inside.items():
        if on != "core" and value:
            raise VdlaError(f"on: expected 'core' with --{name}, got {on!r}")


def _memory_of(on: str, memory: str, context: typer.Context) -> str:
    """The memory of a place: the board has one of its own, no other place has it.

    Raises VdlaError where another one is asked for.
    """
    if on != "board":
        if memory in PARTS:
            raise VdlaError(f"memory: expected --on board with {memory!r}, got --on {on}")
        return memory
    given = context.get_parameter_source("memory")
    if given is not None and given.name == "COMMANDLINE" and memory != ULX3S:
        raise VdlaError(f"memory: expected {ULX3S} with --on board, got {memory!r}")
    return ULX3S


def _design(params: HwParams, on: str, blocks: Sequence[Replacement], sources: bool) -> Design:
    """The core of a configuration in a place, or with blocks of the user's."""
    from ..cosim.replace import core_with
    from ..cosim.runner import Design

    if blocks:
        return core_with(params, blocks, sources)
    return Design.core(params, sources=sources) if on == "core" else getattr(Design, on)(params)


class _FoundError(Exception):
    """A divergence has been found: nothing behind it is run."""


def _load(
    source: Path, hw: str | None, memory: str, input_file: Path | None, seed: int
) -> tuple[HwParams, MemoryParams, RunAll]:
    """Configuration, memory, and what runs all programs of a model or the one of a file."""
    from ..module import compile

    if source.suffix != PROGRAM_SUFFIX:
        config = "16x16" if hw is None else hw
        with progress_bar(f"compiling {source.name}") as progress:
            module = compile(source, "sim", config, memory, progress=progress)
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
    """The command that shows a divergence again, with a waveform around it."""
    words = ["vdla cosim", str(source), "--memory", memory, "--seed", str(settings.seed)]
    words += ["--hw", hw] if hw is not None else []
    words += ["--on", on] if on != "core" else []
    if _memory_model(settings, on) == "axi-ram":
        words += ["--axi-ram", "--pauses", settings.pauses]
    words += [word for text in replace for word in ("--replace", text)]
    begin = max(found["cycle"] - _BEFORE_CYCLES, 0)
    window = ["--from", str(begin)] if on == "core" and begin else []
    window += ["--until", str(found["cycle"] + _AFTER_CYCLES)]
    return " ".join([*words, *window, "--waves divergence.vcd"])


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
    show_divergence(console, found)
    if found is not None:
        console.print(f"again, with a waveform: {report['repeat']}")
    if "coverage" in report:
        show_summary(console, report["coverage"])
    if "line_coverage" in report:
        show_lines(console, report["line_coverage"])
    if recording := report.get("recording"):
        console.print(
            f"recorded: {count(recording['cycles'])} cycles of {recording['block']} in "
            f"{recording['file']} ({count(recording['bytes'])} bytes)"
        )
    if waves is not None:
        console.print(f"waveform: {waves} (10 ns a cycle)")
