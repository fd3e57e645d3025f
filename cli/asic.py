"""``vdla asic``: a core in standard cells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.memory import load_platform
from .files import Reads
from .options import Hw, JsonFile, Memory
from .output import count, decimals, emit, percent, show_table
from .steps import steps_shown

if TYPE_CHECKING:
    from ..hw.asic.energy import Energy

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
    layer: Annotated[
        str | None,
        typer.Option(metavar="C8", help="Also energy: of this layer of vdla bench table2."),
    ] = None,
    clock: Annotated[
        float | None,
        typer.Option(min=0.001, max=10_000, help="MHz, for power; else the longest path's."),
    ] = None,
    memory: Memory = "vta",
    json_file: JsonFile = None,
) -> None:
    """Estimate a core's area by block, and its longest path, in the cells of a Liberty file."""
    from ..bench.table2 import choose_layers
    from ..hw.asic.estimate import Design, load
    from ..hw.asic.macros import DEFAULT

    params, memory_params = load_platform(hw, memory)
    found = None if layer is None else choose_layers([layer])[0]
    if clock is not None and layer is None:
        raise VdlaError("clock: expected --layer with it; without a layer there is no power")
    library, table = load(liberty, macros or DEFAULT)
    with steps_shown("estimate") as progress:
        design = Design.of(params, liberty, library, table, progress)
        body: dict[str, Any] = {"liberty": str(liberty)} | design.body() | {"energy": None}
        if found is not None:
            from ..bench.toggles import layer_energy

            progress(f"verilator: {layer}")
            mhz = body["path"]["mhz"] if clock is None else clock
            body["energy"] = _energy(found.name, mhz, *layer_energy(found, design, memory_params))
    emit("asic estimate", body, json_file, _show, params, memory_params if found else None)


def _energy(layer: str, mhz: float, cycles: int, energy: Energy) -> dict[str, Any]:
    """The fields of the report that say what a layer takes."""
    return {
        "layer": layer, "cycles": cycles, "sampled_cycles": energy.cycles, "clock_mhz": mhz,
        "toggles_per_cycle": energy.toggles, "pj_per_cycle": energy.pj,
        "leakage_nw": energy.leakage_nw,
        "power_mw": energy.pj * mhz * 1e-3 + energy.leakage_nw * 1e-6,
        "layer_uj": energy.microjoules(cycles, mhz),
        "blocks": energy.rows(mhz),
        "accesses": [{"memory": name, **vars(one)} for name, one in energy.accesses.items()],
    }  # fmt: skip


def _show(console: Console, report: dict[str, Any]) -> None:
    total = report["total"]
    rows = [
        (row["block"], count(row["cells"]), count(row["flops"]), count(round(row["cells_um2"])),
         count(row["macros"]), count(round(row["macros_um2"])), count(round(row["area_um2"])),
         percent(row["area_um2"] / total["area_um2"]))
        for row in [*report["blocks"], {"block": "in all"} | total]
    ]  # fmt: skip
    columns = ("block", "cells", "flip-flops", "cells um2", "macros", "macros um2", "um2", "")
    title = f"{report['library']}, {report['voltage']:g} V, configuration {report['config_hash']}"
    show_table(console, title, columns, rows)
    memories = [
        (row["memory"], count(row["words"]), count(row["bits"]), count(row["reads"]),
         f"{row['macros']} of {row['macro_words']} x {row['macro_bits']}",
         count(round(row["area_um2"])), decimals(row["access_ns"], 2))
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
    if report["energy"] is not None:
        _show_energy(console, report["energy"])
    console.print(", ".join(f"{name} {version}" for name, version in report["tools"].items()))


def _show_energy(console: Console, energy: dict[str, Any]) -> None:
    names = ("switching_pj", "internal_pj", "clock_pj", "macros_pj", "pj", "mw")
    rows = ((row["block"], *(decimals(row[name], 1) for name in names))
            for row in energy["blocks"])  # fmt: skip
    title = f"{energy['layer']}: {energy['layer_uj']:,.1f} uJ in {energy['cycles']:,} cycles, "
    title += f"{energy['power_mw']:,.1f} mW at {energy['clock_mhz']:.1f} MHz"
    columns = ("pJ a cycle", "nets", "in cells", "clock", "macros", "in all", "mW")
    show_table(console, title, columns, rows)
    console.print(
        f"{energy['toggles_per_cycle']:,.0f} toggles a cycle, in {energy['sampled_cycles']:,} "
        f"cycles; leakage {energy['leakage_nw'] / 1000:,.1f} uW"
    )
