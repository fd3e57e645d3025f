"""Transposed convolutions as products of matrices: a product for each phase of the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import vdla
from vdla.bench.net import Net
from vdla.bench.workloads import NETWORKS
from vdla.cli.arrays import model_inputs
from vdla.compiler.choose.space import Knobs
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.channels_last import TO_LAST, ChannelsLast
from vdla.compiler.graph.ops.convolution import ConvTranspose2d, QConvTranspose2d
from vdla.compiler.graph.ops.in_phases import InPhases
from vdla.compiler.graph.ops.narrow import Narrow
from vdla.compiler.targets.gpu.architectures import ARCHITECTURES, find_architecture
from vdla.compiler.targets.gpu.dialects import CUDA, OPENCL
from vdla.compiler.targets.gpu.kernels import kernels_of, lower_kernels, to_launches
from vdla.compiler.targets.gpu.lowering import template_of, templates_of
from vdla.compiler.targets.gpu.passes.in_phases import in_phases
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.tir.ir import PrimFunc
from vdla.runtime.gpu.emulated import ORDERS, load_emulated
from vdla.runtime.gpu.program import KernelProgram, TensorMap

from .emulating import Emulated


@dataclass(frozen=True)
class Case:
    """A transposed convolution of small integers, whose products every precision adds up exactly in
    any order, and knobs for it. ``kind`` is of the factors: "float32" and "int8" are for Gemm
    where there is no architecture."""

    kind: str
    arch: str = ""
    is_last: bool = False
    knobs: Mapping[str, int | str] = field(default_factory=dict)
    batch: int = 2
    channels: int = 16
    outputs: int = 20
    size: tuple[int, int] = (3, 4)
    kernel: tuple[int, int] = (4, 4)
    strides: tuple[int, int] = (2, 2)
    before: tuple[int, int] = (1, 1)
    behind: tuple[int, int] = (1, 1)
    bias: bool = True

    def graph(self) -> Graph:
        """The transposed convolution alone, of constants."""
        rng = np.random.default_rng(5)
        spans = zip(self.size, self.strides, self.kernel, self.before, self.behind, strict=True)
        height, width = ((n - 1) * s + k - a - b for n, s, k, a, b in spans)
        shapes = (self.batch, self.channels, *self.size), (self.channels, self.outputs, *self.kernel)
        dtype = "int8" if self.kind == "int8" else "float32"
        values = [rng.integers(-8, 8, shape).astype(dtype) for shape in shapes]
        op: Op
        if self.kind == "int8":
            multiplier = rng.integers(1 << 30, 1 << 31, self.outputs, dtype=np.int64)
            shift = np.full(self.outputs, 35, np.int32)
            requant = Requant(multiplier.astype(np.int32), shift, -3)
            op = QConvTranspose2d(self.strides, self.before, (height, width), -7, requant)
            values.append(rng.integers(-90, 90, self.outputs).astype(np.int32))
        else:
            lo = -40.0 if self.bias else -np.inf
            op = ConvTranspose2d(self.strides, self.before, (height, width), lo)
            bias = rng.integers(-90, 90, self.outputs).astype(np.float32)
            values += [bias] if self.bias else []
        return graph_of(op, values)

    def moved(self) -> Graph:
        """It in phases, in its layout, and narrow where that is its kind."""
        graph = in_phases(self.graph())
        [node] = graph.nodes
        op, values = node.op, [np.asarray(t.data) for t in graph.operands(node)]
        if self.is_last:
            op, values[0] = ChannelsLast(op), np.ascontiguousarray(values[0].transpose(TO_LAST))
        if self.kind == "float16":
            op, values[:2] = Narrow(op, "float16"), [v.astype(np.float16) for v in values[:2]]
        return graph_of(op, values)

    def wanted(self) -> np.ndarray:
        """The result of the operator as the model has it."""
        graph = self.graph()
        [node] = graph.nodes
        found = node.op.evaluate(*(np.asarray(t.data) for t in graph.operands(node)))
        return found.transpose(TO_LAST) if self.is_last else found

    def lowered(self) -> tuple[PrimFunc, list[np.ndarray]]:
        """Its kernels, and their operands."""
        graph = self.moved()
        [node] = graph.nodes
        template = template_of(graph, node, self.templates())
        assert template.name == ("tensor cores" if self.arch else "gemm")
        space = template.space(template.workload(graph, node))
        knobs: Knobs = next(space.points()) | dict(self.knobs)
        assert not space.refuse(knobs)
        found = template.schedule(graph, node, knobs)
        func = to_launches(lower_kernels(found.schedule, found.args, node.name))
        data = [np.asarray(t.data) for t in graph.operands(node)]
        arrays = [*data, *found.attributes]
        return func, [a.reshape(p.shape) for a, p in zip(arrays, func.params[:-1], strict=True)]

    def templates(self):
        if not self.arch:
            return templates_of(OPENCL)
        precision = "float32" if self.kind == "int8" else self.kind
        return templates_of(CUDA, precision, find_architecture(self.arch))


def graph_of(op: Op, values: list[np.ndarray]) -> Graph:
    operands = [Tensor.constant(n, v) for n, v in zip("xwb", values, strict=False)]
    shape, dtype = infer(op, tuple(operands), "y")
    tensors = {t.name: t for t in (*operands, Tensor("y", shape, dtype))}
    node = Node("conv", op, tuple(t.name for t in operands), "y")
    return Graph("one", (), ("y",), (node,), tensors)


SHAPES = (
    {},
    {"strides": (1, 1), "kernel": (3, 2), "behind": (0, 1)},
    {"strides": (3, 2), "kernel": (4, 3), "before": (2, 0), "behind": (0, -1)},
    {"strides": (2, 3), "kernel": (2, 5), "before": (0, 3), "behind": (1, 2), "batch": 1},
    {"strides": (3, 3), "kernel": (2, 1), "before": (0, 0), "behind": (-2, 0), "outputs": 3},
    {"strides": (2, 1), "kernel": (5, 5), "before": (4, 4), "behind": (3, 4), "size": (5, 6)},
)
TENSOR_CORES = [(k, a) for k in ("float16", "tf32", "int8") for a in ("sm_80", "sm_90a")]
WGMMA = {
    "unit": "wgmma", "rows": 64, "columns": 16, "warp_rows": 64, "warp_columns": 16, "stages": 2,
}
CASES = (
    *(Case(kind, **shape) for kind in ("float32", "int8") for shape in SHAPES),
    *(Case("float32", channels=5, bias=False, **shape) for shape in SHAPES[:2]),
    *(
        Case(*of, is_last=True, **shape)
        for number, of in enumerate(TENSOR_CORES)
        for shape in (SHAPES[number], SHAPES[number - 1])
    ),
    Case("float16", "sm_80", channels=5, bias=False),
    Case("float16", "sm_90a", True, WGMMA | {"depth": 32}, channels=32, size=(8, 9)),
    Case("int8", "sm_90a", True, WGMMA | {"depth": 64}, channels=80, size=(7, 10)),
    Case("tf32", "sm_90a", True, WGMMA | {"depth": 16}, **SHAPES[2] | {"size": (9, 11)}),
)


@pytest.mark.slow
def test_results_are_those_of_the_definition() -> None:
    """In every order of threads."""
    made = []
    for number, case in enumerate(CASES):
        func, arrays = case.lowered()
        made.append((case, Emulated.of(func, f"case{number}_"), arrays))
    code = load_emulated(print_module([k.text for _, e, _ in made for k in e.kernels], CUDA))
    for case, emulated, arrays in made:
        wanted = case.wanted()
        assert wanted.min() < wanted.max()
        for order in ORDERS:
            np.testing.assert_array_equal(emulated.run(code, arrays, order), wanted, str(case))
