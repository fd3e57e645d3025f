"""Every family of operators as emulated kernels, against ONNX Runtime: a case of each, or as many
as ``VDLA_FUZZ`` says."""

from __future__ import annotations

import os

import pytest
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.dumps import Dumps
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.passes import GRAPH_PASSES, run_passes
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.graph_code import GraphKernels, fuse
from vdla.compiler.targets.gpu.lowering import templates_of

from ...graph.test_fuzz_graphs import agree
from ...graph.test_random_operators import FAMILIES, made

CASES = int(os.environ.get("VDLA_FUZZ", "1"))


@pytest.mark.short(13)
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_operator(name: str) -> None:
    for number in range(CASES):
        case = made(FAMILIES[name], number)
        graph = run_passes(import_onnx(case.model), GRAPH_PASSES)
        found = GraphKernels(
            fuse(graph, templates_of(CUDA)),
            CUDA,
            templates_of(CUDA),
            Chooser("cuda", CUDA.name),
            Dumps(),
        )
        program = found.program("emulated")
        arrays = [case.inputs[int(tensor.name[1:])] for tensor in program.inputs]
        for value, array in zip(case.expected, program.run(*arrays), strict=True):
            agree(value, array, ["all"])
