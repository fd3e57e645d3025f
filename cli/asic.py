"""``vdla asic``: a core in standard cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.params import HwParams
from .files import Reads
from .options import Hw, JsonFile
from .output import count, decimals, emit, percent, show_table
from .steps import steps_shown

app = typer.Typer(help="A core in standard cells.", no_args_is_help=False)


@app.command("estimate")
def asic_estimate(
    liberty: Annotated[
        Path, typer.Option("--liberty", metavar="F", help="The cells: a Liberty file."), Reads()
    ],
    macros: Annotated[
        Path | None,
        typer.Option("--macros", metavar="F", help="RAM macros (TOML); else a formula at 180 nm."),
        Reads(),
    ] = None,
    hw: Hw = "8x8",
    json_file: JsonFile = None,
) -> None:
    """Estimate a core's area by block, and its longest path, in the cells of a Liberty file."""
    from ..hw.asic.macros import DEFAULT

    params = HwParams.load(hw)
    with steps_shown("estimate") as progress:
        from ..hw.asic.estimate import Design, load

        library, table = load(liberty, macros or DEFAULT)
        design = Design.of(params, liberty, library, table, progress)
    body = {"liberty": str(liberty)} | design.body()
    emit("asic estimate", body, json_file, _show, params)


def _show(console: Console, report: dict[str, Any]) -> None:
    total = report["total"]
    rows = [
        (row["block"], count(row["cells"]), count(row["flops"]), decimals_of(row["cells_um2"]),
         count(row["macros"]), decimals_of(row["macros_um2"]), decimals_of(row["area_um2"]),
         percent(row["area_um2"] / total["area_um2"]))
        for row in [*report["blocks"], {"block": "in all"} | total]
    ]  # fmt: skip
    columns = ("block", "cells", "flip-flops", "cells um2", "macros", "macros um2", "um2", "")
    title = f"{report['library']}, {report['voltage']:g} V, configuration {report['config_hash']}"
    show_table(console, title, columns, rows)
    memories = [
        (row["memory"], count(row["words"]), count(row["bits"]), count(row["reads"]),
         f"{row['macros']} of {row['macro_words']} x {row['macro_bits']}",
         decimals_of(row["area_um2"]), decimals(row["access_ns"], 2))
        for row in report["memories"]
    ]  # fmt: skip
    columns = ("memory", "words", "bits", "read ports", "macros", "um2", "access ns")
    table = report["macro_table"]
    show_table(console, f"macros: {table['name']} ({table['origin']})", columns, memories)
    if table["voltage"] != report["voltage"]:
        console.print(f"the macros are for {table['voltage']:g} V, the cells for another voltage")
    path = report["path"]
    steps = ((decimals(s["ns"], 2), count(s["cells"]), s["signal"], s["source"] or "")
             for s in path["steps"])  # fmt: skip
    title = f"longest path: {path['ns']:.2f} ns, {path['mhz']:.1f} MHz, without wires"
    show_table(console, title, ("ns", "cells", "signal", "source"), steps, left=4)
    console.print(", ".join(f"{name} {version}" for name, version in report["tools"].items()))


def decimals_of(um2: float) -> str:
    """An area with commas between thousands."""
    return f"{um2:,.0f}"
