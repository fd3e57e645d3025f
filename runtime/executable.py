"""A compiled model, ready to run: programs for the accelerator, native functions for the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from ..isa.errors import VdlaError
from ..isa.program import Program
from .gpu.program import KernelProgram
from .layout import pack_activation, unpack_activation
from .native import MemoryPlan, NativeCode, NativeFunction, TensorType

#: Runs a program on a DRAM image (uint8), in place.
Execute = Callable[[Program, np.ndarray], object]


class HostStep(Protocol):
    """A step that computes tensors on the host."""

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The tensors that it reads, in the order of :meth:`run`."""
        ...

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The tensors that it computes."""
        ...

    @property
    def plan(self) -> MemoryPlan:
        """How the tensors between inputs and outputs share memory."""
        ...

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Compute the outputs from the inputs."""
        ...


Step = Program | NativeCode | HostStep


@dataclass(frozen=True)
class LayerInfo:
    """One operator of the model: where it runs and why, its work, its instructions.

    ``macs`` and ``compulsory_bytes`` count the model's own channels, without padding; of the bytes
    ``compulsory_written_bytes`` are those of the result, the others those of the operands. ``runs``
    lists its instructions as pairs of first and last index, both inclusive, one pair for every
    unbroken run; indices count through all programs of the model. It is None on the host. ``knobs``
    are the choices for the layer, and ``chosen_by`` says who made them (user, record, planner or
    default; empty where there was no choice). ``predicted_cycles`` is what the cost model predicts
    for them, if there is one. ``kernels`` are those of a GPU: for each its ``name``, ``grid``,
    ``block`` and what it moves (the fields of ``compiler/targets/gpu/traffic.py``). ``computes`` is
    False where values only change places. ``window_macs`` are those of the MACs that a depthwise
    convolution does whose operand is a product of the same operator.
    """

    name: str
    op: str
    target: str
    reason: str
    macs: int
    compulsory_bytes: int
    runs: tuple[tuple[int, int], ...] | None
    knobs: Mapping[str, int | str | bool] = field(default_factory=dict)
    chosen_by: str = ""
    predicted_cycles: int | None = None
    # Modules that were saved before these fields existed have none.
    compulsory_written_bytes: int = 0
    kernels: tuple[Mapping[str, Any], ...] = ()
    computes: bool = True
    window_macs: int = 0

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> LayerInfo:
        """The layer whose fields JSON has held, which turns tuples into lists."""
        runs = values["runs"]
        if runs is not None:
            runs = tuple((first, last) for first, last in runs)
        kernels = tuple(values.get("kernels", ()))
        return LayerInfo(**{**values, "runs": runs, "kernels": kernels})

    @property
    def compulsory_read_bytes(self) -> int:
        """Bytes of its operands."""
        return self.compulsory_bytes - self.compulsory_written_bytes


@dataclass(frozen=True, eq=False)
class State:
    """A tensor that a model keeps from one run to the next.

    The steps read it as the tensor ``input`` and compute its next value as the tensor ``output``.
    The first run reads ``initial``.
    """

    input: str
    output: str
    initial: np.ndarray


@dataclass(frozen=True, eq=False)
class Executable:
    """A model with everything that is needed to run it.

    ``steps`` are programs for the accelerator and steps on the host, which run one after the other.
    Tensors go from one step to the next by name, as NumPy arrays. Native code for another machine
    can be saved, but not run. ``states`` are neither among ``inputs`` nor among ``outputs``; their
    values after a run are those that the next run reads.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    layers: tuple[LayerInfo, ...]
    steps: tuple[Step, ...]
    states: tuple[State, ...] = field(default=(), kw_only=True)
    _held: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The accelerator's programs, in running order."""
        return tuple(step for step in self.steps if isinstance(step, Program))

    @property
    def program(self) -> Program | None:
        """The accelerator's program, None if there is none.

        Raises
        ------
        VdlaError
            When there are several.
        """
        if len(self.programs) > 1:
            on_host = [layer.runs is None for layer in self.layers]
            host = self.layers[on_host.index(True, on_host.index(False))]
            raise VdlaError(
                f"expected a model of one program, got {len(self.programs)}: node {host.name!r}"
                " runs on the host between them"
            )
        return self.programs[0] if self.programs else None

    @property
    def plan(self) -> dict[str, Any]:
        """What was chosen for all layers of the programs together; empty without a program."""
        plan = self.programs[0].meta.get("plan", {}) if self.programs else {}
        return dict(sorted(plan.items()))

    @property
    def memory_plans(self) -> list[dict[str, Any]]:
        """How tensors between operators share memory, step by step, in bytes: ``where``, then the
        fields of :class:`~vdla.runtime.native.MemoryPlan`.
        """
        plans = []
        for number, step in enumerate(self.steps):
            if isinstance(step, Program):
                plan = MemoryPlan(**step.meta["memory_plan"])
                plans.append({"where": f"step {number}, DRAM", **asdict(plan)})
            else:
                where = step.device if isinstance(step, KernelProgram) else "host"
                plans.append({"where": f"step {number}, {where}", **asdict(step.plan)})
        return plans

    def run(
        self,
        arrays: Sequence[np.ndarray],
        execute: Execute,
        host_s: list[float] | None = None,
    ) -> list[np.ndarray]:
        """Run all steps on inputs that fit; return the outputs. ``execute`` runs each program. To
        ``host_s`` the seconds are added that each step of the host took.
        """
        values = self._start(arrays)
        for step in self.steps:
            if isinstance(step, Program):
                dram = self._image(step, values)
                execute(step, dram)
                self._read(step, dram, values)
            else:
                begin = time.perf_counter()
                _call(step, values)
                if host_s is not None and not is_program(step):
                    host_s.append(time.perf_counter() - begin)
        self._held.update((state.input, values[state.output]) for state in self.states)
        return [values[tensor.name] for tensor in self.outputs]

    def reset(self) -> None:
        """Let the next run read the initial values of all states."""
        self._held.clear()

    def take_states(self, other: Executable) -> None:
        """Let the next run read the values of another model's states of the same names."""
        held = dict(other._held)
        self._held.clear()
        self._held.update(held)

    def run_cpu(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run a model that has no programs, and return the outputs."""
        assert not self.programs
        return self.run(arrays, lambda program, dram: None)

    def dram(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """DRAM before the one program runs (uint8): constants, instructions, packed inputs."""
        assert self.program is not None
        values = self._start(arrays)
        for step in self.steps:
            if isinstance(step, Program):
                break
            _call(step, values)
        return self._image(self.program, values)

    def results(self, dram: np.ndarray, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, given what DRAM holds after the only program's run; the host's steps run
        here."""

        def done(_program: Program, image: np.ndarray) -> None:
            image[...] = dram

        assert self.program is not None
        return self.run(arrays, done)

    def _start(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        given = {t.name: array for t, array in zip(self.inputs, arrays, strict=True)}
        held = {s.input: self._held.get(s.input, s.initial) for s in self.states}
        return given | held

    def _image(self, program: Program, values: dict[str, np.ndarray]) -> np.ndarray:
        dram = program.dram_image()
        for region in program.meta["inputs"]:
            data = pack_activation(values[region["name"]], program.params)
            dram[region["address"] : region["address"] + data.size] = data
        return dram

    def _read(self, program: Program, dram: np.ndarray, values: dict[str, np.ndarray]) -> None:
        for region in program.meta["outputs"]:
            data = dram[region["address"] : region["address"] + region["bytes"]]
            values[region["name"]] = unpack_activation(data, tuple(region["shape"]), program.params)


def is_program(step: Step) -> bool:
    """Whether a step runs on an accelerator or a GPU, not on the host."""
    return isinstance(step, Program | KernelProgram)


def _call(function: NativeCode | HostStep, values: dict[str, np.ndarray]) -> None:
    if isinstance(function, NativeCode) and not isinstance(function, NativeFunction):
        raise VdlaError(f"{function.name}: code for another machine cannot run here")
    found = function.run(*(values[tensor.name] for tensor in function.inputs))
    values.update((t.name, array) for t, array in zip(function.outputs, found, strict=True))
