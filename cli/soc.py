"""``vdla soc``: models on a system on a chip."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import options
from .arrays import model_inputs
from .files import Reads
from .fpga import BoardName, BuildDir, Freq, Seeds, show_fpga
from .options import open_workers
from .output import decimals, emit, progress_bar
from .steps import steps_shown

if TYPE_CHECKING:
    from ..module import Module
    from ..soc.model import SocModel

app = typer.Typer(
    help="A system on a chip: the accelerator, a RISC-V processor, memory.", no_args_is_help=False
)
Model = Annotated[
    Path,
    typer.Argument(help="ONNX, TensorFlow Lite, PyTorch (.pt2), Keras, or a SavedModel."),
    Reads(or_folder=True),
]
Images = Annotated[
    int | None,
    typer.Option(min=1, max=options.MOST_ROUNDS, help="Take so many of the inputs, or all."),
]


@app.command("run")
def soc_run(
    model: Model,
    input_file: options.Inputs = None,
    images: Images = None,
    hw: options.Hw = "4x4",
    vthreads: options.Vthreads = 2,
    seed: options.Seed = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Simulate the system with a model, and print what its firmware prints: for each run the class,
    the cycles of the core and those of all steps, a CRC-32 of the outputs.
    """
    system, module = _system(model, hw, vthreads, input_file, images, seed)
    begun, lines = time.perf_counter(), []
    for line in system.run():
        lines.append(line)
        if json_file != "-":
            print(line, flush=True)
    wall_s = time.perf_counter() - begun
    body = {
        "model": model.name, "lines": lines,
        "firmware_bytes": len(system.firmware), "image_bytes": len(system.image),
        "cycles": system.simulator.cycles, "wall_s": wall_s,
    }  # fmt: skip
    emit("soc run", body, json_file, _show, module.params, module.memory, seed)


@app.command("build")
def soc_build(
    model: Model,
    board: BoardName,
    input_file: options.Inputs = None,
    images: Images = None,
    hw: options.Hw = "4x4",
    vthreads: options.Vthreads = 2,
    seeds: Seeds = 1,
    freq: Freq = None,
    output: BuildDir = None,
    seed: options.Seed = 0,
    scheduler: options.Scheduler = None,
    workers: options.Workers = 0,
    json_file: options.JsonFile = None,
) -> int:
    """Build what a board needs to run a model from power-on: a bitstream of the system with its
    firmware, and the image of model and inputs for the flash. Fails when timing or capacity is
    missed.
    """
    with open_workers("cpu", scheduler, workers) as found, steps_shown("soc") as progress:
        from ..hw.soc.ulx3s import check_board, soc_board
        from ..soc.bitstream import build_for_board

        check_board(board)
        system, module = _system(model, hw, vthreads, input_file, images, seed)
        folder, design = output or Path("build") / f"soc-{board}", soc_board(system.firmware)
        result = build_for_board(system, design, folder, seeds, freq, progress, found)
    emit("soc build", result.body, json_file, _show_built, module.params, module.memory, seed)
    for line in result.missed:
        print(f"vdla: {line}", file=sys.stderr)
    return 1 if result.missed else 0


def _system(
    model: Path, hw: str, vthreads: int, input_file: Path | None, images: int | None, seed: int
) -> tuple[SocModel, Module]:
    """A model with its inputs, and what it was compiled to."""
    from ..soc.model import SocModel, compile_for_soc

    with progress_bar(f"compiling {model.name}") as progress:
        module = compile_for_soc(model, hw, vthreads, progress)
    arrays = [
        array if tensor.axis is None else array[:images]
        for tensor, array in zip(module.inputs, model_inputs(module, input_file, seed), strict=True)
    ]
    return SocModel(module, arrays), module


def _show_built(console: Console, report: dict) -> None:
    show_fpga(console, report)
    for command in report["commands"]:
        console.print(command)


def _show(console: Console, report: dict) -> None:
    speed = report["cycles"] / report["wall_s"] / 1000
    console.print(
        f"firmware {report['firmware_bytes']:,} bytes, image {report['image_bytes']:,}; "
        f"{report['cycles']:,} cycles in {decimals(report['wall_s'], 1)} s, {speed:,.0f} kcycle/s"
    )
