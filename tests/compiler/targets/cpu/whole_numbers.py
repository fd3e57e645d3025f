"""Models of float32 whose values are small whole numbers: their sums are exact in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.compiler.targets.cpu.passes.block_channels import block_channels
from vdla.compiler.targets.cpu.processor import host_processor

Shape = tuple[int, ...]


def integers(shape: Shape, seed: int = 0) -> np.ndarray:
    """Whole numbers from -4 to 4."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


class Model:
    """An ONNX model of nodes one after another, with constants of whole numbers."""

    def __init__(self, **inputs: Shape):
        self.inputs, self.nodes, self.constants = inputs, [], []

    def weight(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(integers(shape, len(self.constants)), name))
        return name

    def number(self, value: float) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.float32([value]), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def finish(self, *outputs: str) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in self.inputs.items()
        ]
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "model", infos, ends, self.constants)
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def compare(model: onnx.ModelProto) -> Graph:
    """Machine code and ONNX Runtime give the same; returns the graph on blocks of channels."""
    graph = run_passes(import_onnx(model, Sizes(1)))
    blocked = block_channels(graph, host_processor().vector_lanes)
    inputs = {name: integers(graph[name].shape, 99) for name in graph.inputs}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results = build_cpu(graph).run(*inputs.values())
    for ours, theirs in zip(results, session.run(None, inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return blocked


def kinds(graph: Graph) -> list[str]:
    return [type(node.op).__name__ for node in graph.nodes]
