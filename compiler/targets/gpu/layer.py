"""One layer of a graph for a graphics processor: what a tuner compiles in each trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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

    def kernel(self, knobs: Knobs) -> Callable[[], None]:
        """The node's kernels with these knobs; a call runs them once, and waits for their end.

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
        return lambda: session.launch(program.calls)
