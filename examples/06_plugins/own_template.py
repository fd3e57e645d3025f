"""A plugin with a template of the CPU: another schedule for an operator that VDLA has.

    vdla run MODEL --target cpu --plugin examples/06_plugins/own_template.py

The results of an integer dense layer are computed a few at a time, which share the elements that
they read. How many is a knob: ``--knobs`` sets it, and ``vdla tune --target cpu`` searches it.
"""

from __future__ import annotations

from vdla.compiler.choose.space import Knobs, Space
from vdla.compiler.graph.ops.linear import QDense
from vdla.compiler.targets.common.workload import OperatorWorkload
from vdla.compiler.targets.cpu.templates.base import CpuTemplate
from vdla.compiler.targets.cpu.templates.plain import reduced_tensor
from vdla.compiler.targets.registry import register_template
from vdla.compiler.te.schedule import Schedule


class DenseTogether(CpuTemplate):
    """A dense layer of int8, ``together`` results at a time."""

    name = "dense together"
    ops = (QDense,)

    def space(self, workload: OperatorWorkload) -> Space:
        results = workload.result[0][1]
        return Space({"together": [size for size in (4, 2, 8, 1) if size <= results]})

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        sums, output = reduced_tensor(schedule), schedule.outputs[0]
        outer, _ = schedule[output].split(output.axes[1], int(knobs["together"]))
        schedule[sums].compute_at(schedule[output], outer)
        schedule[sums].reorder(*sums.reduce_axes, sums.axes[1])


register_template(DenseTogether)
