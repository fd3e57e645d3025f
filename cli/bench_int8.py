"""``vdla bench quantised`` and ``vdla bench definition``: what networks lose on integers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from .files import Fills
from .options import JsonFile
from .output import count, decimals, emit, new_table, progress_bar, show_table

#: The largest side of images; larger ones take more than the memory of most machines.
MOST_SIDE = 4096
#: The most images: each of the networks' takes seconds.
MOST_IMAGES = 1000


def split_names(names: str) -> list[str]:
    """Names that commas separate."""
    return [name for name in names.split(",") if name]


def read_numbers(option: str, text: str, most: int, such_as: str) -> list[int]:
    """Numbers that commas separate; raises VdlaError for others than 1 to ``most``."""
    found = [int(n) if n.isdecimal() and n.isascii() else 0 for n in text.split(",")]
    if not all(1 <= number <= most for number in found):
        raise VdlaError(
            f"{option}: expected numbers of 1 to {most} such as {such_as}, got {text!r}"
        )
    return found


def quantised(
    models: Annotated[
        str, typer.Option(help="Of bert, mobilenet_v2, vit_tiny.")
    ] = "bert,mobilenet_v2",
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the int8 models here, as ONNX."),
        Fills(),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """What vdla quantize loses on networks with random weights, with smoothing and without."""
    from ..bench.quantised import quantised_rows

    with progress_bar("quantised") as progress:
        rows = quantised_rows(split_names(models), progress, save)
    emit("bench quantised", {"rows": rows}, json_file, _show_quantised, seed=0)


def _show_quantised(console: Console, report: dict[str, Any]) -> None:
    columns = ("network", "options", "SQNR dB", "nodes in int8", "in float", "smoothed")
    rows = (
        (row["network"], row["options"], decimals(row["sqnr_db"], 1),
         *(str(row[name]) for name in ("int8", "float32", "smoothed")))
        for row in report["rows"]
    )  # fmt: skip
    show_table(console, "bench quantised", columns, rows, left=2)


def definition(
    models: Annotated[
        str, typer.Option(help="Of resnet50, mobilenet_v2, mobilenet_v3, efficientnet_lite0.")
    ] = "resnet50,mobilenet_v2,mobilenet_v3,efficientnet_lite0",
    side: Annotated[int, typer.Option(min=32, max=MOST_SIDE, help="Side of images.")] = 224,
    images: Annotated[int, typer.Option(min=1, max=MOST_IMAGES, help="To compare answers.")] = 8,
    json_file: JsonFile = None,
) -> None:
    """How far int8 networks are from ONNX's float definition, and ONNX Runtime's optimised run."""
    from ..bench.definition import definition_rows

    with progress_bar("definition") as progress:
        rows = definition_rows(split_names(models), side, images, progress)
    body = {"side": side, "images": images, "rows": rows}
    emit("bench definition", body, json_file, _show_definition, seed=0)


def _show_definition(console: Console, report: dict[str, Any]) -> None:
    columns = ("network", "operator", "elements", "as defined", "largest distance")
    table = new_table(f"bench definition: images of {report['side']}", *columns, left=2)
    for row in report["rows"]:
        share = f"{100 * row['equal'] / row['elements']:.4f} %"
        if row["error"] is not None:
            share = f"{100 * row['equal'] / row['elements']:.1f} ± {100 * row['error']:.1f} %"
        numbers = (count(row["elements"]), share, str(row["largest"]))
        table.add_row(row["network"], row["what"], *numbers)
    console.print(table)
