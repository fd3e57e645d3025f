"""One model on the accelerator: compiled, simulated, checked against the graph's own meaning."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx

from ..compiler.build import CompiledModel, build
from ..compiler.graph.interpret import interpret
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..isa.status import Status
from ..sim.core import simulate
from ..sim.result import SimResult

#: Standard deviation of the float inputs of benchmark models.
INPUT_DEVIATION = 2.0


@dataclass(frozen=True)
class Measurement:
    """A model's runs: results and wall seconds by simulator (``sim``, ``rtl``)."""

    compiled: CompiledModel
    results: dict[str, SimResult]
    wall_s: dict[str, float]

    @property
    def cycles(self) -> int:
        """Cycles of the run, by whichever simulator."""
        return next(iter(self.results.values())).cycles

    @property
    def macs(self) -> int:
        """The model's own multiply-accumulates on the accelerator."""
        return sum(layer.macs for layer in self.compiled.layers if layer.runs is not None)

    @property
    def macs_total(self) -> int:
        """The model's own multiply-accumulates."""
        return sum(layer.macs for layer in self.compiled.layers)

    def cycles_of(self, simulator: str) -> int | None:
        """Cycles of one simulator, None if it did not run."""
        return self.results[simulator].cycles if simulator in self.results else None


def measure(
    model: onnx.ModelProto,
    hw: HwParams,
    memory: MemoryParams,
    simulators: tuple[str, ...],
    vthreads: int = 2,
    seed: int = 0,
) -> Measurement:
    """Run a model with one image of random input on some simulators.

    Raises VdlaError when a core stops with an error, when the outputs are not those of the graph's
    interpreter, and when two simulators differ in a byte of DRAM or in a cycle of an instruction.
    """
    compiled = build(model, "sim", hw, memory, vthreads)
    inputs = random_inputs(compiled, seed)
    start = compiled.dram(inputs)
    results: dict[str, SimResult] = {}
    images: dict[str, np.ndarray] = {}
    wall_s: dict[str, float] = {}
    assert compiled.program is not None
    for simulator in simulators:
        dram = start.copy()
        run = rtl_of(hw) if simulator == "rtl" else simulate
        begin = time.perf_counter()
        results[simulator] = run(compiled.program, dram, memory)
        wall_s[simulator] = time.perf_counter() - begin
        images[simulator] = dram
    name = model.graph.name
    check_runs(name, results, images)
    expected = interpret(compiled.graph, *inputs)
    got = compiled.results(images[simulators[0]], inputs)
    if not all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True)):
        raise VdlaError(f"{name}: the accelerator's outputs differ from the graph interpreter's")
    return Measurement(compiled, results, wall_s)


def random_inputs(compiled: CompiledModel, seed: int = 0) -> list[np.ndarray]:
    """Float inputs of a benchmark model."""
    rng = np.random.default_rng(seed)
    return [
        rng.normal(0, INPUT_DEVIATION, tensor.shape).astype(np.float32)
        for tensor in compiled.inputs
    ]


@lru_cache(maxsize=4)
def rtl_of(hw: HwParams):
    """The RTL of a configuration, elaborated once for all measurements."""
    from ..sim.rtl import RtlSimulator

    simulator = RtlSimulator(hw)
    simulator.build()
    return simulator.run


def check_runs(name: str, results: dict[str, SimResult], images: dict[str, np.ndarray]) -> None:
    """Raise VdlaError where a simulator has not reached the end, or two of them differ."""
    for simulator, result in results.items():
        status = Status(result.status)
        if status != Status.DONE:
            raise VdlaError(f"{simulator}: core stopped with {status.name}: {status.doc}")
    if len(results) < 2:
        return
    (a, one), (b, other) = results.items()
    differing = int((images[a] != images[b]).sum())
    pairs = zip((*one.starts, *one.ends), (*other.starts, *other.ends), strict=True)
    late = sum(x != y for x, y in pairs)
    if differing or late or one.cycles != other.cycles or one.counters != other.counters:
        raise VdlaError(
            f"{name}: {a} and {b} differ in {differing} bytes, {late} starts or ends of "
            f"instructions and {one.cycles - other.cycles} cycles"
        )
