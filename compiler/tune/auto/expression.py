"""A tensor expression of the user's as something to be tuned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ....isa.program import Program
from ...choose.space import Knobs, Space, Workload
from ...choose.steps import STEPS
from ...choose.template import Decision
from ...dumps import Dumps
from ...targets.common.random_arrays import random_array
from ...targets.cpu.graph_code import compile_func
from ...targets.cpu.target import Cpu
from ...targets.vdla.expressions import gemm_intrin
from ...targets.vdla.machine import Machine
from ...targets.vdla.plan.program import build_func
from ...targets.vdla.target import Accelerator
from ...te.intrinsic import TensorIntrin
from ...te.schedule import Schedule, create_schedule
from ...te.steps import from_text, replay
from ...te.tensor import Tensor
from ...tir.ir import PrimFunc
from ...tir.lower import lower
from ...tir.printer import print_func
from .accelerator import accelerator_program
from .builder import Picker
from .builder import Program as RuledProgram
from .programs import Programs
from .rules import processor_program


@dataclass(frozen=True)
class ExpressionWorkload(Workload):
    """An expression: the types of its parameters, and a digest of what it computes."""

    parameters: tuple[str, ...]
    digest: str


class ByRules(Decision[ExpressionWorkload]):
    """Steps for an expression."""

    name = "expression"

    def space(self, workload: ExpressionWorkload) -> Space:
        return Space({STEPS: ("",)})


@dataclass(frozen=True, eq=False)
class ExpressionLayer:
    """An expression on a target.

    Attributes
    ----------
    args : its parameters: the tensors that it reads, then the one that it computes
    target : the processor or the accelerator
    """

    args: tuple[Tensor, ...]
    target: Cpu | Accelerator
    name: str = "expression"
    template: ByRules = field(default_factory=ByRules)

    @property
    def output(self) -> Tensor:
        """What is computed."""
        return self.args[-1]

    @property
    def workload(self) -> ExpressionWorkload:
        """What records are found by."""
        text = print_func(lower(create_schedule(self.output), list(self.args)))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return ExpressionWorkload(tuple(f"{t.dtype}{list(t.shape)}" for t in self.args), digest)

    @property
    def machine(self) -> Machine:
        """The accelerator that cycles are counted for."""
        assert isinstance(self.target, Accelerator)
        return self.target.machine

    @property
    def intrinsics(self) -> Mapping[str, TensorIntrin]:
        """Instructions that steps may name."""
        if isinstance(self.target, Cpu):
            return {}
        gemm = gemm_intrin(self.machine.params)
        return {gemm.name: gemm}

    def schedule(self, knobs: Knobs) -> Schedule:
        """The schedule of some steps; the default one if they are empty."""
        made = create_schedule(self.output)
        if text := str(knobs[STEPS]):
            replay(from_text(text), made, self.intrinsics)
        return made

    def func(self, knobs: Knobs) -> PrimFunc:
        """The loop program of some steps."""
        return lower(self.schedule(knobs), list(self.args), self.name)

    def kernel(self, knobs: Knobs) -> Callable[[], None]:
        """Machine code of some steps; a call runs it once on random arrays."""
        assert isinstance(self.target, Cpu)
        func, rng = self.func(knobs), np.random.default_rng(0)
        code = compile_func(func, self.target.processor)
        arrays = [random_array(buffer.shape, buffer.dtype, rng) for buffer in func.params]
        return lambda: code(*arrays)

    def program(self, knobs: Knobs) -> Program:
        """The accelerator's program of some steps."""
        return build_func(self.func(knobs), self.machine, Dumps(None))

    def programs(self) -> Programs:
        """The programs by the target's rules."""
        make: Callable[[Picker], RuledProgram]
        if isinstance(self.target, Cpu):
            processor = self.target.processor
            lanes, threads = processor.vector_lanes, processor.threads
            make = partial(processor_program, self.output, lanes=lanes, threads=threads)
        else:
            (gemm,) = self.intrinsics.values()
            make = partial(accelerator_program, self.output, gemm=gemm)
        return Programs(make, self.func)
