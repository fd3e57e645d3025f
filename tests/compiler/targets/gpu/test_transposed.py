"""Transposed convolutions as products of matrices: a product for each phase of the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from vdla.bench.workloads import NETWORKS
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.choose.space import Knobs
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.channels_last import TO_LAST, ChannelsLast
from vdla.compiler.graph.ops.convolution import ConvTranspose2d, QConvTranspose2d
from vdla.compiler.graph.ops.in_phases import InPhases
from vdla.compiler.graph.ops.narrow import Narrow, without_narrow
from vdla.compiler.graph.passes import GRAPH_PASSES, run_passes
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.gpu.architectures import find_architecture
from vdla.compiler.targets.gpu.dialects import CUDA, OPENCL
from vdla.compiler.targets.gpu.kernels import lower_kernels, make_kernels, to_launches
from vdla.compiler.targets.gpu.lowering import Templates, template_of, templates_of
from vdla.compiler.targets.gpu.passes.in_phases import in_phases
from vdla.compiler.targets.gpu.target import Cuda, Gpu, OpenCl
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.tir.ir import PrimFunc
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams
from vdla.runtime.gpu.emulated import ORDERS, load_emulated

from ..cpu.one_operator import run_op
from .emulating import Emulated


@dataclass(frozen=True)
class Case:
    """A transposed convolution of small integers, whose products every precision adds up exactly in
    any order, and knobs for it. ``kind`` is that of the factors; without an architecture there are
    no tensor cores."""

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
        shapes = (
            (self.batch, self.channels, *self.size),
            (self.channels, self.outputs, *self.kernel),
        )
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
        op, values = node.op, operands_of(graph)
        if self.is_last:
            op, values[0] = ChannelsLast(op), np.ascontiguousarray(values[0].transpose(TO_LAST))
        if self.kind == "float16":
            op, values[:2] = Narrow(op, "float16"), [v.astype(np.float16) for v in values[:2]]
        return graph_of(op, values)

    def wanted(self) -> np.ndarray:
        """The result of the operator as the model has it."""
        graph = self.graph()
        [node] = graph.nodes
        found = node.op.evaluate(*operands_of(graph))
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
        arrays = [*operands_of(graph), *found.attributes]
        return func, [a.reshape(p.shape) for a, p in zip(arrays, func.params[:-1], strict=True)]

    def templates(self) -> Templates:
        if not self.arch:
            return templates_of(OPENCL)
        precision = "float32" if self.kind == "int8" else self.kind
        return templates_of(CUDA, precision, find_architecture(self.arch))


def graph_of(op: Op, values: list[np.ndarray]) -> Graph:
    """An operator alone, of constants."""
    operands = [Tensor.constant(n, v) for n, v in zip("xwb", values, strict=False)]
    shape, dtype = infer(op, tuple(operands), "y")
    tensors = {t.name: t for t in (*operands, Tensor("y", shape, dtype))}
    node = Node("conv", op, tuple(t.name for t in operands), "y")
    return Graph("one", (), ("y",), (node,), tensors)


def operands_of(graph: Graph) -> list[np.ndarray]:
    """The constants that a graph's only operator reads."""
    [node] = graph.nodes
    return [np.asarray(tensor.data) for tensor in graph.operands(node)]


SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"strides": (1, 1), "kernel": (3, 2), "behind": (0, 1)},
    {"strides": (3, 2), "kernel": (4, 3), "before": (2, 0), "behind": (0, -1)},
    {"strides": (2, 3), "kernel": (2, 5), "before": (0, 3), "behind": (1, 2), "batch": 1},
    {"strides": (3, 3), "kernel": (2, 1), "before": (0, 0), "behind": (-2, 0), "outputs": 3},
    {"strides": (2, 1), "kernel": (5, 5), "before": (4, 4), "behind": (3, 4), "size": (5, 6)},
)
TENSOR_CORES = [(k, a) for k in ("float16", "tf32", "int8") for a in ("sm_80", "sm_90a")]
WGMMA: dict[str, int | str] = {
    "unit": "wgmma", "rows": 64, "columns": 16, "warp_rows": 64, "warp_columns": 16, "stages": 2,
}  # fmt: skip
CASES = (
    *(Case("float32", **shape) for shape in SHAPES),
    *(Case("int8", **shape) for shape in SHAPES[::3]),
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


@pytest.mark.more
@pytest.mark.slow
def test_results_are_those_of_the_definition() -> None:
    """In the first and the last order of threads."""
    made = []
    for number, case in enumerate(CASES):
        func, arrays = case.lowered()
        made.append((case, Emulated.of(func, f"case{number}_"), arrays))
    code = load_emulated(print_module([k.text for _, e, _ in made for k in e.kernels], CUDA))
    for case, emulated, arrays in made:
        wanted = case.wanted()
        assert wanted.min() < wanted.max()
        for order in (ORDERS[0], ORDERS[-1]):
            np.testing.assert_array_equal(emulated.run(code, arrays, order), wanted, str(case))


@pytest.mark.short(4)
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_weights_in_phases_say_the_same(kind: str, shape: dict[str, Any]) -> None:
    """In NumPy, and as the loops of an operator that has no template."""
    case = Case(kind, **shape)
    graph = in_phases(case.graph())
    [node] = graph.nodes
    assert isinstance(node.op, InPhases)
    operands = operands_of(graph)
    np.testing.assert_array_equal(node.op.evaluate(*operands), case.wanted())
    np.testing.assert_array_equal(run_op(node.op, operands), case.wanted())


def test_who_is_in_phases() -> None:
    """Several outputs, of known weights."""
    [alone] = in_phases(Case("float32", outputs=1).graph()).nodes
    assert alone.op.name == "ConvTranspose2d"
    graph = Case("int8").graph()
    unknown = replace(graph["w"], data=None)
    graph = replace(graph, inputs=("w",), tensors=graph.tensors | {"w": unknown})
    [unknown_weight] = in_phases(graph).nodes
    assert unknown_weight.op.name == "QConvTranspose2d"


def layers_of_dcgan(gpu: type[Gpu], quantized: bool, **options: Any) -> list[tuple[Op, str, Knobs]]:
    """Operator, template and choice of each transposed convolution, for 64 pictures."""
    target = gpu(Options(HwParams(), MemoryParams.load("vta"), emulate=True, **options))
    graph = run_passes(import_onnx(NETWORKS["dcgan"](64, quantized)), GRAPH_PASSES)
    for _, apply in target.graph_passes(Chooser(target.name, target.machine_key)):
        graph = apply(graph)
    found = []
    for node in graph.nodes:
        if "ConvTranspose2d" in node.op.name:
            template = template_of(graph, node, target.templates)
            space = template.space(template.workload(graph, node))
            found.append((node.op, template.name, next(space.points())))
    return found


@pytest.mark.slow
def test_layers_of_dcgan() -> None:
    """All are products; on tensor cores with channels last, narrow between them."""
    for found in (layers_of_dcgan(OpenCl, True), layers_of_dcgan(Cuda, False)):
        assert [(type(op), name) for op, name, _ in found] == [(InPhases, "gemm")] * 4
    narrow = layers_of_dcgan(Cuda, False, precision="float16", arch="sm_90a")
    stored = [op.result for op, _, _ in narrow if isinstance(op, Narrow)]
    assert stored == ["float16", "float16", "float16", "float32"]
    for found in (narrow, layers_of_dcgan(Cuda, True, arch="sm_90a")):
        assert [name for _, name, _ in found] == ["tensor cores"] * 4
        assert all(isinstance(without_narrow(op), ChannelsLast) for op, _, _ in found)


def test_weights_are_boxes_and_images_come_by_16_bytes() -> None:
    func, _ = Case("float16", "sm_90a", True, channels=32, outputs=16).lowered()
    product, placing = make_kernels(func, "", CUDA)
    assert product.text.count("bulk_copy_3d(&right[") == product.text.count("copy_async_16(&left[")
    assert placing.text.count("copy_16(&out[") == 1
    assert "values[" not in placing.text
