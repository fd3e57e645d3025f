"""Products by the steps of a log (``te/steps.py``), in the place of a template's tiling: what the
AutoScheduler searches.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache, partial

import numpy as np

from .....isa.errors import VdlaError
from ....choose.space import Knobs, Refusal, Space, Workload
from ....choose.steps import STEPS, steps_space
from ....choose.template import Plan
from ....dumps import Dumps
from ....graph.ir import Graph, Node
from ....te import Tensor, create_schedule
from ....te.steps import from_text, replay
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..expressions import gemm_intrin
from ..lower.codegen import Code
from ..lower.loop_passes import run_loop_passes
from ..machine import USUAL_EIGHTHS, Context
from .base import AcceleratorTemplate, Track
from .convolution import Products, ProductsWorkload


class ProductsBySteps(AcceleratorTemplate[ProductsWorkload]):
    """Convolutions and dense layers by the steps of a log. It is chosen only where the user or a
    record says so.
    """

    name = "auto"
    ops = ()
    track = Track.TENSOR

    def __init__(self, usual: Products):
        super().__init__(usual.machine)
        self.usual = usual

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return self.usual.takes(graph, node)

    def workload(self, graph: Graph, node: Node, context: Context) -> ProductsWorkload:
        return self.usual.workload(graph, node, context)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        return self.usual.constants(graph, node)

    def space(self, workload: ProductsWorkload) -> Space:
        return steps_space(partial(self._refuse, workload))

    def plan(self, workload: ProductsWorkload, fixed: Knobs) -> Plan | Refusal:
        return Plan({STEPS: ""} | dict(fixed))

    def output(self, workload: ProductsWorkload) -> Tensor:
        """What is computed."""
        return self.usual.expression(workload)[1]

    def schedule(self, workload: ProductsWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """The loop program; of empty steps, the one that the usual template plans."""
        if not knobs[STEPS]:
            planned = self.usual.plan(workload, {})
            if isinstance(planned, Refusal):
                raise VdlaError(f"{name}: {planned.reason}")
            return self.usual.schedule(workload, planned.knobs, name)
        stages, out = self.usual.expression(workload)
        made, gemm = create_schedule(out), gemm_intrin(self.machine.params)
        replay(from_text(str(knobs[STEPS])), made, {gemm.name: gemm})
        return lower(made, [stages.data, stages.weight, stages.par, out], name)

    def context_used(self, workload: ProductsWorkload, knobs: Knobs) -> Hashable:
        return None if knobs[STEPS] else workload.context

    def _refuse(self, workload: ProductsWorkload, text: str) -> str:
        """Why a log makes no loop program that fits the budget; empty if it does."""
        params = self.machine.params
        try:
            func = self.schedule(workload, {STEPS: text}, "steps")
            func = run_loop_passes(func, self.machine, Dumps(None), USUAL_EIGHTHS)
            return workload.context.budget.lack(Code(func, params).used)
        except VdlaError as error:
            return str(error)


@lru_cache(maxsize=64)
def find_step_template(
    template: AcceleratorTemplate, workload: Workload
) -> AcceleratorTemplate | None:
    """The template by which the AutoScheduler computes what another template does; None where its
    rules do not fit, which know no groups.
    """
    if type(template) is Products and type(workload) is ProductsWorkload:
        return ProductsBySteps(template)
    return None
