"""Random graphs: whatever passes run, the results are those of ONNX's reference evaluator, and the
accelerator's are the host's.

50 graphs, always the same ones; as many others as ``VDLA_FUZZ`` says, if set (``make fuzz``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.ir import Graph, dump
from vdla.compiler.graph.passes import GRAPH_PASSES, run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import PRESETS
from vdla.isa.reference import run as run_reference

from ..building import build_for, placed
from .random_graphs import RandomGraph, Skip, Value
from .random_operators import MAKERS, quantized_operator

EXAMPLES = int(os.environ.get("VDLA_FUZZ", "50"))
STEPS = 8
#: How many times more often than others an operator is drawn that the accelerator may take.
QUANTIZED = len(MAKERS) // 3


@dataclass(frozen=True)
class Case:
    """A model, its inputs, the expected outputs, and which passes run in the third try."""

    model: onnx.ModelProto
    inputs: list[np.ndarray]
    expected: list[Value]
    chosen: tuple[bool, ...]

    def __repr__(self) -> str:
        return f"{onnx.printer.to_text(self.model)}\npasses {self.chosen}"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    g = RandomGraph(draw, np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
    g.input(1, 4, draw(st.integers(2, 6)), draw(st.integers(2, 6)))
    g.input(draw(st.integers(1, 3)), draw(st.integers(1, 6)))
    for _ in range(draw(st.integers(2, STEPS))):
        nodes, values = len(g.nodes), list(g.values)
        try:
            draw(st.sampled_from([*MAKERS, *[quantized_operator] * QUANTIZED]))(g)
        except Skip:
            del g.nodes[nodes:]
            g.values = values
    computed = [v for v in g.values if v not in g.inputs]
    if not computed:
        value = g.apply("Relu", [g.inputs[0]])
        computed = [value]
    last, others = computed[-1], computed[:-1]
    kept = [v for v in others if draw(st.integers(0, 3)) == 0]
    chosen = tuple(draw(st.booleans()) for _ in GRAPH_PASSES)
    outputs = [*kept, last]
    return Case(g.model(outputs), [v.array for v in g.inputs], outputs, chosen)


@pytest.mark.more
@pytest.mark.slow
def test_random_graphs() -> None:
    """Many of them must run on the accelerator."""
    accelerated = []

    @settings(
        max_examples=EXAMPLES,
        derandomize="VDLA_FUZZ" not in os.environ,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.generate,),
    )
    @given(cases())
    def run(case: Case) -> None:
        accelerated.append(check(case))

    run()
    assert len(accelerated) >= EXAMPLES and sum(accelerated) > EXAMPLES / 10


def check(case: Case) -> bool:
    """One graph, with all passes, none and some; whether it ran on the accelerator, too."""
    on_accelerator = False
    subset = tuple(p for p, on in zip(GRAPH_PASSES, case.chosen, strict=True) if on)
    seen = set()
    for passes in (GRAPH_PASSES, (), subset):
        graph = run_passes(import_onnx(case.model), passes)
        text = dump(graph)
        if text in seen:
            continue  # the same machine code
        seen.add(text)
        got = build_cpu(graph).run(*(case.inputs[int(name[1:])] for name in graph.inputs))
        for value, array in zip(case.expected, got, strict=True):
            agree(value, array, [p.__name__ for p in passes])
        if passes is GRAPH_PASSES and takes_some(graph):
            same_on_the_accelerator(graph, case, got)
            on_accelerator = True
    return on_accelerator


def takes_some(graph: Graph) -> bool:
    """Whether the accelerator takes a node."""
    return any(node.target == "accel" for node in placed(graph).nodes)


def same_on_the_accelerator(graph: Graph, case: Case, expected: list[np.ndarray]) -> None:
    """Its programs, by the reference of the instruction set, give the host's values."""
    compiled = build_for("sim", case.model, PRESETS["16x16"], MEMORY_PRESETS["vta"])
    inputs = [case.inputs[int(name[1:])] for name in graph.inputs]
    got = compiled.run(inputs, run_reference)
    for tensor, a, b in zip(compiled.outputs, got, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f"{tensor.name} on the accelerator")


def agree(value: Value, got: np.ndarray, passes: list[str]) -> None:
    """Equal integers; floats as close as their history allows."""
    expected = value.array
    what = f"{value.name} with passes {passes}"
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), what
    if not value.is_float:
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    largest = np.abs(expected).max(initial=1)
    atol = 1.001 * value.step + 2e-4 * largest
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=atol, err_msg=what)
