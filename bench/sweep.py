"""Models on every combination of configurations, memories and knobs: the cycles of each, what they
change, and why they change nothing.

Each combination runs in a process of its own, several at a time. What is measured goes to a file of
JSON lines at once, so that the same sweep goes on where it was stopped.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from threading import local
from typing import Any

from .._version import __version__
from ..compiler.build import build
from ..compiler.choose.records import Record, Records
from ..compiler.frontends.load import load_graph
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..compiler.targets.vdla.target import machine_key
from ..compiler.tune.pool import Pool
from ..compiler.tune.sandbox import Sandbox, TrialFailed
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams, load_platform
from ..isa.params import MEMORIES, NOT_IN_PROGRAMS, PRESETS, HwParams
from ..isa.program import Program
from ..isa.status import Status
from ..isa.text_files import read_text
from ..pages.layers import cause_name
from ..pages.measured import Run, occupancy
from ..report.bounds import scratchpad_accesses
from ..report.report import accelerator_report, at_clock, join_programs, main_stall, on_host, timed
from ..runtime.cache import source_digest
from ..runtime.executable import LayerInfo
from ..runtime.result import join
from ..sim.model.core import simulate_cycles
from .networks import find_model

#: Virtual threads of all points, and seconds after which one fails.
VTHREADS, TIMEOUT_S = 2, 1800.0
#: A point is tried so often: what ended the first trial may have been meant for its process alone.
ATTEMPTS = 2
#: Compiled models that a process keeps.
WORKS = 4
#: Cycles that differ by less than this part have not moved.
STILL = 0.002
#: The rooms whose sources decide about a row.
_ROOMS = ("bench", "compiler", "isa", "report", "sim")
_HW = {field.name for field in fields(HwParams)}
_MEMORY = {field.name for field in fields(MemoryParams)}

Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A model on a machine; or why there is no such machine.

    Attributes
    ----------
    model : as :func:`~.workloads.find_model` takes it
    hw, memory : their names
    knobs : those that were set, of either
    params, memory_params : the machine; None where it is not legal
    error : why it is not
    vthreads : virtual threads of the planner
    records : lines of records of this machine, whose choices come before the planner's
    """

    model: str
    hw: str
    memory: str
    knobs: dict[str, int]
    params: HwParams | None
    memory_params: MemoryParams | None
    error: str = ""
    vthreads: int = VTHREADS
    records: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A digest of all that the point's cycles depend on."""
        assert self.params is not None and self.memory_params is not None
        parts = (
            _content(self.model), self.params.to_dict(), self.memory_params.to_dict(),
            self.vthreads, __version__, source_digest(*_ROOMS), *self.records,
        )  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def job(self) -> tuple[Any, ...]:
        """What :func:`measure_point` takes."""
        return self.model, self.params, self.memory_params, self.vthreads, self.records

    @property
    def head(self) -> Row:
        """The fields that say which point a row is about."""
        return {
            "model": Path(self.model).name,
            "hw": Path(self.hw).stem,
            "memory": Path(self.memory).stem,
            "knobs": self.knobs,
            "config_hash": None if self.params is None else self.params.hash,
            "error": self.error or None,
        }


def _content(model: str) -> str:
    """A digest of a model's file; the name of a model of the package."""
    path = Path(model)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else model


# ---- points --------------------------------------------------------------------------------------


def parse_sets(texts: Sequence[str]) -> dict[str, list[int]]:
    """The values of each knob, from texts such as ``acc_depth=1024,2048``.

    Raises VdlaError for what is no knob of the hardware or of the memory, and no list of integers.
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name not in _HW | _MEMORY:
            raise VdlaError(
                "set: expected KNOB=VALUE,... with a knob of the hardware"
                f" ({', '.join(sorted(_HW))}) or of the memory ({', '.join(sorted(_MEMORY))}), got"
                f" {text!r}"
            )
        if name in found:
            raise VdlaError(f"set: expected {name} once, got {text!r}, too; separate by commas")
        try:
            found[name] = [int(value) for value in values.split(",")]
        except ValueError:
            raise VdlaError(f"set: expected integers for {name}, got {values!r}") from None
    return found


def make_points(
    models: Sequence[str],
    hw: Sequence[str],
    memories: Sequence[str],
    sets: dict[str, list[int]],
    records: Path | None = None,
) -> list[Point]:
    """All combinations, model by model; the first of a model is what the others are compared with.
    ``records`` are a file of them, by default the one that :func:`vdla.compile` uses.

    Raises VdlaError for files that cannot be read. A combination that is not legal is a point with
    the reason.
    """
    for name in hw:
        HwParams.load(name)
    for name in memories:
        MemoryParams.load(name)
    machines = []
    for hw_name, memory_name, values in product(hw, memories, product(*sets.values())):
        knobs = dict(zip(sets, values, strict=True))
        try:
            machines.append((hw_name, memory_name, knobs, *machine(hw_name, memory_name, knobs)))
        except VdlaError as error:
            machines.append((hw_name, memory_name, knobs, None, None, str(error)))
    found = Records.find_file(records) or Records()
    lines = [
        record_lines(found, params, behind) if params is not None and behind is not None else ()
        for _, _, _, params, behind, *_ in machines
    ]
    points = [
        Point(model, *machine, records=known)
        for model in models
        for machine, known in zip(machines, lines, strict=True)
    ]
    for model in models:
        load_graph(find_model(model, 1))  # what cannot be read is said before the work begins
    return points


def machine(hw: str, memory: str, knobs: dict[str, int]) -> tuple[HwParams, MemoryParams]:
    """A configuration and a memory, each a preset or a TOML file, with other values of some knobs.

    Raises VdlaError where there is no such machine.
    """
    behind = MemoryParams.load(memory)
    behind = replace(behind, **{name: v for name, v in knobs.items() if name in _MEMORY})
    params = PRESETS[hw] if hw in PRESETS else HwParams.load(hw)
    if hw in PRESETS:
        params = replace(params, bus_bits=behind.bus_bits)
    params = replace(params, **{name: v for name, v in knobs.items() if name in _HW})
    return load_platform(params, behind)


def record_lines(records: Records, params: HwParams, memory: MemoryParams) -> tuple[str, ...]:
    """Those that are of a machine, as lines of a file."""
    return tuple(
        record.line() for record in records.where(machine=machine_key(params, memory)).trials
    )


# ---- measuring -----------------------------------------------------------------------------------


def measure_point(
    _subject: object,
    model: str,
    params: HwParams,
    memory: MemoryParams,
    vthreads: int = VTHREADS,
    records: tuple[str, ...] = (),
) -> Row:
    """What a sweep measures of a model on a machine; runs in a process of its own."""
    begun = time.perf_counter()
    resources = {
        "macs_per_cycle": params.peak_macs_per_cycle,
        "scratchpad_bytes": params.scratchpad_bytes,
        "bus_bits": params.bus_bits,
    }
    try:
        # Records are of one machine; without any, machines with the same programs share them.
        usual = {} if records else {name: getattr(HwParams, name) for name in NOT_IN_PROGRAMS}
        compiled_for = replace(params, **usual)
        work = _work(model, _content(model), compiled_for, memory, vthreads, records)
        programs = [replace(program, params=params) for program in work.programs]
        runs = [simulate_cycles(p, memory) for p in programs]
        if any(run.status != Status.DONE for run in runs):
            raise VdlaError(next(run.report for run in runs if run.status != Status.DONE))
    except VdlaError as error:
        return {"resources": resources, "error": " ".join(str(error).split())}
    timing, program = join(runs), join_programs(programs)
    body = accelerator_report(work.layers, program, memory, timing)
    held = occupancy(Run(programs, timing), 1)
    kept = (
        "cycles", "macs", "vector_macs", "utilisation", "roofline_fraction", "bound_by",
        "stalls", "dram", "coverage",
    )  # fmt: skip
    return {
        **{name: body[name] for name in kept},
        "programs": len(programs),
        "resources": resources,
        "most_in_use": {
            name: [int(held[name].max()), params.depth(name)] for name in MEMORIES
        },
        "accesses": dict(work.accesses),
        "instructions": len(program.insns),
        "instructions_sha256": work.digest,
        "layers": [
            {"name": row["name"], "cycles": row["cycles"], "chosen_by": row["chosen_by"]}
            for row in body["layers"]
            if row["cycles"] is not None
        ],
        "wall_s": time.perf_counter() - begun,
        "error": None,
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Work:
    """A compiled model: its programs and layers, and what of a row they alone decide about."""

    programs: Sequence[Program]
    layers: Sequence[LayerInfo]
    accesses: Row
    digest: str


@lru_cache(WORKS)
def _work(
    model: str,
    content: str,
    params: HwParams,
    memory: MemoryParams,
    vthreads: int,
    records: tuple[str, ...],
) -> _Work:
    """The model compiled. The last ones are kept, as machines that differ in knobs of
    :data:`NOT_IN_PROGRAMS` often come one after the other, each with all models.

    Raises VdlaError where nothing of it runs on the accelerator.
    """
    target = find_target("sim", Options(params, memory, vthreads))
    found = Records(map(Record.read, records))
    compiled = build(find_model(model, params.batch), target, records=found)
    if not compiled.programs:
        raise VdlaError("no operator of this model runs on the accelerator")
    insns = join_programs(compiled.programs).insns
    digest = hashlib.sha256(repr(insns).encode()).hexdigest()
    return _Work(compiled.programs, compiled.layers, scratchpad_accesses(insns), digest)


class Results:
    """The file of what was measured, a JSON object a line: ``key`` and ``row``.

    Raises VdlaError for a file that is something else. A last line that was cut short is dropped.
    """

    def __init__(self, path: Path):
        self.path, self.rows = path, dict[str, Row]()
        text = read_text(path) if path.exists() else ""
        *lines, rest = text.split("\n")
        self._whole_bytes = len(text.encode()) - len(rest.encode()) if rest else None
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self.rows[entry["key"]] = dict(entry["row"])
            except (ValueError, TypeError, KeyError):
                raise VdlaError(
                    f"{path}: expected results of vdla sweep, got {line[:60]!r} in line {number}"
                ) from None
        if rest and not rest.startswith(_BEGIN[: len(rest)]):
            raise VdlaError(f"{path}: expected results of vdla sweep, got {rest[:60]!r}")

    def add(self, key: str, row: Row) -> None:
        """Add what was measured, at once."""
        if self._whole_bytes is not None:
            os.truncate(self.path, self._whole_bytes)
            self._whole_bytes = None
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "row": row}) + "\n")
        self.rows[key] = row


#: How every line of the file of results begins.
_BEGIN = '{"key": "'


def measure_points(
    points: Sequence[Point],
    results: Results,
    workers: int,
    progress: Callable[[int, int], None],
    pool: Pool | None = None,
    clock_mhz: float | None = None,
) -> tuple[list[Row], bool]:
    """A row for each point, measured now or before; and whether Ctrl-C stopped the sweep, then
    without the rows that are missing. With a pool its workers measure, else processes here. Times
    are at ``clock_mhz``, by default at the clock of machines that were routed.
    """
    keys = [point.key if point.params is not None else "" for point in points]
    wanted = {k: p for k, p in zip(keys, points, strict=True) if k and k not in results.rows}
    failed: dict[str, Row] = {}
    progress(len(points) - len(wanted), len(points))
    interrupted = False
    try:
        measured = _measured(wanted, workers) if pool is None else _of_pool(wanted, pool)
        for done, (key, row, is_kept) in enumerate(measured, 1):
            if is_kept:
                results.add(key, row)
            else:
                failed[key] = row
            progress(len(points) - len(wanted) + done, len(points))
    except KeyboardInterrupt:
        interrupted = True
    known = results.rows | failed
    rows = [
        {**point.head, **(_with_time(known[key], point, clock_mhz) if key else {})}
        for key, point in zip(keys, points, strict=True)
        if not key or key in known
    ]
    return rows, interrupted


def _with_time(row: Row, point: Point, clock_mhz: float | None) -> Row:
    """A row with its time, where a clock is known; the time is not kept in the file."""
    if point.params is None or point.memory_params is None or not row.get("cycles"):
        return row
    if clock_mhz is not None:
        return row | at_clock(row["cycles"], point.params, clock_mhz)
    return row | timed(row["cycles"], point.params, point.memory_params)


def _measured(wanted: dict[str, Point], workers: int) -> Iterator[tuple[str, Row, bool]]:
    """Measure points in processes; gives keys, rows, and whether a row is worth keeping: what
    crashed or took too long may do better another time.
    """
    mine, made = local(), list[Sandbox]()

    def measure(point: Point) -> tuple[Row, bool]:
        if not hasattr(mine, "sandbox"):
            mine.sandbox = Sandbox(TIMEOUT_S)
            made.append(mine.sandbox)
        row: Row = {}
        for _ in range(ATTEMPTS):
            try:
                return mine.sandbox.call(measure_point, _NOTHING, *point.job), True
            except TrialFailed as error:
                row = {"error": str(error)}
        return row, False

    executor = ThreadPoolExecutor(max(1, min(workers, len(wanted))))
    try:
        futures: dict[Future[tuple[Row, bool]], str] = {
            executor.submit(measure, point): key for key, point in wanted.items()
        }
        for future in as_completed(futures):
            yield futures[future], *future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for sandbox in made:
            with suppress(OSError):
                sandbox.close()


def _of_pool(wanted: dict[str, Point], pool: Pool) -> Iterator[tuple[str, Row, bool]]:
    """The same on the workers of a scheduler."""
    keys = list(wanted)
    for index, row, error in pool.each(measure_point, [point.job for point in wanted.values()]):
        yield keys[index], {"error": error} if error else row, not error


#: A pickled None: what a sandbox's function gets first.
_NOTHING = b"N."


# ---- what changed --------------------------------------------------------------------------------


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with ``changed``: its cycles over those of its model's first row that has some
    (``ratio``), and its time (``time_ratio``, None where a clock is not known), whether the ratio
    of the cycles has ``moved``, whether the instructions are the same, and why the run
    is as fast as it is, in words.
    """
    first: dict[str, Row] = {}
    for row in rows:
        if row.get("cycles"):
            first.setdefault(row["model"], row)
    return [
        {**row, "changed": _changed(row, first[row["model"]]) if row.get("cycles") else None}
        for row in rows
    ]


def _changed(row: Row, base: Row) -> Row:
    ratio = row["cycles"] / base["cycles"]
    same = row["instructions_sha256"] == base["instructions_sha256"]
    reasons = []
    moved = abs(ratio - 1) > STILL
    if row["coverage"]["operators_on_host"] != base["coverage"]["operators_on_host"]:
        both = [on_host(one["coverage"]) for one in (row, base)]
        reasons.append(f"not the same work: the host runs {both[0]} operators, first {both[1]}")
    if row is not base and not moved:
        reasons += ["the same instructions"] if same else []
        for name, value in row["knobs"].items():
            memory = name.removesuffix("_depth")
            if memory in row["most_in_use"] and value != base["knobs"].get(name):
                most, depth = row["most_in_use"][memory]
                reasons.append(f"of {depth:,} {memory} entries at most {most:,} are in use")
    why = "; ".join([*reasons, _limit(row)])
    times = row.get("time_ms"), base.get("time_ms")
    time_ratio = times[0] / times[1] if times[0] and times[1] else None
    return {
        "ratio": ratio,
        "time_ratio": time_ratio,
        "moved": moved,
        "same_instructions": same,
        "why": why,
    }


def _limit(row: Row) -> str:
    """What a run is limited by: its busiest unit, and what that unit waits for."""
    unit = max(row["stalls"], key=lambda name: row["stalls"][name]["busy"])
    causes = row["stalls"][unit]
    said = f"{unit} works in {100 * causes['busy'] / row['cycles']:.1f} % of the cycles"
    cause = main_stall(causes)
    if cause is None or causes[cause] < STILL * row["cycles"]:
        return said
    return f"{said} and {cause_name(cause)} in {100 * causes[cause] / row['cycles']:.1f} %"


def labels(rows: Sequence[Row]) -> list[str]:
    """A name for each row's machine: what differs between the rows."""
    varying = [name for name in ("hw", "memory") if len({row[name] for row in rows}) > 1]
    knobs = [
        name
        for name in (rows[0]["knobs"] if rows else ())
        if len({row["knobs"][name] for row in rows}) > 1
    ]
    found = []
    for row in rows:
        words = [row[name] for name in varying]
        words += [f"{name}={row['knobs'][name]}" for name in knobs]
        found.append(" ".join(words) or row["hw"])
    return found


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV, a knob and a resource a column; the first line has the names."""
    knobs = list(rows[0]["knobs"]) if rows else []
    resources = ("macs_per_cycle", "scratchpad_bytes", "bus_bits")
    numbers = ("cycles", "time_ms", "macs", "roofline_fraction", "bound_by", "instructions")
    hosted = ("programs", "operators_on_host", "operators_total", "macs_on_accelerator")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        heads = ("model", "hw", "memory", *knobs, "config_hash", *numbers, "end_to_end", *hosted)
        writer.writerow([*heads, *resources, "ratio", "same_instructions", "why", "error"])
        for row in rows:
            use, changed = row.get("utilisation") or {}, row["changed"] or {}
            cells = [row[name] for name in ("model", "hw", "memory")]
            cells += [*(row["knobs"][name] for name in knobs), row["config_hash"]]
            cells += [*(row.get(name) for name in numbers), use.get("end_to_end")]
            cells += [({**row, **row.get("coverage", {})}).get(name) for name in hosted]
            cells += [(row.get("resources") or {}).get(name) for name in resources]
            cells += [changed.get(name) for name in ("ratio", "same_instructions", "why")]
            writer.writerow([*cells, row["error"]])
