"""Schedules of your own on every target: lower them, look at the loops, run them, count cycles.

::

    schedule = te.create_schedule(y)
    ...                                                     split, reorder, tensorize, vthread
    print(vdla.print_func(vdla.lower(schedule, [x, w, y])))
    kernel = vdla.build_schedule(schedule, [x, w, y], target="sim")
    (result,) = kernel.run(x_values, w_values)
    kernel.cycles
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import plugins
from ..compiler.dumps import Dumps
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..compiler.te.schedule import Schedule
from ..compiler.te.tensor import Tensor
from ..compiler.tir.ir import Buffer, PrimFunc, written_params
from ..compiler.tir.lower import lower
from ..compiler.tir.printer import print_func
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams, load_platform
from ..isa.params import HwParams
from ..isa.program import Program
from ..module import check_options
from ..runtime.native import as_input, check_array
from ..sim.runner import Runner

__all__ = ["Kernel", "build_schedule", "lower", "print_func"]


def build_schedule(
    schedule: Schedule,
    args: Sequence[Tensor],
    target: str = "cpu",
    hw: HwParams | str | Path = "16x16",
    memory: MemoryParams | str | Path = "vta",
    threads: int = 1,
    port: str | None = None,
    name: str = "main",
    dump_ir: str | Path | None = None,
    emulate: bool = False,
) -> Kernel:
    """Compile a schedule as it stands: the compiler adds no choices of its own.

    Parameters
    ----------
    schedule : Schedule
        For the accelerator, its stages are in scratchpads (``set_scope``, ``cache_read``,
        ``cache_write``: inp, wgt, par, acc, tmp, out), and its innermost dimensions are [batch,
        block] entries. For a GPU, loops are bound to ``blockIdx.x`` and so on, and stages are in
        shared and local memory; what is bound to nothing, one thread computes.
    args : tensors
        The parameters: the tensors that the schedule reads, then those that it computes.
    target, hw, memory, threads, port, emulate
        As for :func:`vdla.compile`.
    name : str
        Name of the loop program, for messages.
    dump_ir : path, optional
        A directory for the loops before and after every pass, and for the instructions.

    Raises
    ------
    VdlaError
        For options out of range, a schedule that is not sound, and one that the target cannot run,
        naming the stage or the statement.
    """
    plugins.load_known()
    check_options(target, port, threads=threads)
    params, memory = load_platform(hw, memory)
    found = find_target(target, Options(params, memory, threads=threads, emulate=emulate))
    code = found.compile_func(func := found.lower(schedule, list(args), name), Dumps(dump_ir))
    return Kernel(func, code, Runner(target, params, memory, port))


class Kernel:
    """A loop program and the place where it runs.

    Attributes
    ----------
    func : the loop program as it was lowered
    inputs, outputs : its parameters: those that it only reads, and those that it writes
    """

    def __init__(self, func: PrimFunc, code: object, runner: Runner):
        self.func = func
        self.outputs = written_params(func)
        self.inputs = tuple(p for p in func.params if p not in self.outputs)
        self._code, self._runner = code, runner
        self._cycles: int | None = None

    @property
    def program(self) -> Program:
        """The accelerator's program.

        Raises
        ------
        VdlaError
            On a target without one.
        """
        if not isinstance(self._code, Program):
            raise VdlaError(f"program: target {self._runner.place!r} has none; use sim or rtl")
        return self._code

    @property
    def cycles(self) -> int:
        """Cycles of the last run.

        Raises
        ------
        VdlaError
            Before the first run, and on the CPU, which counts none.
        """
        if self._cycles is None:
            raise VdlaError(
                f"cycles: expected a run on the accelerator, got none; target is "
                f"{self._runner.place!r}"
            )
        return self._cycles

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Run on one array per input, of the input's shape and dtype, or
        float64 for another float; returns one array per output.

        Raises
        ------
        VdlaError
            For arrays that do not fit, or when the core stops with an error.
        """
        name = self.func.name
        if len(arrays) != len(self.inputs):
            known = ", ".join(f"{p.name} {p.dtype}{list(p.shape)}" for p in self.inputs)
            raise VdlaError(
                f"{name}: expected {len(self.inputs)} arrays ({known}), got {len(arrays)}"
            )
        given = (as_input(a, p.dtype) for a, p in zip(arrays, self.inputs, strict=True))
        values = dict(zip(self.inputs, map(np.ascontiguousarray, given), strict=True))
        for buffer, array in values.items():
            check_array(f"{name}: {buffer.name}", array, buffer.shape, buffer.dtype)
        if isinstance(self._code, Program):
            return self._run_program(self._code, values)
        values |= {p: np.empty(p.shape, p.dtype) for p in self.outputs}
        assert callable(self._code)
        self._code(*(values[p] for p in self.func.params))
        return [values[p] for p in self.outputs]

    def _run_program(self, program: Program, values: dict[Buffer, np.ndarray]) -> list[np.ndarray]:
        dram = program.dram_image()
        for region, array in zip(program.meta["inputs"], values.values(), strict=True):
            dram[region["address"] :][: region["bytes"]] = array.reshape(-1).view(np.uint8)
        self._cycles = self._runner.run(program, dram).cycles
        results = []
        for region, buffer in zip(program.meta["outputs"], self.outputs, strict=True):
            raw = dram[region["address"] :][: region["bytes"]]
            results.append(raw.view(buffer.dtype).reshape(buffer.shape).copy())
        return results
