"""One layer with many knobs: what a tuner compiles in each trial.

What does not depend on knobs is computed once: the graph and its passes, the workload and its
space, and the constants as they lie in DRAM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ....isa.errors import VdlaError
from ....isa.program import Program
from ...choose.chooser import Choice, Chooser
from ...choose.space import Knobs, Space, Workload
from ...dumps import Dumps
from ...graph.ir import Graph, Node
from ..base import Part
from .lower.codegen import Code
from .lower.loop_passes import run_loop_passes
from .machine import ACCELERATOR, USUAL_EIGHTHS, Machine
from .plan.program import LinkedPart
from .plan.scratchpads import Operator
from .templates.base import AcceleratorTemplate

_NO_DUMPS = Dumps(None)


@dataclass(frozen=True, eq=False)
class Layer:
    """A node of a graph with its template and its workload, in a program of its own.

    The program of the same knobs is, to the byte, that of a model with this layer alone, with the
    usual room for weights.
    """

    graph: Graph
    node: Node
    template: AcceleratorTemplate
    workload: Workload
    machine: Machine

    @cached_property
    def space(self) -> Space:
        """The knobs, and which are legal."""
        return self.template.space(self.workload)

    def program(self, knobs: Knobs) -> Program:
        """The checked program for some knobs.

        Raises
        ------
        VdlaError
            For knobs that are not legal, and a program that the checker refuses.
        """
        name = self.node.name
        if reason := self.space.refuse(knobs):
            raise VdlaError(f"layer {name!r}: {reason}")
        func = self.template.schedule(self.workload, knobs, name)
        func = run_loop_passes(func, self.machine, _NO_DUMPS, USUAL_EIGHTHS)
        code = Code(func, self.machine.params)
        choice = Choice(knobs, "user", self.template.predict(self.workload, knobs))
        operator = Operator(self.node, self.template, self.workload, choice, code)
        part = Part(self.graph, (self.node,), (self.node.output,))
        chooser = Chooser(ACCELERATOR, "", made={name: [choice]})
        made = {self.node.output: operator}
        linked = LinkedPart(part, made, self.machine, chooser, _NO_DUMPS)
        program = linked.compiled(_NO_DUMPS).step
        assert isinstance(program, Program)
        return program
