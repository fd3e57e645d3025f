"""Convolutions of each channel by itself: the same bits as a thread for each element, and as the
operator's definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from vdla.compiler.choose.space import Knobs, Space
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.ir import Graph, Node, Tensor, infer
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.channels_last import TO_LAST, ChannelsLast
from vdla.compiler.graph.ops.convolution import Conv2d, QConv2d
from vdla.compiler.graph.ops.narrow import Narrow
from vdla.compiler.targets.gpu.dialects import CUDA, OPENCL
from vdla.compiler.targets.gpu.kernels import (
    find_launches,
    lower_kernels,
    make_kernels,
    to_launches,
)
from vdla.compiler.targets.gpu.lowering import template_of, templates_of
from vdla.compiler.targets.gpu.templates.base import GpuTemplate
from vdla.compiler.targets.gpu.templates.depthwise import MANY_THREADS, Depthwise
from vdla.compiler.targets.gpu.templates.general import General
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.targets.gpu.traffic import count_traffic
from vdla.compiler.tir.ir import Barrier, PrimFunc, walk_stmt
from vdla.runtime.gpu.emulated import ORDERS, load_emulated

from .emulating import Emulated


@dataclass(frozen=True)
class Case:
    """A convolution of ``channels`` channels, and knobs for it."""

    dtype: str
    is_last: bool
    knobs: Mapping[str, int] = field(default_factory=dict)
    channels: int = 8
    size: tuple[int, int] = (6, 8)
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilations: tuple[int, int] = (1, 1)
    batch: int = 1
    bias: bool = True

    def graph(self) -> Graph:
        """The convolution alone, of random operands."""
        rng = np.random.default_rng(5)
        shapes = [(self.batch, self.channels, *self.size), (self.channels, 1, *self.kernel)]
        op: Op
        values: list[np.ndarray]
        if self.dtype == "int8":
            multiplier = rng.integers(1 << 30, 1 << 31, self.channels, dtype=np.int64)
            shift = np.full(self.channels, 38, np.int32)
            requant = Requant(multiplier.astype(np.int32), shift, -3)
            op = QConv2d(self.strides, self.pads, self.dilations, self.channels, -7, requant)
            values = [rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
            values.append(rng.integers(-900, 900, self.channels).astype(np.int32))
        else:
            lo = 0.0 if self.bias else -np.inf
            op = Conv2d(self.strides, self.pads, self.dilations, self.channels, lo)
            values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
            values += [rng.normal(size=self.channels).astype(np.float32)] if self.bias else []
        if self.is_last:
            op = ChannelsLast(op)
            values = [
                np.ascontiguousarray(v.transpose(TO_LAST)) if v.ndim == 4 else v for v in values
            ]
        if self.dtype == "float16":
            op = Narrow(op, "float16")
            values[0] = values[0].astype(np.float16)
        operands = [Tensor.constant(n, v) for n, v in zip("xwb", values, strict=False)]
        shape, dtype = infer(op, tuple(operands), "y")
        tensors = {t.name: t for t in (*operands, Tensor("y", shape, dtype))}
        node = Node("conv", op, tuple(t.name for t in operands), "y")
        return Graph("one", (), ("y",), (node,), tensors)

    def lowered(
        self, template: GpuTemplate, knobs: Knobs | None = None
    ) -> tuple[PrimFunc, list[np.ndarray]]:
        """Its kernels, and their operands."""
        graph = self.graph()
        [node] = graph.nodes
        space = template.space(template.workload(graph, node))
        chosen: Knobs = next(space.points()) if knobs is None else knobs
        assert not space.refuse(chosen)
        found = template.schedule(graph, node, chosen)
        func = to_launches(lower_kernels(found.schedule, found.args, node.name))
        data = [t.data for t in graph.operands(node)]
        arrays = [*(d for d in data if d is not None), *found.attributes]
        return func, [a.reshape(p.shape) for a, p in zip(arrays, func.params[:-1], strict=True)]


CASES = (
    Case("int8", False, {"columns": 4, "threads": 32}),
    Case("int8", True, {"columns": 2, "vector": 4, "threads": 32}, channels=12),
    Case("int8", True, {"columns": 7, "vector": 2, "threads": 32}, size=(5, 7), channels=2),
    Case("int8", True, {"columns": 1, "vector": 4, "threads": 32}, size=(3, 2), channels=4),
    Case("float32", False, {"columns": 2, "threads": 32}, strides=(2, 2), pads=(0, 0, 1, 1)),
    Case("float32", False, {"columns": 8, "threads": 32}, bias=False, batch=2, channels=3),
    Case("float32", True, {"columns": 3, "vector": 4, "threads": 32}, size=(9, 9), kernel=(3, 5),
         pads=(1, 0, 2, 1), dilations=(2, 1), batch=2),
    Case("float32", True, {"columns": 2, "vector": 1, "threads": 32}, kernel=(1, 1),
         pads=(0, 0, 0, 0), strides=(2, 2), channels=5),
    Case("float32", True, {"columns": 4, "vector": 4, "threads": 32}, kernel=(5, 1),
         pads=(2, 0, 2, 0), strides=(1, 2)),
    Case("float16", True, {"columns": 4, "vector": 4, "threads": 32}, pads=(0, 1, 0, 1)),
)  # fmt: skip


@pytest.mark.slow
def test_results_are_those_of_a_thread_for_each_element() -> None:
    """In every order of threads; integers are also those of the definition."""
    made = []
    for number, case in enumerate(CASES):
        funcs = case.lowered(Depthwise(), case.knobs), case.lowered(General())
        made.append([
            (Emulated.of(func, f"{name}_{number}_"), arrays)
            for name, (func, arrays) in zip(("depthwise", "general"), funcs, strict=True)
        ])  # fmt: skip
    kernels = [kernel.text for row in made for emulated, _ in row for kernel in emulated.kernels]
    code = load_emulated(print_module(kernels, CUDA))
    for case, ((depthwise, arrays), (general, others)) in zip(CASES, made, strict=True):
        wanted = general.run(code, others, ORDERS[0])
        assert wanted.min() < wanted.max()
        for order in ORDERS:
            np.testing.assert_array_equal(depthwise.run(code, arrays, order), wanted)
        graph = case.graph()
        [node] = graph.nodes
        operands = [np.asarray(t.data) for t in graph.operands(node)]
        tolerance = {"int8": 0.0, "float32": 1e-5, "float16": 2e-3}[case.dtype]
        defined = node.op.evaluate(*operands)
        np.testing.assert_allclose(wanted, defined, rtol=tolerance, atol=tolerance)


def test_channels_come_and_go_by_16_bytes() -> None:
    """A warp's accesses fill whole sectors, no thread waits for another one, and each product is
    rounded with its sum."""
    case = Case("float32", True, channels=32)
    func, _ = case.lowered(Depthwise(), {"columns": 4, "vector": 4, "threads": 32})
    assert not any(isinstance(s, Barrier) for s in walk_stmt(func.body))
    [kernel] = make_kernels(func, "", CUDA)
    assert kernel.text.count("copy_16(&x_local[") == kernel.text.count("copy_16(&last[") == 1
    assert "__align__(16) float x_local[" in kernel.text and "= fma_f32(" in kernel.text
    [kernel] = make_kernels(func, "", OPENCL)
    assert "*(__private uint4*)(&x_local[" in kernel.text
    [launch] = find_launches(func)
    assert count_traffic(launch).sectors["x"] == count_traffic(launch).sectors["last"] == 1


def test_knobs_are_legal_by_construction() -> None:
    def space_of(case: Case) -> Space:
        graph = case.graph()
        return Depthwise().space(Depthwise().workload(graph, graph.nodes[0]))

    rows = space_of(Case("float32", False, size=(6, 14)))
    assert set(rows.knobs["columns"]) == {1, 2, 7} and "vector" not in rows.knobs
    assert rows.refuse({"columns": 4, "threads": 32}).startswith("knob columns: expected one of")
    assert space_of(Case("float32", True, channels=6)).knobs["vector"] == [2, 1]
    wide = space_of(Case("float32", True, kernel=(1, 31), pads=(0, 15, 0, 15)))
    refused = wide.refuse({"columns": 4, "vector": 4, "threads": 32})
    assert refused == "expected at most 128 elements of a row, got 136"
    assert next(wide.points()) == {"columns": 1, "vector": 4, "threads": 128}
    large = space_of(Case("float32", True, channels=64, size=(64, MANY_THREADS // 256)))
    assert next(large.points()) == {"columns": 4, "vector": 4, "threads": 256}


@pytest.mark.parametrize(
    ("case", "template"),
    [
        (Case("int8", False), "depthwise"),
        (Case("float16", True), "depthwise"),
        (Case("int8", True, kernel=(9, 9), pads=(4, 4, 4, 4)), "elements"),  # too many taps
        (Case("int8", False, kernel=(1, 3), dilations=(1, 16), pads=(0, 16, 0, 16)), "elements"),
    ],
)
def test_which_convolutions(case: Case, template: str) -> None:
    graph = case.graph()
    assert template_of(graph, graph.nodes[0], templates_of(CUDA)).name == template
