"""One layer of a graph for a graphics processor: what a tuner compiles in each trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ....runtime.gpu.cuda import CudaSession
from ...choose.space import Knobs
from ...dumps import Dumps
from ...graph.ir import Graph, Node
from ...tir.ir import PrimFunc
from ..common.random_arrays import random_array
from ..common.workload import OperatorWorkload
from .dialects import Dialect
from .func_code import FuncKernels
from .lowering import lower_node
from .templates.base import GpuTemplate


def time_calls(call: Callable[[], None]) -> Callable[[int], float]:
    """Makes a trial of a call: it calls so many times, and returns the seconds that takes."""

    def trial(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - begun

    return trial


@dataclass(frozen=True, eq=False)
class GpuLayer:
    """A node, after the target's passes, with its template and its workload.

    Operands are random, also those that are constants in the model: time does not depend on them.
    """

    graph: Graph
    node: Node
    template: GpuTemplate
    workload: OperatorWorkload
    dialect: Dialect
    device: str

    def loop_program(self, knobs: Knobs) -> PrimFunc:
        """The loop program with these knobs, before the target's passes."""
        return lower_node(self.graph, self.node, self.template, knobs, Dumps()).func

    def trial(self, knobs: Knobs) -> Callable[[int], float]:
        """The node's kernels with these knobs; a call runs them so many times, one behind the
        other, and returns the seconds that takes: on a GPU with CUDA without the host's part.

        Raises
        ------
        VdlaError
            For knobs that no kernel can have, and where the device is missing.
        """
        program = FuncKernels.of(
            self.loop_program(knobs), self.dialect, self.device, Dumps()
        ).program
        session = program.open(program)
        rng = np.random.default_rng(0)
        for tensor in program.inputs:
            _, offset = program.places[tensor.name]
            array = random_array(tensor.shape, tensor.dtype, rng)
            session.write(offset, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        if isinstance(session, CudaSession):
            return partial(session.time_runs, program.calls)
        return time_calls(partial(session.launch, program.calls))
