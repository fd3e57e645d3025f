"""``vdla fpga``: bitstreams for boards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..isa.program import Program
from .files import Fills, Merges, Reads
from .options import MOST_ROUNDS, JsonFile, Scheduler, Workers, open_workers
from .output import count, decimals, emit, new_table, percent, show_table
from .steps import steps_shown

app = typer.Typer(help="Bitstreams for boards.", no_args_is_help=False)
BoardName = Annotated[
    str, typer.Option("--board", help="Such as ulx3s-85f; a wrong name lists all boards.")
]
BoardHw = Annotated[
    str | None, typer.Option("--hw", metavar="F", help="Preset or TOML; by default the board's.")
]
Seeds = Annotated[int, typer.Option(min=1, max=MOST_ROUNDS, help="Placements to try.")]
Freq = Annotated[
    float | None, typer.Option(min=4, max=400, help="Clock in MHz; by default the board's.")
]
BuildDir = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder; build/BOARD unless given."), Fills()
]


@app.command("estimate")
def fpga_estimate(
    board: BoardName, hw: BoardHw = None, output: BuildDir = None, json_file: JsonFile = None
) -> int:
    """Estimate what a design takes of the device, by synthesis only."""
    return _fpga("estimate", board, hw, output, json_file)


@app.command("build")
def fpga_build(
    board: BoardName,
    hw: BoardHw = None,
    seeds: Seeds = 1,
    freq: Freq = None,
    route_anyway: Annotated[
        bool,
        typer.Option("--route-anyway", help="Route even if the clock is missed by over a quarter."),
    ] = False,
    output: BuildDir = None,
    scheduler: Scheduler = None,
    workers: Workers = 0,
    json_file: JsonFile = None,
) -> int:
    """Build a bitstream; fails when timing or capacity is missed."""
    options = {"seeds": seeds, "freq_mhz": freq, "route_anyway": route_anyway}
    with open_workers("cpu", scheduler, workers) as found:
        return _fpga("build", board, hw, output, json_file, workers=found, **options)


@app.command("table")
def fpga_table(board: BoardName, output: BuildDir = None, json_file: JsonFile = None) -> None:
    """Show what every block size takes of a device, and its clock after placement."""

    with _fpga_tools("table") as (synthesis, progress):
        from ..hw.boards import find_board

        result = synthesis.table(find_board(board), output or Path("build") / board, progress)
    emit("fpga table", result.body, json_file, _show_sizes)


@app.command("sample")
def fpga_sample(
    board: BoardName = "ulx3s-85f",
    points: Annotated[int, typer.Option(min=1, max=500, help="Configurations of the design.")] = 30,
    placed: Annotated[
        int, typer.Option(min=0, max=500, help="Of these, place so many, for the clock.")
    ] = 0,
    largest_block: Annotated[int, typer.Option(min=4, max=32, help="Blocks up to this.")] = 16,
    samples: Annotated[
        Path | None,
        typer.Option(metavar="F", help="File to add to; by default the package's."),
        Merges(),
    ] = None,
    json_file: JsonFile = None,
) -> int:
    """Synthesise a designed sample of configurations, to which the model of resources of vdla
    explore is fitted, and show its error. The same command goes on where it was stopped.
    """

    with _fpga_tools("sample") as (_, progress):
        from ..hw.boards import find_board
        from ..hw.fpga import resources, sample

        chosen = find_board(board)
        path = samples or resources.SAMPLES / f"{chosen.name}.jsonl"
        wanted = sample.design(points, chosen.device, largest_block, chosen.hw.bus_bits)

        def told(count: int, of: int) -> None:
            progress(f"sample {count} of {of}")

        sample.add_samples(chosen, wanted, placed, path, told)
        kept = resources.load_samples(path)
    rows = [
        {"params": one.params.to_dict(), "used": one.used, "placed_mhz": one.placed_mhz}
        for one in kept
    ]
    body: dict[str, Any] = {"board": board, "file": str(path), "rows": rows}
    body |= {"model": None, "error": None}
    try:
        model = resources.ResourceModel.fit(kept, chosen.device)
        errors = model.error | ({"clock": model.clock.error} if model.clock is not None else {})
        body["model"] = {"error": errors, "coefficients": model.named_coefficients()}
    except VdlaError as error:
        body["error"] = str(error)
    emit("fpga sample", body, json_file, _show_sample)
    return 0 if body["model"] else 1


def _show_sample(console: Console, report: dict[str, Any]) -> None:
    console.print(f"{report['file']}: {len(report['rows'])} samples")
    if report["model"] is None:
        console.print(report["error"])
        return
    fitted = report["model"]["coefficients"]
    names = next(iter(fitted.values()))
    rows = ((name, *(f"{one[name]:,.1f}" for one in fitted.values())) for name in names)
    show_table(console, "a unit of this takes", ("", *fitted), rows)
    for name, (median, most) in report["model"]["error"].items():
        console.print(
            f"{name}: off by {percent(median)} in the median, {percent(most)} at most, at samples"
            " that a model has not seen"
        )


@app.command("export")
def fpga_export(
    hw: BoardHw = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder."), Fills()] = Path(
        "build/xilinx"
    ),
    bench: Annotated[
        bool, typer.Option("--bench", help="Also a bench: cocotb tests, for pytest and for make.")
    ] = False,
    program_file: Annotated[
        Path | None,
        typer.Option("--program", metavar="F", help="What the bench runs (.vdla); else random."),
        Reads(),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Write a directory for Xilinx' tools: Verilog with AXI ports, constraints, IP packaging."""

    if program_file is not None and not bench:
        raise VdlaError("program: expected --bench with it; without a bench nothing is run")
    with _fpga_tools("export"):
        from ..hw.boards.pynq_z1 import BOARD, NAME, PART, export

        params = BOARD.hw if hw is None else HwParams.load(hw)
        program = None if program_file is None else Program.load(program_file)
        if program is not None:
            program.check_params(params)
        paths = export(params, output)
        if bench:
            from ..cosim.export import export_bench

            paths += export_bench(params, output, NAME, program)
        files = [str(path) for path in paths]
    body = {"part": PART, "files": files, "vendor_tools": "never run"}
    emit("fpga export", body, json_file, _show_export, params)


def _show_export(console: Console, report: dict[str, Any]) -> None:
    for path in report["files"]:
        console.print(path)
    console.print(f"for {report['part']}; not run through the vendor's tools")


def _fpga(
    what: str, board: str, hw: str | None, output: Path | None, json_file: str | None, **options
) -> int:

    with _fpga_tools(what) as (synthesis, progress):
        from ..hw.boards import find_board

        chosen = find_board(board)
        params = chosen.hw if hw is None else HwParams.load(hw)
        step, folder = getattr(synthesis, what), output or Path("build") / board
        result = step(chosen, params, folder, progress=progress, **options)
    emit(f"fpga {what}", result.body, json_file, show_fpga, params)
    for line in result.missed:
        print(f"vdla: {line}", file=sys.stderr)
    return 1 if result.missed else 0


@contextmanager
def _fpga_tools(what: str) -> Iterator[tuple[Any, Callable[[str], None]]]:
    """The module of the FPGA flow, and a function that shows its progress."""
    with steps_shown(what) as show:
        from ..hw.fpga import synthesis

        yield synthesis, show


def _show_sizes(console: Console, report: dict[str, Any]) -> None:
    names = ("lut", "ff", "dsp", "bram")
    rows = (
        (row["hw"], *(count(row[name]) for name in names),
         "does not fit" if row["missed"] else decimals(row["fmax_mhz"], 1))
        for row in report["rows"]
    )  # fmt: skip
    title = f"{report['board']}, {report['device']}"
    show_table(console, title, ("block", *names, "fmax MHz"), rows)


def show_fpga(console: Console, report: dict[str, Any]) -> None:
    names = ("lut", "ff", "dsp", "bram")
    table = new_table(f"{report['board']}, configuration {report['config_hash']}", "", *names)
    label = "used" if report["synthesised"] else "needed at least; not synthesised"
    table.add_row(label, *(count(report[name]) for name in names))
    table.add_row("of the device", *(percent(report["device_fraction"][name]) for name in names))
    console.print(table)
    bits = ", ".join(f"{name} {bits:,}" for name, bits in report["memory_bits"].items())
    console.print(f"memory bits of the scratchpads, a copy for each read port: {bits}")
    if report.get("fmax_mhz"):
        placed, routed = (_rates(report[name]) for name in ("placed_mhz", "fmax_mhz"))
        console.print(
            f"estimated {placed} MHz, routed {routed} MHz (a seed each), "
            f"target {report['target_mhz']:g} MHz"
        )
    if report.get("critical_path"):
        path = report["critical_path"]
        rows = ((decimals(s["ns"], 2), s["signal"], s["source"] or "") for s in path)
        show_table(console, "critical path", ("ns", "signal", "source"), rows, left=3)
    if report.get("bitstream"):
        console.print(f"{report['bitstream']}: sha256 {report['bitstream_sha256']}")
    console.print(", ".join(f"{name} {version}" for name, version in report["tools"].items()))


def _rates(mhz: list[float | None]) -> str:
    return ", ".join("-" if rate is None else f"{rate:.1f}" for rate in mhz)
