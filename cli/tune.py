"""``vdla tune``, ``vdla records`` and ``vdla refine``."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..compiler.choose.records import RECORDS_VARIABLE, Records
from ..compiler.choose.records import merge as merge_files
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams, load_platform
from ..runtime.files import whole_file
from . import options
from .files import Merges, Reads, Writes
from .output import count, emit, new_table, percent, progress_bar, settings

if TYPE_CHECKING:
    from ..api.tuning import Progress as Made

#: Where trials go if nothing is said.
DEFAULT_RECORDS = Path("records.jsonl")
#: What a table shows of a workload at most.
WORKLOAD_CHARACTERS = 72

records_app = typer.Typer(help="Files of measured choices.")
RecordFiles = Annotated[list[Path], typer.Argument(help="Files of records (JSON lines)."), Reads()]
WantedTarget = Annotated[
    str | None, typer.Option("--target", help="Only records of it, such as accel or cpu.")
]
WantedTemplate = Annotated[str | None, typer.Option("--template", help="Only records of it.")]


def tune(
    model: options.NamedModel,
    target: Annotated[str, typer.Option(help="sim, rtl, cpu, cuda or opencl.")] = "sim",
    trials: Annotated[
        int, typer.Option(min=1, max=options.MOST, help="Trials of each workload.")
    ] = 64,
    tuner: Annotated[str, typer.Option(help="xgb, treernn, sa, ga, random, grid or auto.")] = "xgb",
    records: Annotated[
        Path,
        typer.Option("--records", envvar=RECORDS_VARIABLE, help="File to read and to add to."),
        Merges(),
    ] = DEFAULT_RECORDS,
    hw: options.Hw = "16x16",
    memory: options.Memory = "vta",
    seed: options.Seed = 0,
    time_s: options.TimeLimit = None,
    scheduler: options.Scheduler = None,
    workers: options.Workers = 0,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=options.MOST_SECONDS, help="Seconds after which a trial fails."),
    ] = 60.0,
    vthreads: Annotated[
        int, typer.Option(min=1, max=options.MOST_VTHREADS, help="Virtual threads of the planner.")
    ] = 2,
    threads: options.Threads = 1,
    precision: options.Precision = "float32",
    plot: Annotated[
        Path | None,
        typer.Option(help="A picture of the best so far, for each explorer."),
        Writes(".png"),
    ] = None,
    json_file: options.JsonFile = None,
) -> None:
    """Search the choices of a model's layers. Ctrl-C keeps all trials; run again to go on."""
    from ..api.tuning import tune as run_tune
    from ..bench.networks import find_model

    params, memory_params = load_platform(hw, memory)
    found = find_model(model, params.batch, quantized=target in ("sim", "rtl"))
    what = f"{model} on {target}"
    with progress_bar(what) as update:

        def watch(made: Made) -> None:
            where = f"{what}, workload {made.number + 1} of {made.tasks} ({made.task.layers[0]})"
            update(made.made, made.of, progress_text(made), where)

        body = run_tune(
            found, target, records, params, memory_params, trials, tuner, seed, time_s, scheduler,
            workers, timeout, vthreads, threads, watch, precision,
        )  # fmt: skip
    report: dict[str, Any] = {"model_name": model} | body
    if plot is not None:
        from ..bench.tuning import draw_curves

        with whole_file(plot) as place:
            draw_curves(records, [row["workload"] for row in report["tasks"]], place)
    emit("tune", report, json_file, _show_tuned, params, memory_params, seed)
    if report["time_ended"]:
        print(
            f"vdla: the time ended; {records} has all trials, and the same command goes on",
            file=sys.stderr,
        )
    if report["interrupted"]:
        raise VdlaError(f"interrupted; {records} has all trials, and the same command goes on")


def progress_text(made: Made) -> str:
    """The best so far, the rate, and the seconds that are left for the workload."""
    from ..report.report import significant

    parts = [f"best {significant(made.best)}"]
    if rate := made.trials_per_s:
        left = (made.of - made.made) / rate
        if made.ends is not None:
            left = min(left, max(0.0, made.ends - time.monotonic()))
        parts.append(f"{rate:.1f} trials/s, {left:.0f} s left")
    return ", ".join(parts)


def _show_tuned(console: Console, report: dict[str, Any]) -> None:
    unit = "cycles" if report["target"] == "accel" else "ms"
    costs = (f"planner {unit}", f"best {unit}", "saved")
    title = f"tuned by {report['tuner']}, records in {report['records']}"
    table = new_table(title, "workload of", "knobs", "trials", "failed", *costs, left=2)
    for row in report["tasks"]:
        knobs = settings(row["best_knobs"] or {})
        more = f" and {len(row['layers']) - 1} more" if len(row["layers"]) > 1 else ""
        trials = (count(row["trials"]), count(row["failed"]))
        costs = (_cost(row["planner"]), _cost(row["best"]), _saved(row["planner"], row["best"]))
        table.add_row(row["layers"][0] + more, knobs, *trials, *costs)
    total = report["total"]
    if total["tuned"] is not None:
        table.add_section()
        saved = _saved(total["planner"], total["tuned"])
        costs = (count(total["planner"]), count(total["tuned"]))
        table.add_row("the whole model", "", "", "", *costs, saved)
    console.print(table)


def _cost(value: float | None) -> str:
    from ..report.report import significant

    return "" if value is None else significant(value)


def _saved(planner: float | None, best: float | None) -> str:
    return percent(None if not planner or best is None else 1 - best / planner)


# ---- records -------------------------------------------------------------------------------------


@records_app.command("show")
def show(
    files: RecordFiles,
    target: WantedTarget = None,
    template: WantedTemplate = None,
    json_file: options.JsonFile = None,
) -> None:
    """What was tried: each workload with its trials, how many failed, and the best cost."""
    _list(files, target, template, json_file, "records show")


@records_app.command("best")
def best(
    files: RecordFiles,
    target: WantedTarget = None,
    template: WantedTemplate = None,
    json_file: options.JsonFile = None,
) -> None:
    """The best knobs of each workload."""
    _list(files, target, template, json_file, "records best")


@records_app.command("merge")
def merge(
    files: RecordFiles,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write."), Writes()],
    json_file: options.JsonFile = None,
) -> None:
    """Write the records of several files to one, each once."""
    found = merge_files(output, files)
    rows = _rows(found)
    told = f"{output}: {len(found.trials)} records of {len(rows)} workloads"
    body = {"output": str(output), "rows": rows}
    emit("records merge", body, json_file, lambda console, _: console.print(told))


def _list(
    files: list[Path], target: str | None, template: str | None, json_file: str | None, what: str
) -> None:
    found = Records(trial for file in files for trial in Records.load(file).trials)
    for field, wanted in (("target", target), ("template", template)):
        known = dict.fromkeys(getattr(trial.key, field) for trial in found.trials)
        if wanted is not None and wanted not in known:
            raise VdlaError(
                f"{field}: expected one of the records' ({', '.join(known) or 'there are none'}),"
                f" got {wanted!r}"
            )
    rows = _rows(found.where(target=target, template=template))
    shows_knobs = what.endswith("best")
    emit(what, {"rows": rows}, json_file, lambda out, _: _show_records(out, rows, shows_knobs))


def _rows(records: Any) -> list[dict[str, Any]]:
    """One row for each workload of each machine."""
    rows = []
    best = {record.key: record for record in records.best()}
    for key in dict.fromkeys(trial.key for trial in records.trials):
        trials, found = records.of(key), best.get(key)
        rows.append({
            **key._asdict(), "config_hash": key.machine.partition(" ")[0],
            "best": None if found is None else found.cost,
            "knobs": None if found is None else dict(found.knobs),
            "trials": len(trials), "failed": sum(trial.cost is None for trial in trials),
        })  # fmt: skip
    return rows


def _show_records(console: Console, rows: list[dict[str, Any]], with_knobs: bool) -> None:
    names = ("target", "machine", "template", "workload", "knobs" if with_knobs else "trials")
    table = new_table("", *names, "best", left=5)
    for row in rows:
        failed = f", {row['failed']} failed" if row["failed"] else ""
        told = settings(row["knobs"] or {}) if with_knobs else f"{row['trials']}{failed}"
        shown = (row["target"], _machine(row), row["template"], _workload(row["workload"]))
        table.add_row(*shown, told, _cost(row["best"]))
    console.print(table)


def _machine(row: dict[str, Any]) -> str:
    """The machine of a record: the hash of the configuration and its memory, or the processor."""
    if row["target"] == "cpu":
        return row["machine"]
    with suppress(ValueError, TypeError, VdlaError):
        memory = MemoryParams(**json.loads(row["machine"].partition(" ")[2])).label
        return f"{row['config_hash']} {memory}"
    return row["machine"]


def _workload(key: str) -> str:
    """A workload in a few words."""
    text = key.strip("{}").replace('"', "")
    return text if len(text) <= WORKLOAD_CHARACTERS else text[: WORKLOAD_CHARACTERS - 1] + "…"


# ---- refine -------------------------------------------------------------------------------------


def refine(
    model: options.NamedModel,
    knobs: Annotated[
        Path,
        typer.Option("--knobs", metavar="FILE", help="Choices by layer: read, and made better."),
        Merges(),
    ] = Path("knobs.json"),
    trials: Annotated[int, typer.Option(min=1, max=options.MOST, help="Programs to try.")] = 200,
    hw: options.Hw = "16x16",
    memory: options.Memory = "vta",
    vthreads: options.Vthreads = 2,
    seed: options.Seed = 0,
    time_s: options.TimeLimit = None,
    json_file: options.JsonFile = None,
) -> None:
    """Search the choices of all layers together, by the cycles of the whole program. Ctrl-C keeps
    the best; run again with another seed to go on.
    """
    from ..api.refining import refine as run_refine
    from ..bench.networks import find_model

    params, memory_params = load_platform(hw, memory)
    found = find_model(model, params.batch, quantized=True)
    with progress_bar(model) as update:
        body = run_refine(
            found, knobs, params, memory_params, trials, seed, time_s, vthreads,
            lambda made, of, best: update(made, of, f"{best:,} cycles"),
        )  # fmt: skip
    report = {"model_name": model} | body
    emit("refine", report, json_file, _show_refined, params, memory_params, seed)
    if report["time_ended"]:
        print(f"vdla: the time ended; {knobs} has the best choices", file=sys.stderr)
    if report["interrupted"]:
        raise VdlaError(f"interrupted; {knobs} has the best choices")


def _show_refined(console: Console, report: dict[str, Any]) -> None:
    saved = percent(1 - report["best"] / report["before"])
    console.print(
        f"{count(report['before'])} -> {count(report['best'])} cycles ({saved} saved),"
        f" {count(report['trials'])} trials, {count(report['failed'])} of them without a program;"
        f" choices in {report['knobs']}"
    )
    changed = [layer for layer in report["layers"] if "before" in layer]
    if not changed:
        return
    table = new_table("layers with other choices", "layer", "knobs", "before", left=3)
    for layer in changed:
        now, before = layer["knobs"], layer["before"]
        names = [name for name, value in now.items() if before.get(name) != value]
        sides = (settings({name: side.get(name) for name in names}) for side in (now, before))
        table.add_row(layer["name"], *sides)
    console.print(table)
