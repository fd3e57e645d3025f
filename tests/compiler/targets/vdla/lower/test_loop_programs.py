"""Loop programs are made once for all choices that give the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import onnx
import pytest
from vdla.bench.modern import FloatNet
from vdla.compiler.build import build
from vdla.compiler.choose.space import Refusal
from vdla.compiler.graph.ir import Graph
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.machine import ACCELERATOR, Budget, Context
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.compiler.targets.vdla.templates.base import AcceleratorTemplate
from vdla.compiler.tir.printer import print_func
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams

from ..templates.test_inverted_residual import block, network
from ..test_squeeze import quantised, squeezed

WINDOWS = HwParams(vector_window=3, vector_table=2)


def activated() -> onnx.ModelProto:
    """A table, which is fused into the convolution before it, and passes tmp; and windows whose
    weights may stay in par."""
    net = FloatNet("table")
    x = net.silu(net.conv(net.input(1, 32, 28, 28), 96, 1, relu=False))
    net.output(net.conv(x, 96, 3, groups=96))
    return quantised(net.model())


def models() -> dict[str, Callable[[], onnx.ModelProto | Graph]]:
    """By name: with every template whose loop programs depend on the scratchpads that it has."""
    return {
        "squeezed": lambda: quantised(squeezed()),
        "windows": lambda: network((3, 1), (5, 2)),
        "table": activated,
        "fused windows": lambda: block(32, 96, (14, 14)),
    }


def contexts() -> Iterator[Context]:
    """With less and less of some scratchpads, and either order of results."""
    whole = Budget.whole(WINDOWS)
    for names in (("tmp",), ("par",), ("out",), ("wgt",), ("tmp", "par", "out", "inp", "wgt")):
        for share in (1, 8):
            for rows_first in (True, False):
                taken = {name: whole.of(name) - whole.of(name) // share for name in names}
                yield Context(whole.without(taken), rows_first)


@pytest.mark.slow
@pytest.mark.parametrize("name", models())
def test_what_a_loop_program_depends_on(name: str) -> None:
    """Of one choice with two contexts, loop programs differ only where the template says so."""
    target = find_target("sim", Options(WINDOWS, MEMORY_PRESETS["vta"]))
    assert isinstance(target, Accelerator)
    graph = build(models()[name](), target).graph
    compared, whole = 0, next(contexts())
    for node in graph.nodes:
        template = target.template_of(graph, node) if node.target == ACCELERATOR else None
        if not isinstance(template, AcceleratorTemplate):
            continue
        workloads = [template.workload(graph, node, context) for context in contexts()]
        plans = [template.plan(workload, {}) for workload in workloads]
        all_knobs = {str(p.knobs): p.knobs for p in plans if not isinstance(p, Refusal)}
        for knobs in all_knobs.values():
            legal = [w for w in workloads if not template.space(w).refuse(knobs)]
            known: dict[tuple, str] = {}
            for workload in legal:
                used = template.context_used(workload, knobs)
                same = replace(workload, context=whole), used
                text = print_func(template.schedule(workload, knobs, ""))
                compared += same in known
                assert known.setdefault(same, text) == text, (template.name, knobs, used)
    assert compared
