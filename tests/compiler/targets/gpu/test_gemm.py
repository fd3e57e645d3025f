"""Products in tiles without tensor cores: every layout, sizes that no tile divides, and what comes
at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from vdla.compiler.dumps import Dumps
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.convolution import Conv2d, QConv2d
from vdla.compiler.graph.ops.linear import Dense, MatMul, QDense
from vdla.compiler.targets.gpu.dialects import CUDA, OPENCL
from vdla.compiler.targets.gpu.func_code import FuncKernels
from vdla.compiler.targets.gpu.kernels import (
    find_launches,
    lower_kernels,
    make_kernels,
    to_launches,
)
from vdla.compiler.targets.gpu.templates.base import GpuTemplate
from vdla.compiler.targets.gpu.templates.gemm import Gemm
from vdla.compiler.targets.gpu.templates.general import General
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.targets.gpu.traffic import count_traffic
from vdla.compiler.tir.ir import PrimFunc
from vdla.runtime.gpu.emulated import ORDERS, load_emulated

from .emulating import Emulated

REQUANT = Requant(np.array([1 << 30], np.int32), np.array([7], np.int32), 3, -128, 127)


def tiles(
    rows: int, columns: int, by_rows: int, by_columns: int, depth: int, stages: int, parts: int = 1
) -> dict[str, int]:
    return {"rows": rows, "columns": columns, "thread_rows": by_rows, "thread_columns": by_columns,
            "depth": depth, "stages": stages, "split_k": parts}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A product of operands of these shapes, and knobs for it."""

    op: Op
    shapes: tuple[tuple[int, ...], ...]
    knobs: Mapping[str, int] = field(default_factory=dict)

    def graph(self) -> Graph:
        rng = np.random.default_rng(0)
        values = []
        for number, shape in enumerate(self.shapes):
            if isinstance(self.op, QDense | QConv2d):
                kind = np.int32 if number == 2 else np.int8
                values.append(rng.integers(-99, 99, shape).astype(kind))
            else:
                values.append(rng.normal(size=shape).astype(np.float32))
        operands = [Tensor.constant(n, v) for n, v in zip("xwb", values, strict=False)]
        shape, dtype = infer(self.op, tuple(operands), "y")
        tensors = {t.name: t for t in (*operands, Tensor("y", shape, dtype))}
        node = Node("product", self.op, tuple(t.name for t in operands), "y")
        return Graph("one", (), ("y",), (node,), tensors)

    def lowered(
        self, template: GpuTemplate, knobs: Mapping[str, int]
    ) -> tuple[PrimFunc, list[np.ndarray]]:
        """Its kernels, and their operands."""
        graph = self.graph()
        [node] = graph.nodes
        space = template.space(template.workload(graph, node))
        chosen = dict(next(space.points())) | dict(knobs)
        assert not space.misfit(chosen)
        found = template.schedule(graph, node, chosen)
        func = to_launches(lower_kernels(found.schedule, found.args, node.name))
        data = [t.data for t in graph.operands(node)]
        arrays = [*(d for d in data if d is not None), *found.attributes]
        return func, [a.reshape(p.shape) for a, p in zip(arrays, func.params[:-1], strict=True)]


def conv(channels: int, size: int, outputs: int, kernel: int, stride: int, groups: int = 1,
         knobs: Mapping[str, int] | None = None, is_int8: bool = False) -> Case:  # fmt: skip
    pads = (kernel // 2,) * 4
    places = (stride, stride), pads, (1, 1), groups
    op = QConv2d(*places, 3, REQUANT) if is_int8 else Conv2d(*places, 0.0)
    weight = (outputs, channels // groups, kernel, kernel)
    return Case(op, ((2, channels, size, size), weight, (outputs,)), knobs or {})


CASES = (
    Case(Dense(transposed=True), ((37, 45), (29, 45), (29,)), tiles(32, 32, 8, 8, 16, 2)),
    Case(Dense(transposed=True), ((20, 7), (52, 7), (52,)), tiles(16, 64, 2, 4, 8, 3)),
    Case(Dense(transposed=True), ((1, 48), (100, 48))),
    Case(MatMul(), ((24, 48), (48, 36)), tiles(32, 32, 4, 8, 16, 4)),
    Case(MatMul(), ((33, 40), (40, 27)), tiles(16, 16, 1, 8, 8, 2)),
    Case(MatMul(), ((9, 20), (20, 64)), tiles(8, 64, 1, 1, 32, 2)),
    # Less than a tile: of a thread, and of a block with as many threads as it needs.
    Case(Dense(transposed=True), ((1, 60), (70, 60), (70,)), tiles(16, 16, 2, 1, 16, 4)),
    Case(MatMul(), ((24, 48), (48, 36)), tiles(16, 64, 1, 8, 8, 4)),
    Case(QDense(3, REQUANT), ((37, 45), (29, 45), (29,)), tiles(64, 16, 4, 2, 16, 2)),
    Case(QDense(0, REQUANT), ((20, 48), (40, 48), (40,)), tiles(16, 32, 8, 4, 32, 2)),
    conv(5, 9, 12, 3, 1, knobs=tiles(8, 64, 2, 8, 8, 3)),
    conv(8, 8, 16, 1, 1, knobs=tiles(16, 64, 4, 4, 8, 2)),
    conv(8, 10, 8, 3, 2, 2, knobs=tiles(4, 32, 4, 2, 16, 2)),
    conv(5, 9, 12, 3, 1, knobs=tiles(16, 32, 8, 2, 16, 2), is_int8=True),
    conv(4, 8, 20, 1, 2),
)


@pytest.mark.slow
def test_results_are_those_of_a_thread_for_each_element() -> None:
    """The same bits, in every order of threads."""
    made = []
    for number, case in enumerate(CASES):
        funcs = case.lowered(Gemm(), case.knobs), case.lowered(General(), {})
        made.append([
            (Emulated.of(func, f"{name}_{number}_"), arrays)
            for name, (func, arrays) in zip(("gemm", "general"), funcs, strict=True)
        ])  # fmt: skip
    kernels = [kernel.text for row in made for emulated, _ in row for kernel in emulated.kernels]
    code = load_emulated(print_module(kernels, CUDA))
    for (gemm, arrays), (general, others) in made:
        wanted = general.run(code, others, ORDERS[0])
        assert wanted.min() < wanted.max()
        for order in ORDERS:
            result = gemm.run(code, arrays, order)
            np.testing.assert_array_equal(result.reshape(wanted.shape), wanted)


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[7], CASES[8]])
def test_both_languages_compute_the_same(case: Case) -> None:
    pytest.importorskip("pyopencl")
    func, arrays = case.lowered(Gemm(), case.knobs)
    results = [
        FuncKernels.of(func, dialect, device, Dumps()).program.run(*arrays)
        for dialect, device in ((CUDA, "emulated"), (OPENCL, "opencl"))
    ]
    np.testing.assert_array_equal(*[r for [r] in results])


def test_factors_come_meanwhile_and_are_read_by_16_bytes() -> None:
    """Whatever the layout: no thread waits for a bank, and what a warp reads fills its sectors."""
    knobs = tiles(64, 64, 4, 4, 16, 2)
    for case in (
        Case(Dense(transposed=True), ((64, 64), (64, 64))),
        Case(MatMul(), ((64, 64), (64, 64))),
        conv(16, 8, 64, 3, 1),
    ):
        func, _ = case.lowered(Gemm(), knobs)
        [launch] = find_launches(func)
        [kernel] = make_kernels(func, "", CUDA)
        traffic = count_traffic(launch)
        assert set(traffic.conflicts.values()) == {1}, traffic
        assert traffic.sectors["x"] == traffic.sectors["w"] == 1, traffic
        assert "copy_16(&left_local[" in kernel.text and "copy_16(&right_local[" in kernel.text
        assert " left[" not in kernel.text.replace("float left[", "")  # nothing else stores to it
        width = 16 if isinstance(case.op, MatMul) else 4
        assert f"copy_async_{width}(&right[" in kernel.text
        [kernel] = make_kernels(func, "", OPENCL)
        assert "async" not in kernel.text and "copies" not in kernel.text
        assert "*(__private uint4*)(&left_local[" in kernel.text


def test_a_block_is_as_large_as_the_product_allows() -> None:
    def chosen(*shapes: tuple[int, ...]) -> Mapping[str, object]:
        graph = Case(Dense(transposed=True), shapes).graph()
        template = Gemm()
        return next(template.space(template.workload(graph, graph.nodes[0])).points())

    assert chosen((2048, 64), (1024, 64)) == tiles(128, 128, 8, 8, 16, 2)
    assert chosen((512, 64), (1024, 64)) == tiles(64, 64, 4, 4, 16, 4)
    assert chosen((64, 64), (512, 64)) == tiles(16, 16, 1, 2, 32, 4)
    assert chosen((1, 650), (2600, 650)) == tiles(1, 16, 1, 1, 32, 4, 7)
