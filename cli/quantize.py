"""``vdla quantize``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..runtime.files import whole_file
from . import options
from .arrays import read_arrays
from .files import Reads, Writes, check_files
from .options import JsonFile, Output
from .output import emit, new_table, percent, progress_bar


def quantize(
    model: Annotated[
        Path,
        typer.Argument(help="A float model: ONNX, or what becomes ONNX, such as .pt2."),
        Reads(),
    ],
    samples: Annotated[
        Path,
        typer.Option(help="Typical inputs by name (.npz); runs in order, if there are states."),
        Reads(),
    ],
    output: Output = None,
    method: Annotated[
        str, typer.Option(help="Ranges of activations: minmax, percentile or entropy.")
    ] = "minmax",
    percentile: Annotated[
        float, typer.Option(help="Percent of the values that method percentile keeps.")
    ] = 99.99,
    bias_correction: Annotated[
        bool, typer.Option("--bias-correction", help="Undo the mean error of rounded weights.")
    ] = False,
    least_sqnr: Annotated[
        float | None,
        typer.Option(
            help="Keep the most damaging nodes float until outputs have this SQNR, in dB."
        ),
    ] = None,
    smoothing: Annotated[
        float | None,
        typer.Option(help="0 to 1: move so much of channels' differences into weights (0.5)."),
    ] = None,
    weight_bits: Annotated[
        int, typer.Option(help="8, or 4 with a scale for each 16 input channels.")
    ] = 8,
    dims: options.Dims = None,
    states: options.States = None,
    json_file: JsonFile = None,
) -> None:
    """Quantise a float model to int8 (QDQ ONNX; MODEL_int8.onnx without --output) and compare."""
    import onnx

    from ..compiler.frontends.doors.as_onnx import as_onnx
    from ..compiler.frontends.onnx.importer import input_names, load_model
    from ..compiler.quantize import quantize as quantize_model

    path = output or model.with_name(f"{model.stem}_int8.onnx")
    check_files({"model": (Reads(), model), "output": (Writes(), path)})
    form, sizes = as_onnx(model), options.sizes_of(None, dims, None)["dims"]
    tied = {**form.states, **options.states_of(states)}
    names = [n for n in input_names(load_model(form.model)[0]) if n not in tied]
    arrays = dict(zip(names, read_arrays(samples, names), strict=True))
    with progress_bar(f"quantise {model.name}") as progress:
        made = quantize_model(
            form.model, arrays, method, percentile, bias_correction, least_sqnr, smoothing,
            progress, weight_bits=weight_bits, states=tied, initial=form.initial, dims=sizes,
        )  # fmt: skip
    with whole_file(path) as place:
        onnx.save_model(made.model, str(place))
    body = {"model": model.name, "output": str(path), "states": made.states} | made.report
    body["initial"] = [name for name, value in made.initial.items() if value.any()]
    emit("quantize", body, json_file, _show_quantize)


def _show_quantize(console: Console, report: dict[str, Any]) -> None:
    measured = report["least_sqnr_db"] is not None
    alone = ("alone dB",) if measured else ()
    names = ("node", "op", "type", "scale", "zero point", "SQNR dB", *alone, "why")
    table = new_table(f"{report['model']}, {report['method']}", *names, left=3)
    table.columns[-1].justify = "left"
    for row in report["layers"]:
        scale = "" if row["scale"] is None else f"{row['scale']:.4g}"
        zero = "" if row["zero_point"] is None else str(row["zero_point"])
        numbers = [scale, zero, _decibel(row["sqnr_db"])]
        numbers += [_decibel(row["alone_db"])] if measured else []
        table.add_row(row["name"], row["op"], row["type"], *numbers, row["reason"])
    console.print(table)
    for name, output in report["outputs"].items():
        agreement = percent(output["top1_agreement"])
        text = f", top-1 as float {agreement}" if agreement else ""
        console.print(
            f"output {name}: SQNR {_decibel(output['sqnr_db'])} dB, largest error"
            f" {output['max_error']:.4g}{text}"
        )
    float_nodes = sum(row["type"] != "int8" for row in report["layers"])
    console.print(
        f"{report['output']}: {len(report['layers']) - float_nodes} nodes in int8, {float_nodes} in"
        f" float, {len(report['merged'])} merged; on {report['samples']} batches of samples"
    )
    if report["states"]:
        pairs = (f"--state {before}={after}" for before, after in report["states"].items())
        console.print(f"run it with {' '.join(pairs)}")
    if report["initial"]:
        names = ", ".join(report["initial"])
        console.print(f"{names}: not zeros before the first run; use vdla.compile(initial=...)")
    reasons: dict[str, Counter[str]] = {}
    for row in report["layers"]:
        if row["type"] != "int8":
            reasons.setdefault(row["reason"], Counter())[row["op"]] += 1
    for reason, kinds in reasons.items():
        told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
        console.print(f"float: {told}: {reason}")
    if report["smoothing"] is not None:
        console.print(f"{len(report['smoothed'])} activations smoothed")


def _decibel(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
