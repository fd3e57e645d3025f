"""One model on the accelerator: compiled, simulated, checked against the graph's interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np
import onnx

from ..compiler.build import CompiledModel, build
from ..compiler.choose.records import Records
from ..compiler.graph.interpret import interpret
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.status import Status
from ..report.report import join_programs
from ..runtime.native import TensorType
from ..runtime.result import SimResult, join
from ..sim.model.core import simulate

#: Standard deviation of the float inputs of benchmark models.
INPUT_DEVIATION = 2.0
#: Largest difference of a float output, relative to its largest value. The interpreter takes
#: functions such as tanh from another library, and rounds sums only once.
FLOAT_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Measurement:
    """A model's runs: the random inputs and the outputs, and by simulator (``sim``, ``rtl``) the
    results, all programs as one, and wall seconds; ``host_s`` are those of the host's steps.
    """

    compiled: CompiledModel
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    results: dict[str, SimResult]
    wall_s: dict[str, float]
    host_s: float

    @property
    def cycles(self) -> int:
        """Cycles of the run, by whichever simulator."""
        return next(iter(self.results.values())).cycles

    def cycles_of(self, simulator: str) -> int | None:
        """Cycles of one simulator, None if it did not run."""
        return self.results[simulator].cycles if simulator in self.results else None


Job = TypeVar("Job")
#: Is told how much of all is done.
Progress = Callable[[int, int], None]


def told(jobs: Sequence[Job], progress: Progress | None) -> Iterator[Job]:
    """The jobs one by one; ``progress`` is told when each has been done."""
    for done, job in enumerate(jobs, 1):
        yield job
        if progress is not None:
            progress(done, len(jobs))


def check_some(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise VdlaError unless there are names, all of them known."""
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = repr(unknown[0]) if unknown else "none"
        raise VdlaError(f"{what}: expected some of {', '.join(known)}, got {got}")


def random_inputs(inputs: Sequence[TensorType], seed: int = 0) -> list[np.ndarray]:
    """Normally distributed floats, and integers that are rows of any table of at least 100 rows."""
    rng = np.random.default_rng(seed)
    return [
        rng.normal(0, INPUT_DEVIATION, tensor.shape).astype(np.float32)
        if tensor.dtype == "float32"
        else rng.integers(0, 100, tensor.shape).astype(tensor.dtype)
        for tensor in inputs
    ]


def measure(
    model: onnx.ModelProto | str,
    hw: HwParams,
    memory: MemoryParams,
    simulators: tuple[str, ...],
    vthreads: int = 2,
    records: Records | None = None,
) -> Measurement:
    """Run a model, or a file's, with one image of random input on some simulators. Choices of
    records come before the planner's.

    Raises VdlaError when a core stops with an error, when the outputs are not those of the graph's
    interpreter (floats: to a millionth), and when two simulators differ in a byte of DRAM or in a
    cycle of an instruction.
    """
    compiled = build(model, find_target("sim", Options(hw, memory, vthreads)), records=records)
    inputs = random_inputs(compiled.inputs)
    runs = {name: _Run(name, hw, memory) for name in simulators}
    outputs, host_s = {}, {name: list[float]() for name in runs}
    for name, run in runs.items():
        compiled.reset()
        outputs[name] = compiled.run(inputs, run.execute, host_s[name])
    name = model if isinstance(model, str) else model.graph.name
    results = {name: join(run.results) for name, run in runs.items()}
    images = {name: run.images for name, run in runs.items()}
    check_runs(name, compiled.programs, results, images)
    found, expected = outputs[simulators[0]], interpret(compiled.graph, *inputs)
    if not all(map(_agree, found, expected)):
        raise VdlaError(f"{name}: the accelerator's outputs differ from the graph interpreter's")
    wall_s = {name: run.wall_s for name, run in runs.items()}
    return Measurement(compiled, inputs, found, results, wall_s, min(map(sum, host_s.values())))


def _agree(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether an output is the interpreter's: integers are equal, floats but for rounding."""
    if found.dtype.kind != "f":
        return np.array_equal(found, expected)
    limit = FLOAT_TOLERANCE * np.abs(expected).max(initial=0.0)
    return found.shape == expected.shape and bool((np.abs(found - expected) <= limit).all())


@dataclass
class _Run:
    """The programs of a model on one simulator, and what DRAM holds after each."""

    simulator: str
    hw: HwParams
    memory: MemoryParams
    results: list[SimResult] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)
    wall_s: float = 0.0

    def execute(self, program: Program, dram: np.ndarray) -> None:
        """Run a program on its DRAM image, in place."""
        run = build_rtl(self.hw) if self.simulator == "rtl" else simulate
        begin = time.perf_counter()
        result = run(program, dram, self.memory)
        self.wall_s += time.perf_counter() - begin
        status = Status(result.status)
        if status != Status.DONE:
            raise VdlaError(f"{self.simulator}: core stopped with {status.name}: {status.doc}")
        self.results.append(result)
        self.images.append(dram)


@lru_cache(maxsize=4)
def build_rtl(hw: HwParams):
    """The RTL of a configuration, elaborated once for all measurements."""
    from ..sim.rtl.driver import RtlSimulator

    simulator = RtlSimulator(hw)
    simulator.build()
    return simulator.run


def check_runs(
    name: str,
    programs: Sequence[Program],
    results: dict[str, SimResult],
    images: dict[str, list[np.ndarray]],
) -> None:
    """Raise VdlaError where two simulators differ; ``programs`` are what ran, and ``images`` are
    what DRAM holds after each program."""
    if len(results) < 2:
        return
    (a, one), (b, other) = results.items()
    differing = sum(int((x != y).sum()) for x, y in zip(images[a], images[b], strict=True))
    moments = [list(zip(run.starts, run.ends, strict=True)) for run in (one, other)]
    late = [i for i, (x, y) in enumerate(zip(*moments, strict=True)) if x != y]
    if differing or late or one.cycles != other.cycles or one.counters != other.counters:
        raise VdlaError(
            f"{name}: {a} and {b} differ in {differing} bytes, in the starts or ends of"
            f" {len(late)} instructions and by {one.cycles - other.cycles} cycles"
            + (f"; first at {join_programs(programs).where(late[0])}" if late else "")
        )
