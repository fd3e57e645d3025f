"""ONNX's own node tests as OpenCL kernels: the first case of each operator, and all of them with
``make gpu-emulated``."""

from __future__ import annotations

import re
from typing import Any

import pytest
from vdla.compiler.build import build
from vdla.compiler.graph.ir import Graph
from vdla.compiler.onnx_backend import Run, VdlaRep
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.gpu.target import OpenCl
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams
from vdla.runtime.gpu.program import KernelProgram

from ...test_onnx_backend import OPERATORS, REFUSED, cases, run_case

pytestmark = pytest.mark.sweep


def compile_for_opencl(graph: Graph) -> Run:
    compiled = build(graph, OpenCl(Options(HwParams(), MemoryParams.load("vta"))))
    [step] = compiled.steps
    assert isinstance(step, KernelProgram)
    return step.run


def supported(operator: str) -> list[Any]:
    """The cases of an operator that no target refuses."""
    return [c for c in cases()[operator] if not any(re.match(name, c.name) for name in REFUSED)]


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_first_case(operator: str) -> None:
    pytest.importorskip("pyopencl")
    case = supported(operator)[0]
    run_case(case, VdlaRep(case.model, compile_for_opencl))


@pytest.mark.sweep
def test_whole_suite() -> None:
    pytest.importorskip("pyopencl")
    found = [case for operator in OPERATORS for case in supported(operator)]
    for case in found:
        run_case(case, VdlaRep(case.model, compile_for_opencl))
    print(f"{len(found)} cases of {len(OPERATORS)} operators")
    assert len(found) >= 300
