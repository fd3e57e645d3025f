"""``vdla soc``: models on a system on a chip."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import options
from .arrays import model_inputs
from .files import Reads
from .output import decimals, emit, progress_bar

app = typer.Typer(
    help="A system on a chip: the accelerator, a RISC-V processor, memory.", no_args_is_help=False
)


@app.command("run")
def soc_run(
    model: Annotated[
        Path,
        typer.Argument(help="ONNX, TensorFlow Lite, PyTorch (.pt2), Keras, or a SavedModel."),
        Reads(or_folder=True),
    ],
    input_file: options.Inputs = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, max=options.MOST_ROUNDS, help="Take so many of the inputs, or all."),
    ] = None,
    hw: options.Hw = "4x4",
    vthreads: options.Vthreads = 2,
    seed: options.Seed = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Simulate the system with a model, and print what its firmware prints: for each run the class,
    the cycles of the core and those of all steps, a CRC-32 of the outputs.
    """
    from ..soc.model import SocModel, compile_for_soc

    with progress_bar(f"compiling {model.name}") as progress:
        module = compile_for_soc(model, hw, vthreads, progress)
    arrays = [
        array if tensor.axis is None else array[:images]
        for tensor, array in zip(module.inputs, model_inputs(module, input_file, seed), strict=True)
    ]
    system = SocModel(module, arrays)
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


def _show(console: Console, report: dict) -> None:
    speed = report["cycles"] / report["wall_s"] / 1000
    console.print(
        f"firmware {report['firmware_bytes']:,} bytes, image {report['image_bytes']:,}; "
        f"{report['cycles']:,} cycles in {decimals(report['wall_s'], 1)} s, {speed:,.0f} kcycle/s"
    )
