"""One layer of a graph for the processor, with many knobs: what a tuner compiles in each trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...choose.space import Knobs
from ...graph.ir import Graph, Node
from ..common.random_arrays import random_array
from ..common.workload import OperatorWorkload
from .graph_code import compile_func
from .lowering import lower_node
from .processor import Processor
from .templates.base import CpuTemplate


@dataclass(frozen=True, eq=False)
class CpuLayer:
    """A node, after the processor's passes, with its template and its workload.

    Operands are random, also those that are constants in the model: time does not depend on them.
    """

    graph: Graph
    node: Node
    template: CpuTemplate
    workload: OperatorWorkload
    processor: Processor

    def kernel(self, knobs: Knobs) -> Callable[[], None]:
        """Machine code of the node with these knobs; a call runs it once on arrays of its own.

        Raises
        ------
        VdlaError
            For a loop program that the processor cannot run.
        """
        lowered = lower_node(self.graph, self.node, self.processor, knobs)
        code = compile_func(lowered.func, self.processor)
        rng = np.random.default_rng(0)
        operands = len(self.node.inputs)
        arrays = []
        for index, buffer in enumerate(lowered.func.params):
            made = index - operands
            if 0 <= made < len(lowered.attributes):
                arrays.append(np.ascontiguousarray(lowered.attributes[made]))
            else:
                arrays.append(random_array(buffer.shape, buffer.dtype, rng))
        return lambda: code(*arrays)
