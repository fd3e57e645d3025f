"""``vdla run`` and ``vdla compile``."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from ..compiler.choose.records import Records
from ..isa.errors import VdlaError
from ..isa.memory import load_platform
from ..runtime.files import whole_file, write_text
from . import options
from .arrays import model_inputs
from .files import Fills, Reads, Writes
from .output import (
    count,
    decimals,
    emit,
    new_table,
    percent,
    progress_bar,
    settings,
    show_report,
    show_table,
)

if TYPE_CHECKING:
    from ..module import Module


def run(
    model: Annotated[
        Path,
        typer.Argument(
            help="ONNX, TensorFlow Lite, PyTorch (.pt2), Keras, a SavedModel, a compiled module, or"
            " a network or layer of vdla bench, such as resnet18 or C8."
        ),
        Reads(or_folder=True, or_network=True),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="sim (without it), rtl, cpu, fpga, cuda or opencl; a module has its own."
        ),
    ] = None,
    port: Annotated[str | None, typer.Option(help="Serial device of the board, for fpga.")] = None,
    input_file: options.Inputs = None,
    output: Annotated[
        Path | None, typer.Option(help="Outputs by name (.npz)."), Writes(".npz")
    ] = None,
    hw: options.Hw = "16x16",
    memory: options.Memory = "vta",
    vthreads: options.Vthreads = 2,
    threads: options.Threads = 1,
    shapes: options.Shapes = None,
    dims: options.Dims = None,
    values: options.Values = None,
    states: options.States = None,
    knobs: options.Knobs = None,
    records: options.Records = None,
    seed: options.Seed = 0,
    dump_ir: Annotated[
        Path | None, typer.Option(help="Folder for the IR before and after every pass."), Fills()
    ] = None,
    program: Annotated[
        Path | None, typer.Option(help="Write the accelerator's program to this file."), Writes()
    ] = None,
    clock: options.Clock = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Say why each node runs where, what was chosen for it, and how memory is shared.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Chrome/Perfetto trace of the first batch (JSON)."),
        Writes(),
    ] = None,
    html: options.Html = None,
    roofline: Annotated[
        Path | None,
        typer.Option(help="A picture of the layers under the roofline."),
        Writes(".png"),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="onnxruntime: how far each integer operator of an ONNX model is from its"
            " definition."
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(min=1, max=options.MOST_ROUNDS, help="Runs, of which the median time counts."),
    ] = 1,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Time each loop program of the CPU's code, in more runs."),
    ] = False,
    emulate: options.Emulate = False,
    precision: options.Precision = "float32",
    arch: options.Arch = None,
    json_file: options.JsonFile = None,
    *,
    context: typer.Context,
) -> None:
    """Compile a model, run it, and report cycles and utilisation per layer."""
    from ..compiler.frontends.doors.saved_model import is_saved_model
    from ..module import compile, load
    from ..report.report import header
    from ..sim.runner import PLACES
    from ..sim.trace import write_trace

    _check_against(against, model)
    sizes, tied = options.sizes_of(shapes, dims, values), options.states_of(states)
    if model.is_dir() and not is_saved_model(model):
        _check_not_given(context)
        module = load(model, port, target)
    else:
        with progress_bar(f"compiling {model.name}") as progress:
            target = "sim" if target is None else target
            module = compile(
                _source(model, target, hw, memory), target, hw, memory, vthreads, dump_ir, port,
                threads, knobs, records, emulate, precision, progress, arch, profile,
                **sizes, states=tied,
            )  # fmt: skip
        _note_records(records, module)
        _note_sizes(module)
    if program is not None:
        with whole_file(program) as place:
            module.program.save(place)
    if trace is not None:
        module.check_traceable()
    if roofline is not None and not module.compiled.programs:
        raise VdlaError(
            f"roofline: expected a model that runs on the accelerator, got target {module.target!r}"
            " without one of its operators there"
        )
    arrays = model_inputs(module, input_file, seed)
    with progress_bar(f"{model.name} on {module.target}") as progress:
        times_s = []
        for _ in range(repeat):
            module.reset()
            begin = time.perf_counter()
            outputs = module.run(*arrays, progress=progress)
            times_s.append(time.perf_counter() - begin)
    if output is not None:
        names = [tensor.name for tensor in module.compiled.outputs]
        with whole_file(output) as place:
            np.savez(place, **dict(zip(names, outputs, strict=True)))  # type: ignore[arg-type]
    if trace is not None:
        with whole_file(trace) as place:
            write_trace(place, module.trace)
    report: dict[str, Any] = header("run", module.params, module.memory, seed)
    report |= {"model": model.name} | module.report
    if repeat > 1:
        report["repeat"] = {
            "runs": repeat, "median_s": statistics.median(times_s), "least_s": min(times_s)
        }  # fmt: skip
    if explain and module.target in PLACES and not model.is_dir():
        report["alternatives"] = _alternatives(module)
    if against is not None:
        report["distance"] = _distances(model, module, arrays, sizes["values"])
    if profile:
        from ..bench.profile import profile as profiled

        report["profile"] = profiled(module, module.batches(arrays)[0])
    if clock is not None and report["cycles"] is not None:
        from ..report.report import at_clock

        report.pop("clock_of", None)
        report |= at_clock(report["cycles"], module.params, clock)
    if html is not None:
        write_text(html, _page(report, module))
    if roofline is not None:
        from ..bench.roofline import draw_roofline, model_rows

        with whole_file(roofline) as place:
            draw_roofline(model_rows(report), module.params, module.memory, place)
    show_report(report, json_file, lambda out, told: _show_run(out, told, explain))


def _source(model: Path, target: str, hw: str, memory: str) -> Any:
    """The model's file, or else the network or layer of this name, in int8 for the accelerator."""
    if model.exists():
        return model
    from ..bench.networks import find_model
    from ..sim.runner import PLACES

    params, _ = load_platform(hw, memory)
    return find_model(str(model), params.batch, quantized=target in PLACES)


def _check_against(against: str | None, model: Path) -> None:
    """Raise VdlaError for a library that is not known, and for a model that it does not run."""
    if against is None:
        return
    if against != "onnxruntime":
        raise VdlaError(f"against: expected onnxruntime, got {against!r}")
    if not model.is_file() or model.suffix in (".tflite", ".pt2", ".keras"):
        raise VdlaError(f"against: expected an ONNX model, got {str(model)!r}")


def _alternatives(module: Module) -> list[dict[str, Any]]:
    """What the planner chose from, of a module that was compiled now."""
    from ..compiler.build import CompiledModel
    from ..compiler.targets.base import Options
    from ..compiler.targets.vdla.target import Accelerator
    from ..compiler.tune.alternatives import find_alternatives

    target = Accelerator(Options(module.params, module.memory, module.vthreads))
    compiled = module.compiled
    return list(find_alternatives(compiled, target)) if isinstance(compiled, CompiledModel) else []


def _distances(
    model: Path, module: Module, arrays: list[Any], values: dict[str, Any]
) -> list[dict[str, Any]]:
    """How far the operators are from their definitions, on the first batch."""
    from ..bench.distance import distances

    return [asdict(found) for found in distances(model, module.batches(arrays)[0], values)]


def _page(report: dict[str, Any], module: Module) -> str:
    """The run as an HTML page."""
    from ..pages.measured import Run
    from ..pages.run import run_page

    timing = module.timing
    return run_page(report, None if timing is None else Run(module.compiled.programs, timing))


def _note_sizes(module: Module) -> None:
    """Say so if an open first dimension is not a batch, so that the results are those of a size
    that nobody gave."""
    from ..compiler.batches import open_sizes
    from ..compiler.build import CompiledModel

    compiled = module.compiled
    if isinstance(compiled, CompiledModel) and compiled.batch.why_not:
        sizes = ", ".join(f"{name} = {size}" for name, size in open_sizes(compiled.graph).items())
        print(
            f"note: {compiled.batch.why_not}; so the first dimension is no batch, and the model"
            f" is compiled for {sizes} (--dim)",
            file=sys.stderr,
        )


def _note_records(path: Path | None, module: Module) -> None:
    """Say so if a file has records, but none of the machine that a module is for."""
    if path is None:
        return
    from ..compiler.targets.base import Options
    from ..compiler.targets.registry import find_target

    machine = Options(module.params, module.memory, module.vthreads, module.settings.threads)
    target = find_target(module.target, machine)
    if target.machine_key not in Records.load(path).machines(target.name):
        what = "processor" if target.host is None else "configuration and memory"
        print(f"vdla: {path} has no records of this {what}; none is applied", file=sys.stderr)


#: Options of ``vdla run`` that say how a model is compiled.
_COMPILING = (
    "hw", "memory", "vthreads", "threads", "knobs", "records", "dump_ir", "precision", "arch",
    "profile",
)  # fmt: skip


def _check_not_given(context: typer.Context) -> None:
    """Raise VdlaError for options that a compiled module cannot follow any more."""
    for name in _COMPILING:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise VdlaError(
                f"model: expected a model to compile with {option}, got a compiled module, whose "
                "choices are made; compile the model again"
            )


def _show_run(console: Console, report: dict[str, Any], explain: bool) -> None:
    from ..report.report import HOST, float_text, on_host, time_text

    names = ["layer", "op", "runs on", "cycles", "MACs", "spatial", "temporal", "end to end"]
    kinds = ["spatial", "temporal", "end_to_end"]
    if report["vector_macs"]:
        names, kinds = [*names, "vector"], [*kinds, "vector"]
    table = new_table(
        f"{report['target']}, configuration {report['config_hash']}", *names, left=3,
        first_to_go=("main stall", "busiest unit", "temporal", "spatial", "vector", "bound by",
                     "runs on", "of bound", "op"),
    )  # fmt: skip
    table.add_column("of bound", justify="right")
    for name in ("bound by", "busiest unit", "main stall"):
        table.add_column(name)
    total = {"name": "total", "op": "", "target": "", "busiest_unit": None, "main_stall": None}
    if report["target"] != HOST:
        total["name"] += f", programs: {report['programs']:,}"
        total["op"] = f"host {on_host(report['coverage'])}"
    rows = [*report["layers"], {**report, **total}]
    for row in rows:
        if row is rows[-1]:
            table.add_section()
        use = row["utilisation"] or {}
        table.add_row(
            row["name"],
            row["op"],
            row["target"],
            count(row["cycles"]),
            count(row["macs"]),
            *(percent(use.get(kind)) for kind in kinds),
            percent(row["roofline_fraction"]),
            *(row[name] or "" for name in ("bound_by", "busiest_unit", "main_stall")),
        )
    console.print(table)
    if report["cycles"] is not None:
        time = time_text(report)
        console.print(
            f"{report['cycles']:,} cycles{time and f' ({time})'}; a cycle belongs to "
            "the earliest layer that has not ended, percentages are of the cycles in which a layer "
            "is active"
        )
    if report["vector_macs"]:
        console.print(
            "spatial and end to end: the tensor core's MACs of its peak; vector: those of the"
            " vector unit of its own"
        )
    _show_reasons(console, report, explain)
    _show_stalls(console, report.get("stalls", {}))
    _show_distances(console, report.get("distance", []))
    _show_profile(console, report.get("profile"))
    for name, output in report["outputs"].items():
        shape = "x".join(map(str, output["shape"]))
        console.print(f"output {name}: {output['dtype']} {shape}, sha256 {output['sha256'][:16]}")
    batches = "batch" if report["batches"] == 1 else "batches"
    console.print(f"{report['batches']} {batches} in {_time(report['wall_s'])}")
    if "repeat" in report:
        told = report["repeat"]
        console.print(
            f"{told['runs']} runs: median {_time(told['median_s'])}, least {_time(told['least_s'])}"
        )
    if text := float_text(report):
        console.print(text)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3f} ms"


def _show_profile(console: Console, profile: dict[str, Any] | None) -> None:
    """Loop programs, those first that take longest."""
    if profile is None:
        return
    peaks = ", ".join(f"{name} {gops:,.0f} GOP/s" for name, gops in profile["peaks"].items())
    title = f"profile: {profile['run_ms']:.3f} ms, the fastest of {profile['rounds']} runs"
    columns = ("loop program", "op", "ms", "share", "GOP/s", "GB/s", "reached")
    rows = [
        (row["name"], row["op"], decimals(row["ms"]), percent(row["share"]),
         decimals(row["gops"], 1), decimals(row["gb_per_s"], 1), percent(row["reached"]))
        for row in sorted(profile["rows"], key=lambda row: -row["ms"])
    ]  # fmt: skip
    show_table(console, title, columns, rows, left=2)
    console.print(
        f"reached: of the measured peak ({peaks or 'no products'}), convolutions counted as direct "
        f"ones; memory is copied at {profile['copied_gb_per_s']:.1f} GB/s, caches are faster; "
        f"{profile['rest_ms']:.3f} ms of a run are in no loop program, of which the timers take "
        f"about {profile['timer_ms']:.3f}"
    )


def _show_distances(console: Console, rows: list[dict[str, Any]]) -> None:
    """How many elements of each result are how many steps of its quantisation off."""
    if not rows:
        return
    steps = [str(i) for i in range(len(rows[0]["counts"]) - 1)]
    names = ("layer", "op", *steps, f"{len(steps)} or more", "largest")
    title = "elements by their distance from ONNX's definition, in steps of the quantisation"
    told = ((r["name"], r["op"], *map(count, (*r["counts"], r["largest"]))) for r in rows)
    show_table(console, title, names, told, left=2)


def _show_reasons(console: Console, report: dict[str, Any], explain: bool) -> None:
    """What the host does; and if it is asked, why each node runs where it runs."""
    from ..report.report import HOST, host_text

    if report["target"] != HOST:
        console.print(host_text(report) + ("" if explain else "; --explain says why"))
    if explain:
        told = ((row[k] for k in ("name", "op", "target", "reason")) for row in report["layers"])
        columns = ("node", "op", "runs on", "why")
        title = "where each node runs, and why"
        show_table(console, title, columns, told, left=4, first_to_go=("op",))
        _show_choices(console, report["layers"])
        _show_alternatives(console, report.get("alternatives", []))
        if report["plan"]:
            plan = settings(report["plan"])
            console.print(f"plan of the program, by its simulated cycles: {plan}")
        _show_kernels(console, report["layers"])
        _show_memory_plan(console, report["memory_plan"])


def _show_choices(console: Console, layers: list[dict[str, Any]]) -> None:
    """What was chosen for each layer, by whom, and what it was predicted to cost."""
    names = ("layer", "knobs", "chosen by", "predicted cycles", "active cycles")
    rows = [
        (row["name"], settings(row["knobs"]), row["chosen_by"],
         count(row["predicted_cycles"]), count(row["active_cycles"]))
        for row in layers if row["knobs"]
    ]  # fmt: skip
    if rows:
        show_table(console, "what was chosen", names, rows, left=3)


def _show_alternatives(console: Console, layers: list[dict[str, Any]]) -> None:
    """Of each layer the choice, and where others differ from it."""
    names = ("layer", "knobs", "predicted cycles", "bound by", "legal", "of")
    table = new_table("what the planner chose from", *names, left=2)
    for layer in layers:
        chosen = next((one["knobs"] for one in layer["best"] if one["chosen"]), {})
        counts = count(layer["legal"]), count(layer["choices"])
        for number, one in enumerate(sorted(layer["best"], key=lambda one: not one["chosen"])):
            other = {k: v for k, v in one["knobs"].items() if v != chosen.get(k)}
            told = "chosen" if one["chosen"] else settings(other)
            name, of = ("", ("", "")) if number else (layer["name"], counts)
            table.add_row(name, told, count(one["cycles"]), one["bound_by"] or "", *of)
    if table.row_count:
        console.print(table)
        console.print(
            "the planner also counts what a choice costs the layers beside it, so that one with "
            "fewer predicted cycles may lose"
        )


def _show_kernels(console: Console, layers: list[dict[str, Any]]) -> None:
    """What the kernels of a GPU move; of sectors and banks the worst of their accesses."""
    names = ("kernel", "blocks", "threads", "bytes read", "written", "barriers", "sectors", "banks")
    table = new_table("what kernels move, counted without running them", *names)
    for kernel in (kernel for row in layers for kernel in row.get("kernels", ())):
        sizes = (prod(kernel["grid"]), prod(kernel["block"]), kernel["bytes_read"])
        table.add_row(
            kernel["name"],
            *map(count, (*sizes, kernel["bytes_written"], kernel["barriers"])),
            f"{max(kernel['sectors'].values(), default=1.0):.2f}",
            count(max(kernel["conflicts"].values(), default=1)),
        )
    if table.row_count:
        console.print(table)
        console.print(
            "sectors: how many times the 32-byte sectors that the bytes need; banks: how many "
            "times as long as without conflicts in shared memory"
        )


def _show_stalls(console: Console, stalls: dict[str, dict[str, int]]) -> None:
    if not stalls:
        return
    causes = list(dict.fromkeys(cause for unit in stalls.values() for cause in unit))
    rows = ((unit, *map(count, map(counts.get, causes))) for unit, counts in stalls.items())
    show_table(console, "where the cycles of each unit went", ("unit", *causes), rows)


def compile_model(
    model: Annotated[
        Path,
        typer.Argument(help="ONNX, TensorFlow Lite, PyTorch (.pt2), Keras, or a SavedModel."),
        Reads(or_folder=True),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write."), Fills()],
    target: Annotated[str, typer.Option(help="sim, rtl, cpu, cuda or opencl.")] = "sim",
    triple: Annotated[
        str | None,
        typer.Option(help="Another machine's triple, such as aarch64-linux-gnu, for cpu."),
    ] = None,
    hw: options.Hw = "16x16",
    memory: options.Memory = "vta",
    vthreads: options.Vthreads = 2,
    threads: options.Threads = 1,
    shapes: options.Shapes = None,
    dims: options.Dims = None,
    values: options.Values = None,
    states: options.States = None,
    knobs: options.Knobs = None,
    records: options.Records = None,
    emulate: options.Emulate = False,
    precision: options.Precision = "float32",
    arch: options.Arch = None,
    json_file: options.JsonFile = None,
) -> None:
    """Compile a model to a folder that runs without the compiler: vdla.load, or C for the CPU."""
    from ..module import compile, cross_compile
    from ..runtime.bundle import read_manifest

    if triple is not None and target != "cpu":
        raise VdlaError(f"triple: expected target 'cpu' with a triple, got {target!r}")
    if triple is not None and threads != 1:
        raise VdlaError(f"threads: expected 1 with a triple, got {threads}")
    sizes, tied = options.sizes_of(shapes, dims, values), options.states_of(states)
    if target == "cpu" and triple is None:
        from ..compiler.targets.cpu.link import find_linker

        find_linker()
    with progress_bar(f"compiling {model.name}") as progress:
        if triple is not None:
            cross_compile(model, output, triple, hw, knobs, records, progress, **sizes, states=tied)
        else:
            module = compile(
                model, target, hw, memory, vthreads, threads=threads, knobs=knobs, records=records,
                emulate=emulate, precision=precision, arch=arch, progress=progress, **sizes,
                states=tied,
            )  # fmt: skip
            _note_records(records, module)
            _note_sizes(module)
            module.save(output)
    manifest = read_manifest(output)
    body: dict[str, Any] = {"model": model.name, "output": str(output)}
    body |= {key: manifest[key] for key in ("target", "triple", "features", "memory_plan")}
    body["files"] = {name: size for name, (size, _) in manifest["files"].items()}
    emit("compile", body, json_file, _show_compiled)


def _show_compiled(console: Console, report: dict[str, Any]) -> None:
    console.print(f"{report['output']}: {report['target']}, code for {report['triple']}")
    files = ((name, count(size)) for name, size in report["files"].items())
    show_table(console, "", ("file", "bytes"), files)
    _show_memory_plan(console, report["memory_plan"])


def _show_memory_plan(console: Console, plans: list[dict[str, Any]]) -> None:
    """How tensors share memory: the plan against all side by side, and against the least."""
    columns = ("where", "tensors", "side by side", "planned", "least possible")
    names = ("values", "sum_bytes", "planned_bytes", "bound_bytes")
    rows = ((plan["where"], *(count(plan[name]) for name in names)) for plan in plans)
    show_table(console, "memory between operators, in bytes", columns, rows)
