"""Oracle tables: what every legal choice of knobs for a layer costs.

A table is made once, in many minutes, and then answers explorers without a simulator. While it is
made, every trial is a line of a ``.part`` file beside it, so that the same command goes on where it
was stopped.

A choice is hopeless if the cost model's floor, which no program can beat, is far above the cycles
of the planner's choice. Hopeless choices have many small tiles and are the slowest to compile; they
are not measured, and the table has their floor. So the optimum is exact, and so is every choice
that comes near it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..compiler.choose.space import Knobs
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..compiler.targets.vdla.layer import Layer
from ..compiler.tune.candidates import Candidates, Point
from ..compiler.tune.features import FLOOR
from ..compiler.tune.task import Task, find_tasks
from ..isa.errors import VdlaError
from ..isa.memory import MEMORY_PRESETS, load_platform
from ..isa.program import Program
from ..isa.text_files import read_text
from ..sim.model.core import count_cycles
from .workloads import TABLE_2

#: The layers of which tables are made.
LAYERS = ("C3", "C5", "C8", "C11", "D7", "D8")
#: The machine that they are of.
MACHINE = "16x16"
#: Where the tables of the package are.
TABLES = Path(__file__).parent / "tables"
VERSION = 2
#: A choice is hopeless if its floor is above so many times the cycles of the planner's choice.
HOPELESS = 1.5


def layer_task(layer: str, memory: str, fixed: Knobs | None = None) -> Task:
    """The task of a layer of table 2 by itself."""
    found = next((row for row in TABLE_2 if row.name == layer), None)
    if found is None or memory not in MEMORY_PRESETS:
        raise VdlaError(
            f"tables: expected a layer of table 2 and one of {', '.join(MEMORY_PRESETS)}, got"
            f" {layer!r} and {memory!r}"
        )
    params, memory_params = load_platform(MACHINE, memory)
    target = find_target("sim", Options(params, memory_params))
    (task,) = find_tasks(found.model(params.batch), target)
    return replace(task, fixed=fixed or {})


@dataclass(frozen=True, eq=False)
class Table:
    """The cycles of all legal points of a task, in the order of :meth:`Candidates.all`.

    Attributes
    ----------
    cycles : nan where no program can be made; the floor of a hopeless choice
    exact : bool, whether the choice was measured
    programs : how many different programs were measured
    part : how many choices were measured at random, of which models of other layers learn; 0: all
    """

    layer: str
    memory: str
    task: Task
    cycles: np.ndarray
    exact: np.ndarray
    programs: int
    part: int = 0

    @cached_property
    def candidates(self) -> Candidates:
        """The points of the task."""
        return Candidates(self.task.space)

    @cached_property
    def by_point(self) -> dict[Point, float]:
        """Cycles of each legal point: infinite where no program can be made, the floor if it is
        hopeless.
        """
        costs = np.nan_to_num(self.cycles, nan=np.inf).tolist()
        return dict(zip(self.candidates.all().tolist(), costs, strict=True))

    @property
    def optimum(self) -> int:
        """The least cycles."""
        return int(np.nanmin(self.cycles))

    @property
    def planner(self) -> int:
        """The cycles of the planner's choice."""
        plan = self.task.plan()
        assert plan is not None
        point = self.candidates.point(plan.knobs)
        assert point is not None
        return int(self.by_point[point])


def table_path(folder: Path, layer: str, memory: str) -> Path:
    """The file of a table."""
    return folder / f"{layer}_{memory}.json.gz"


def load_table(path: Path) -> Table:
    """Read a table.

    Raises
    ------
    VdlaError
        For a file that is no table, or one of another space of knobs: it must be made again.
    """
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        header, steps = found["header"], found["cycles"]
        part = header.get("part", 0)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise VdlaError(f"{path}: expected a table of vdla bench tuning ({error})") from None
    task = layer_task(header["layer"], header["memory"], header["fixed"])
    if header != _header(header["layer"], header["memory"], task, part):
        raise VdlaError(
            f"{path}: expected the table of today's knobs and configuration, got an older one; make"
            " it again with vdla bench tuning --make"
        )
    cycles = np.array([np.nan if value is None else value for value in steps], float)
    # The floor of a hopeless choice is written as a negative number, what was not measured as 0.
    exact = ~(cycles <= 0)
    cycles = np.where(cycles == 0, np.nan, np.abs(cycles))
    return Table(header["layer"], header["memory"], task, cycles, exact, found["programs"], part)


def _header(layer: str, memory: str, task: Task, part: int) -> dict[str, Any]:
    """What a table depends on, as JSON gives it back."""
    header = {
        "version": VERSION, "layer": layer, "memory": memory, "key": task.key._asdict(),
        "fixed": dict(task.fixed), "hopeless": HOPELESS,
        "knobs": {name: list(values) for name, values in task.space.knobs.items()},
    }  # fmt: skip
    if part:
        header["part"] = part
    return json.loads(json.dumps(header))


def make_table(
    layer: str,
    memory: str,
    folder: Path,
    fixed: Knobs,
    progress: Callable[[int, int], None] | None = None,
    part: int = 0,
) -> Table:
    """Measure every legal choice of a layer, or a random ``part`` of so many, going on where an
    earlier call was stopped.
    """
    path = table_path(folder, layer, memory)
    if path.exists():
        return load_table(path)
    task = layer_task(layer, memory, fixed)
    header = _header(layer, memory, task, part)
    candidates = Candidates(task.space)
    points = candidates.all()
    floors = _floors(task, candidates.columns(points))
    worth = np.flatnonzero(floors <= HOPELESS * _planner_cycles(task))
    # In random order: those that are left take about as long as those that are done.
    order = np.random.default_rng(0).permutation(worth).tolist()[: part or None]
    folder.mkdir(parents=True, exist_ok=True)
    trials = path.with_name(f"{layer}_{memory}.part")
    done = _finished(trials, header)
    with trials.open("a", 1, "utf-8") as file:
        if not trials.stat().st_size:
            file.write(json.dumps(header) + "\n")
        for index in order:
            if index not in done:
                done[index] = _trial(task, candidates.knobs(int(points[index])))
                file.write(json.dumps([index, *done[index]]) + "\n")
                if progress is not None:
                    progress(len(done), len(order))
    cycles: list[int | None] = (-np.floor(floors)).astype(int).tolist()
    for index in worth.tolist():
        cycles[index] = 0
    for index, (_, measured) in done.items():
        cycles[index] = measured
    programs = len({program for program, _ in done.values()})
    body = {"header": header, "cycles": cycles, "programs": programs}
    path.write_bytes(gzip.compress(json.dumps(body, separators=(",", ":")).encode(), mtime=0))
    trials.unlink()
    return load_table(path)


def _floors(task: Task, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """The fewest cycles that each of many choices can have, by the template's cost model."""
    layer = task.layer
    return np.asarray(layer.template.estimates(layer.workload, columns)[FLOOR])


def _planner_cycles(task: Task) -> int:
    """The cycles of the planner's choice."""
    plan, layer = task.plan(), task.layer
    assert plan is not None and isinstance(layer, Layer)
    program = layer.program(plan.knobs)
    return count_cycles(program.table, layer.machine.memory, program.program_addr)


def program_digest(program: Program) -> str:
    """A digest of the instructions and micro-ops of a program, which decide its cycles."""
    digest = hashlib.sha256(program.encoded())
    for place in program.meta["names"]["constants"]:
        if place["name"].endswith(".micro-ops"):
            address = place["address"]
            data = program.image[address]
            digest.update(f"{address} {len(data)} ".encode() + data)
    return digest.hexdigest()[:24]


def _trial(task: Task, knobs: Knobs) -> tuple[str, int | None]:
    """The digest and the cycles of the program of some knobs; no cycles where there is none."""
    layer = task.layer
    assert isinstance(layer, Layer)
    try:
        program = layer.program(knobs)
    except VdlaError:
        return "", None
    cycles = count_cycles(program.table, layer.machine.memory, program.program_addr)
    return program_digest(program), cycles


def _finished(part: Path, header: dict[str, Any]) -> dict[int, tuple[str, int | None]]:
    """The trials of a part file whose header is ``header``, by index; a last line that was cut off
    is removed from it.
    """
    if not part.exists():
        return {}
    text = read_text(part)
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        part.write_text(whole, "utf-8")
    lines = whole.splitlines()
    if lines and json.loads(lines[0]) != header:
        raise VdlaError(f"{part}: expected a part of this table, got one of other knobs; delete it")
    rows = map(json.loads, lines[1:])
    return {index: (program, cycles) for index, program, cycles in rows}
