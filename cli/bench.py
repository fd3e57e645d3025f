"""``vdla bench``: layers and networks that accelerators are compared on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.memory import load_platform
from ..runtime.files import whole_file
from . import options
from .bench_int8 import definition, quantised, read_numbers, split_names
from .bench_tokens import tokens
from .files import Fills, Merges, Reads, Writes
from .output import count, decimals, emit, new_table, percent, progress_bar, show_table

app = typer.Typer(help="Layers and networks that accelerators are compared on.")
for command in (quantised, definition, tokens):
    app.command()(command)

BenchTarget = Annotated[str, typer.Option("--target", help="sim or rtl.")]
#: Images that a network is measured with at once, at most.
MOST_BATCH = 1024
#: Rows of a product that is measured, at most.
MOST_SIZE = 32768
Kinds = Annotated[
    str, typer.Option(help="Of int8, float32, tf32, float16 and bfloat16; by default all.")
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Both simulators, which must agree in every cycle.")
]


def _simulators(target: str, compare: bool) -> tuple[str, ...]:
    if target not in ("sim", "rtl"):
        raise VdlaError(f"target: expected sim or rtl, got {target!r}")
    return ("sim", "rtl") if compare else (target,)


@app.command()
def table2(
    target: BenchTarget = "sim",
    memory: options.Memory = "vta",
    hw: options.Hw = "16x16",
    layers: Annotated[str, typer.Option(help="Names such as C2,D3; by default all.")] = "",
    vthreads: options.Vthreads = 2,
    compare: Compare = False,
    json_file: options.JsonFile = None,
) -> None:
    """The convolutions of the TVM paper's table 2, each alone."""
    from ..bench.table2 import choose_layers, table2_rows

    params, memory_params = load_platform(hw, memory)
    chosen, simulators = choose_layers(split_names(layers)), _simulators(target, compare)
    with progress_bar("table 2") as advance:
        rows = table2_rows(chosen, params, memory_params, simulators, (vthreads,), advance)
    emit("bench table2", {"rows": rows}, json_file, _show_layers, params, memory_params, 0)


@app.command()
def networks(
    target: BenchTarget = "sim",
    memory: options.Memory = "vta",
    hw: options.Hw = "16x16",
    models: Annotated[
        str, typer.Option(help="Names such as resnet18,bert; by default the five of the paper.")
    ] = "",
    compare: Compare = False,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the models here, as ONNX."), Fills()
    ] = None,
    records: options.Records = None,
    json_file: options.JsonFile = None,
) -> None:
    """Whole networks with random weights."""
    params, memory_params = load_platform(hw, memory)
    simulators = _simulators(target, compare)
    with progress_bar("networks") as advance:
        from ..bench.networks import network_rows  # takes a second

        rows = network_rows(
            split_names(models), params, memory_params, simulators, advance, save, records
        )
    emit("bench networks", {"rows": rows}, json_file, _show_networks, params, memory_params, 0)
    failed = [f"{row['model']}: {row['error']}" for row in rows if row["error"]]
    if failed:
        raise VdlaError("; ".join(failed))


@app.command()
def roofline(
    png: Annotated[Path, typer.Option(help="The picture to write."), Writes(".png")],
    target: BenchTarget = "sim",
    memory: options.Memory = "vta",
    hw: options.Hw = "16x16",
    layers: Annotated[str, typer.Option(help="Names such as C2,C3; by default all C layers.")] = "",
    json_file: options.JsonFile = None,
) -> None:
    """The paper's figure 10: layers with one and two virtual threads under the roofline."""
    from ..bench.roofline import draw_roofline
    from ..bench.table2 import choose_layers, table2_rows
    from ..bench.workloads import TABLE_2

    params, memory_params = load_platform(hw, memory)
    names = split_names(layers) or [layer.name for layer in TABLE_2 if layer.groups == 1]
    chosen, simulators = choose_layers(names), _simulators(target, False)
    with progress_bar("roofline") as advance:
        rows = table2_rows(chosen, params, memory_params, simulators, (1, 2), advance)
    with whole_file(png) as place:
        draw_roofline(rows, params, memory_params, place)
    body = {"rows": rows, "png": str(png)}
    emit("bench roofline", body, json_file, _show_layers, params, memory_params, 0)


@app.command("cpu")
def bench_cpu(
    models: Annotated[
        str, typer.Option(help="'all' (of today's, in float only), 'none', or gru,gru-int8.")
    ] = "all",
    ops: Annotated[
        str,
        typer.Option(
            help="'table2', 'products', each also with -int8, or layers and sizes such as "
            "C2,C3-int8,128x768x3072."
        ),
    ] = "",
    rounds: options.Rounds = 15,
    threads: options.Threads = 1,
    json_file: options.JsonFile = None,
) -> None:
    """The host's machine code against ONNX Runtime, and OpenVINO if it is installed, in turns."""
    from ..bench.cpu import INT8, MODELS, cpu_rows, peaks
    from ..bench.workloads import PRODUCTS, TABLE_2

    networks = {"all": list(MODELS), "none": []}.get(models, split_names(models))
    named = {"table2": TABLE_2, "products": PRODUCTS}
    suffix = INT8 if ops.endswith(INT8) else ""
    every = named.get(ops.removesuffix(INT8))
    layers = [layer.name + suffix for layer in every] if every else split_names(ops)
    with progress_bar("cpu") as advance:
        rows = cpu_rows(networks, layers, rounds, advance, threads)
    body = {"threads": threads, "rounds": rounds, "peak": peaks(rows), "rows": rows}
    emit("bench cpu", body, json_file, _show_cpu)


def _show_cpu(console: Console, report: dict[str, Any]) -> None:
    peers = list(report["rows"][0]["peers_ms"]) if report["rows"] else []
    columns = ("", "ms", *(f"{peer} ms" for peer in peers), "ratio", "control", "kernel ms")
    rows = (
        (row["name"], *map(decimals, (row["ours_ms"], *map(row["peers_ms"].get, peers),
         row["ratio"], row["control"], row["kernel_ms"])), f"{row['gflops']:.1f}",
         f"{percent(row['peak_fraction'])} ({row['instruction']})")
        for row in report["rows"]
    )  # fmt: skip
    title = f"bench cpu: threads {report['threads']}, medians"
    show_table(console, title, (*columns, "GOP/s", "of peak"), rows)


@app.command()
def speed(
    memory: options.Memory = "vta",
    hw: options.Hw = "16x16",
    models: Annotated[
        str, typer.Option(help="Networks or model files with float inputs.")
    ] = "resnet18",
    rounds: options.Rounds = 3,
    json_file: options.JsonFile = None,
) -> None:
    """The speed of the SimPy model and of the RTL, which take turns."""
    from ..bench.speed import speed_rows

    params, memory_params = load_platform(hw, memory)
    with progress_bar("speed") as advance:
        rows = speed_rows(split_names(models), params, memory_params, rounds, advance)
    emit("bench speed", {"rows": rows}, json_file, _show_speed, params, memory_params, 0)


def _show_speed(console: Console, report: dict[str, Any]) -> None:
    columns = (
        "model", "instructions", "cycles", "SimPy", "first", "timing only", "RTL", "RTL cycles/s",
        "RTL / SimPy", "RTL / timing",
    )  # fmt: skip
    rows = (
        (Path(row["model"]).stem, count(row["instructions"]), count(row["cycles"]),
         *(f"{row[key]:.3f} s" for key in ("sim_s", "first_s", "timing_s", "rtl_s")),
         count(round(row["rtl_cycles_per_s"])), f"{row['ratio']:.1f}x",
         f"{row['timing_ratio']:.1f}x")
        for row in report["rows"]
    )  # fmt: skip
    show_table(console, _bench_title(report), columns, rows)


def _bench_title(report: dict[str, Any]) -> str:
    memory = report["memory"] if isinstance(report["memory"], str) else "custom"
    return f"{report['command']}: configuration {report['config_hash']}, memory {memory}"


def _show_layers(console: Console, report: dict[str, Any]) -> None:
    times = _times(report)
    table = new_table(
        _bench_title(report), "layer", "threads", "cycles", *times, "perfect", "roofline",
        "of roofline", "end to end", "sim - rtl",
    )  # fmt: skip
    for row in report["rows"]:
        both = row["sim_cycles"] is not None and row["rtl_cycles"] is not None
        table.add_row(
            row["layer"], str(row["vthreads"]), count(row["cycles"]), *_time_cells(row, times),
            count(round(row["vector_cycles"] or row["mac_cycles"])),
            count(round(row["roofline_cycles"])), percent(row["roofline_fraction"]),
            percent(row["end_to_end"]),
            count(row["sim_cycles"] - row["rtl_cycles"]) if both else "",
        )  # fmt: skip
    console.print(table)


def _times(report: dict[str, Any]) -> tuple[str, ...]:
    """Columns of times, where the machine's clock is known."""
    return ("ms", "images/s") if any("time_ms" in row for row in report["rows"]) else ()


def _time_cells(row: dict[str, Any], times: tuple[str, ...]) -> list[str]:
    return [decimals(row[name]) for name in ("time_ms", "images_per_s")] if times else []


def _show_networks(console: Console, report: dict[str, Any]) -> None:
    from ..report.report import covered, on_host

    times = _times(report)
    table = new_table(
        _bench_title(report), "network", "programs", "on host", "cycles", *times, "host ms", "MACs",
        "MACs on the accelerator", "end to end", "sim - rtl", "sim s", "rtl s", "CPU ms",
        "float ms",
    )  # fmt: skip
    measured = [row for row in report["rows"] if not row["error"]]
    for row in measured:
        both = row["sim_cycles"] is not None and row["rtl_cycles"] is not None
        table.add_row(
            row["model"], count(row["programs"]), on_host(row["coverage"]), count(row["cycles"]),
            *_time_cells(row, times), f"{1000 * row['host_s']:.3f}", count(row["macs"]),
            percent(covered(row["coverage"])), percent(row["end_to_end"]),
            count(row["sim_cycles"] - row["rtl_cycles"]) if both else "",
            *("" if row[name] is None else f"{row[name]:.1f}"
              for name in ("sim_wall_s", "rtl_wall_s", "cpu_ms", "cpu_float_ms")),
        )  # fmt: skip
    console.print(table)
    for row in measured:
        for layer in row["uncovered"]:
            what = f"{row['model']}: {layer['layer']} ({percent(layer['macs'] / row['macs'])})"
            console.print(f"{what} on the host: {layer['reason']}")


@app.command("gpu")
def bench_gpu(
    models: Annotated[
        str,
        typer.Option(help="Names such as resnet18 and bert; by default the paper's networks."),
    ] = "",
    kinds: Kinds = "",
    peers: Annotated[
        str, typer.Option(help="PyTorch's times beside ours: torch, and torch.compile.")
    ] = "",
    batches: Annotated[str, typer.Option(help="Images at once, such as 1,64.")] = "1",
    rounds: options.Rounds = 15,
    json_file: options.JsonFile = None,
) -> None:
    """Networks on an NVIDIA GPU: compared with the CPU's results, then timed."""
    from ..bench.gpu import KINDS, gpu_rows
    from ..bench.workloads import NETWORKS
    from ..runtime.gpu.cuda import device_text

    sizes = read_numbers("batches", batches, MOST_BATCH, "1,64")
    with progress_bar("gpu") as advance:
        rows = gpu_rows(
            split_names(models) or list(NETWORKS), split_names(kinds) or list(KINDS), sizes, rounds,
            advance, peers=split_names(peers),
        )  # fmt: skip
    body = {"device": device_text(), "rounds": rounds, "rows": rows}
    emit("bench gpu", body, json_file, _show_gpu)


def _show_gpu(console: Console, report: dict[str, Any]) -> None:
    columns = (
        "", "numbers", "batch", "kernels", "ms", "least ms", "difference", "PyTorch's best ms",
        "ratio",
    )  # fmt: skip
    rows = (
        (row["name"], row["kind"], count(row["batch"]), count(row["kernels"]),
         decimals(row["median_ms"]), decimals(row["least_ms"]), f"{row['error']:.1g}",
         decimals(min(row["torch_ms"].values(), default=None)), decimals(row["ratio"], 2))
        for row in report["rows"]
    )  # fmt: skip
    title = f"bench gpu: {report['device']}, medians of {report['rounds']}"
    show_table(console, title, columns, rows)


@app.command("gpu-products")
def bench_gpu_products(
    kinds: Kinds = "",
    sizes: Annotated[str, typer.Option(help="Rows and columns, such as 4096,8192.")] = "4096",
    peers: Annotated[str, typer.Option(help="torch: PyTorch's times beside ours.")] = "",
    rounds: options.Rounds = 15,
    json_file: options.JsonFile = None,
) -> None:
    """Products of square matrices on an NVIDIA GPU: compared with NumPy's, then timed."""
    from ..bench.gpu import KINDS, product_rows
    from ..runtime.gpu.cuda import device_text

    found = read_numbers("sizes", sizes, MOST_SIZE, "4096,8192")
    with progress_bar("gpu products") as advance:
        rows = product_rows(
            split_names(kinds) or list(KINDS), found, rounds, advance, peers=split_names(peers)
        )
    body = {"device": device_text(), "rounds": rounds, "rows": rows}
    emit("bench gpu-products", body, json_file, _show_gpu_products)


def _show_gpu_products(console: Console, report: dict[str, Any]) -> None:
    columns = ("numbers", "size", "ms", "TFLOP/s", "difference", "PyTorch ms", "ratio")
    rows = (
        (row["kind"], count(row["size"]), decimals(row["median_ms"]), decimals(row["tflops"], 1),
         f"{row['error']:.1g}", decimals(row["torch_ms"]), decimals(row["ratio"], 2))
        for row in report["rows"]
    )  # fmt: skip
    title = f"bench gpu-products: {report['device']}, medians of {report['rounds']}"
    show_table(console, title, columns, rows)


@app.command("gpu-ablation")
def bench_gpu_ablation(
    models: Annotated[str, typer.Option(help="Networks, with and without fusion.")] = (
        "resnet18,lstm_lm"
    ),
    sizes: Annotated[
        str, typer.Option(help="Products' rows and columns, with and without shared memory.")
    ] = "2048",
    rounds: options.Rounds = 15,
    json_file: options.JsonFile = None,
) -> None:
    """What fusion and shared memory give on an NVIDIA GPU, in float32."""
    from ..bench.ablation import cooperation_rows, fusion_rows
    from ..runtime.gpu.cuda import device_text

    found = read_numbers("sizes", sizes, MOST_SIZE, "4096,8192")
    rows = [*fusion_rows(split_names(models), rounds), *cooperation_rows(found, rounds)]
    body = {"device": device_text(), "rounds": rounds, "rows": rows}
    emit("bench gpu-ablation", body, json_file, _show_gpu_ablation)


def _show_gpu_ablation(console: Console, report: dict[str, Any]) -> None:
    table = new_table(
        f"bench gpu-ablation: {report['device']}, medians of {report['rounds']}", "", "with",
        "kernels", "ms", "without", "kernels", "ms", "times as fast",
    )  # fmt: skip
    for row in report["rows"]:
        cells = [
            cell
            for way, median_ms in row["median_ms"].items()
            for cell in (way, count(row["kernels"][way]), f"{median_ms:.3f}")
        ]
        table.add_row(row["name"], *cells, f"{row['gain']:.2f}")
    console.print(table)


@app.command("tuning")
def bench_tuning(
    tables: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Tables of exact cycles; by default ours."),
        Fills(),
    ] = None,
    make: Annotated[
        str, typer.Option(metavar="LAYERS", help="Make tables first: C8,D7, or 'all'; resumes.")
    ] = "",
    memories: Annotated[str, typer.Option(help="Memories of tables that are made.")] = "vta",
    vthreads: Annotated[
        int,
        typer.Option(
            min=0,
            max=options.MOST_VTHREADS,
            help="Virtual threads of tables that are made; 0: all.",
        ),
    ] = 2,
    part: Annotated[
        int,
        typer.Option(
            min=0,
            max=options.MOST,
            help="Measure so many random choices, for models to learn; 0: all.",
        ),
    ] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, max=options.MOST_ROUNDS, help="Replays of each explorer.")
    ] = 100,
    explorers: Annotated[str, typer.Option(help="Names such as xgb,ga; by default all.")] = "",
    plot: Annotated[
        Path | None, typer.Option(help="A picture of the curves."), Writes(".png")
    ] = None,
    json_file: options.JsonFile = None,
) -> None:
    """Replay explorers on tables of exact cycles: trials until within 1 % of the optimum."""

    with progress_bar("starting"):  # imports take a second
        from ..bench.measure import check_some
        from ..bench.tables import LAYERS, TABLES, layer_task, make_table
        from ..bench.tuning import REPLAYED, TREES, draw_replays, model_rows, tables_in, tuning_rows

    folder = tables or TABLES
    layers = LAYERS if make == "all" else split_names(make)
    wanted = split_names(explorers)
    if wanted:
        check_some("explorers", wanted, (*REPLAYED, TREES))
    for memory in split_names(memories):
        for layer in layers or LAYERS[:1]:
            layer_task(layer, memory)  # refuses unknown names before an hour's work
    for layer in layers:
        for memory in split_names(memories):
            fixed = {"vthreads": vthreads} if vthreads else {}
            with progress_bar(f"table of {layer} on {memory}") as advance:
                make_table(layer, memory, folder, fixed, advance, part)
    found = tables_in(folder)
    with progress_bar("replays") as advance:
        rows = tuning_rows(found, wanted, seeds, advance)
    if plot is not None:
        draw_replays(found, wanted, plot)
    body = {"seeds": seeds, "rows": rows, "model": model_rows(found)}
    emit("bench tuning", body, json_file, _show_tuning)


@app.command("explore")
def bench_explore(
    table: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Table of a space's designs (.json.gz); by default ours."),
        Merges(),
    ] = None,
    make: Annotated[
        Path | None,
        typer.Option(
            metavar="SPEC",
            help="Make the table first, of an exploration (.toml); resumes. It lies beside.",
        ),
        Reads(".toml"),
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="F", help="File of what was measured for it."), Merges()
    ] = Path("explore.jsonl"),
    workers: Annotated[
        int, typer.Option(min=1, max=options.MOST_PROCESSES, help="Processes that measure.")
    ] = 1,
    methods: Annotated[str, typer.Option(help="Names such as tpe,random; by default all.")] = "",
    trials: Annotated[
        int, typer.Option(min=1, max=options.MOST_ROUNDS, help="Designs of each replay.")
    ] = 100,
    seeds: Annotated[
        int, typer.Option(min=1, max=options.MOST_ROUNDS, help="Replays of each method.")
    ] = 20,
    json_file: options.JsonFile = None,
) -> None:
    """Replay the searches of vdla explore on a space whose designs are all known: how much of the
    front's hypervolume each has after how many of them.
    """
    from ..bench.sweep import Results
    from ..explore.enumeration import TABLES, Enumeration, enumerate_designs
    from ..explore.replay import choose_methods, replay_rows
    from ..explore.spec import Spec

    if table is None:
        table = TABLES / "dqn.json.gz" if make is None else make.with_suffix(".json.gz")
    path, measured = table, Results(results)
    if make is not None:
        spec = Spec.load(make)
        choose_methods(spec, split_names(methods))  # what is wrong is said before the work
        with progress_bar("designs") as advance:
            enumerate_designs(spec, measured, workers, advance).save(path)
    found = Enumeration.load(path)
    chosen = choose_methods(found.spec, split_names(methods))
    with progress_bar("replays") as advance:
        rows = replay_rows(found, chosen, seeds, trials, advance)
    body = {
        "table": path.name, "designs": len(found.rows), "seeds": seeds, "trials": trials,
        "objectives": list(found.spec.objectives), "rows": rows,
    }  # fmt: skip
    emit("bench explore", body, json_file, _show_explore)


def _show_explore(console: Console, report: dict[str, Any]) -> None:
    marks = list(report["rows"][0]["part_after"])
    title = (
        f"part of the hypervolume of all {report['designs']:,} designs of {report['table']} after"
        f" so many trials, medians of {report['seeds']} seeds"
    )
    rows = (
        (row["method"], *map(percent, (*row["part_after"].values(), row["regret"])),
         count(row["trials_to_99pct"]) or f"over {report['trials']}")
        for row in report["rows"]
    )  # fmt: skip
    show_table(console, title, ("method", *marks, "regret", "trials to 99 %"), rows)


def _show_tuning(console: Console, report: dict[str, Any]) -> None:
    names, numbers = ("layer", "memory", "explorer"), ("choices", "optimum", "planner")
    rows = (
        (*map(row.get, names), *map(count, map(row.get, numbers)),
         *(count(row["trials_to_1pct"][k]) or "never" for k in ("median", "p90")),
         percent(row["regret_area"]))
        for row in report["rows"]
    )  # fmt: skip
    title = f"trials until within 1 % of the optimum, {report['seeds']} seeds"
    show_table(console, title, (*names, *numbers, "median", "90 %", "regret"), rows, left=3)
    columns = ("layer", "memory", "learned from", "pairs", "30 of 600", "30 of all", "ms")
    measures = ("pairwise_accuracy", "recall_at_30", "recall_of_all")
    rows = (
        (row["layer"], row["memory"], row["learned_from"], *map(percent, map(row.get, measures)),
         decimals(row["ms"]))
        for row in report["model"]
    )  # fmt: skip
    show_table(console, "how models rank what they have not seen", columns, rows, left=3)
