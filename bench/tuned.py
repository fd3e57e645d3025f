"""Networks on many machines: how much tuning saves over the planner."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import onnx

from ..api.tuning import tune
from ..compiler.choose.records import Record, Records
from ..compiler.choose.shipped import slim
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..isa.errors import VdlaError
from ..isa.platform import load_platform
from ..isa.text_files import read_text
from ..runtime.files import whole_file
from .workloads import NETWORKS, mobilenet_v2

MODELS: dict[str, Callable[[int, bool], onnx.ModelProto]] = {
    **{name: NETWORKS[name] for name in ("resnet18", "mobilenet_v1", "dcgan", "dqn")},
    "mobilenet_v2": mobilenet_v2,
}
MACHINES, MEMORIES = ("16x16", "8x8", "ecp5-85f"), ("vta", "slow", "wide")
#: Files of the folder: every trial, the whole networks that are done, the records that help them.
TRIALS, DONE, BEST = "trials.jsonl", "networks.jsonl", "best.jsonl"


def tuned_rows(
    models: Sequence[str],
    machines: Sequence[str],
    memories: Sequence[str],
    folder: Path,
    trials: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Tune networks on machines, those that ``folder`` does not have yet. Each has a row: the
    cycles of the whole network by the planner and by the records. No name is all.

    Raises
    ------
    VdlaError
        For unknown names, and files of the folder that are something else.
    """
    for name in models:
        if name not in MODELS:
            raise VdlaError(f"models: expected names from {', '.join(MODELS)}, got {name!r}")
    jobs = list(product(models or MODELS, memories or MEMORIES, machines or MACHINES))
    for _, memory, machine in jobs:
        load_platform(machine, memory)
    folder.mkdir(parents=True, exist_ok=True)
    rows = _done(folder / DONE)
    for made, job in enumerate(jobs):
        if job not in rows:
            rows[job] = _tuned(*job, folder, trials)
            with (folder / DONE).open("a") as file:
                file.write(json.dumps(rows[job]) + "\n")
        if progress is not None:
            progress(made + 1, len(jobs))
    return [rows[job] for job in jobs]


def _done(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The rows of the networks that are done, by network, memory and machine."""
    rows = {}
    for line in read_text(path).splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            rows[row["model"], row["memory"], row["hw"]] = row
        except (ValueError, KeyError, TypeError) as error:
            raise VdlaError(f"{path}: expected networks of vdla bench tuned ({error})") from None
    return rows


def _tuned(model: str, memory: str, machine: str, folder: Path, trials: int) -> dict[str, Any]:
    """Tune one network on one machine, and keep the records that make it faster."""
    params, memory_params = load_platform(machine, memory)
    network = MODELS[model](params.batch, True)
    report = tune(network, "sim", folder / TRIALS, params, memory_params, trials)
    if report["interrupted"]:
        raise KeyboardInterrupt
    total = report["total"]
    if total["tuned"] < total["planner"]:
        machine_key = find_target("sim", Options(params, memory_params)).machine_key
        known = Records.load(folder / TRIALS).where(machine=machine_key)
        _keep(folder / BEST, helping(known, report["tasks"]))
    return {
        "model": model, "memory": memory, "hw": machine, **total,
        "trials": sum(task["trials"] for task in report["tasks"]),
    }  # fmt: skip


def _keep(path: Path, records: Sequence[Record]) -> None:
    """Add records to a file that has the best one of each workload."""
    old = Records.load(path).trials if path.exists() else []
    best = Records([*old, *records]).best()
    with whole_file(path) as place:
        Path(place).write_text("".join(record.line() + "\n" for record in best))


def helping(records: Records, tasks: Iterable[dict[str, Any]]) -> list[Record]:
    """Of the best records of a machine, those that beat the planner in some tasks (of a report of
    :func:`tune`).
    """
    planner = {(task["template"], task["workload"]): task["planner"] for task in tasks}
    found = []
    for record in records.best():
        least = planner.get((record.key.template, record.key.workload))
        if least is not None and record.cost is not None and record.cost < least:
            found.append(slim(record))
    return found


def geometric_means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Tuned cycles over the planner's, as geometric means: of all rows, and of those of each
    network, memory and machine.
    """
    groups: dict[str, list[float]] = {}
    for row in rows:
        for name in ("all", row["model"], row["memory"], row["hw"]):
            groups.setdefault(name, []).append(row["tuned"] / row["planner"])
    return {name: math.exp(sum(map(math.log, v)) / len(v)) for name, v in groups.items()}
