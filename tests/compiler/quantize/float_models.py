"""Float ONNX models from TensorFlow Lite files, for what is quantised from float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.ir import Graph, Node
from vdla.compiler.graph.ops.convolution import Conv2d
from vdla.compiler.graph.ops.elementwise import Add
from vdla.compiler.graph.ops.linear import Dense
from vdla.compiler.graph.ops.movement import Reshape, Transpose
from vdla.compiler.graph.ops.pooling import AvgPool


def float_onnx(path: Path) -> onnx.ModelProto:
    """A float TensorFlow Lite file of a small network as ONNX; its softmax is left out."""
    graph = import_tflite(path)
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        if node.name.startswith("softmax"):
            break
        nodes += _nodes(graph, node)
    constants = [
        numpy_helper.from_array(t.data, t.name)
        for t in graph.tensors.values()
        if t.data is not None
    ]
    constants += [
        numpy_helper.from_array(np.array([0, *node.op.shape[1:]], np.int64), f"{node.output}.shape")
        for node in graph.nodes
        if isinstance(node.op, Reshape)
    ]
    (name,) = graph.inputs
    image = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *graph[name].shape[1:]])
    result = nodes[-1].output[0]
    output = helper.make_tensor_value_info(
        result, TensorProto.FLOAT, ["N", *graph[result].shape[1:]]
    )
    made = helper.make_graph(nodes, "float", [image], [output], constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _nodes(graph: Graph, node: Node) -> list[onnx.NodeProto]:
    """One operator, and its ReLU."""
    op, inputs = node.op, [*node.inputs]
    relu = isinstance(op, Conv2d | Dense | Add) and op.lo == 0
    result = f"{node.output}.sum" if relu else node.output
    match op:
        case Conv2d():
            made = helper.make_node(
                "Conv", inputs, [result], strides=op.strides, pads=op.pads, group=op.groups
            )
        case Dense():
            made = helper.make_node("Gemm", inputs, [result], transB=int(op.transposed))
        case Add():
            made = helper.make_node("Add", inputs, [result])
        case AvgPool():
            made = helper.make_node(
                "AveragePool", inputs, [result], kernel_shape=op.kernel, strides=op.strides
            )
        case Reshape():
            made = helper.make_node("Reshape", [*inputs, f"{node.output}.shape"], [result])
        case Transpose():
            made = helper.make_node("Transpose", inputs, [result], perm=op.order)
        case _:
            raise AssertionError(f"this test's converter does not know {op!r}")
    made.name = node.name
    return [made, helper.make_node("Relu", [result], [node.output])] if relu else [made]
