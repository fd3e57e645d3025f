"""Quantised models in the form that ONNX Runtime runs fastest."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: Operators whose results have no negative values if their operands have none.
_KEEPS_SIGN = ("MaxPool", "GlobalAveragePool", "Flatten", "Reshape", "DequantizeLinear")
_ZEROS = {"zero": 128, "zero_relu": 0}


def in_uint8(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of :class:`~.net.Net` with uint8 activations. After a ReLU their zero point is 0, so
    that quantisation itself clips negative values and the ReLU is left out. ONNX Runtime computes a
    convolution in integers only if no operator stands between it and its quantisation, and
    otherwise in float32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    renamed: dict[str, str] = {}
    positive: set[str] = set()
    nodes = []
    for node in made.graph.node:
        inputs = [renamed.get(name, name) for name in node.input]
        if node.op_type == "Relu":
            renamed[node.output[0]] = inputs[0]
            positive.add(inputs[0])
            continue
        if node.op_type in _KEEPS_SIGN and inputs[0] in positive:
            positive.add(node.output[0])
        on_grid = node.op_type.endswith("Linear") and inputs[2] == "zero"
        if on_grid and inputs[0] in positive:
            inputs[2] = "zero_relu"
            positive.add(node.output[0])
        nodes.append(node)
        node.input[:] = inputs
    zeros = [numpy_helper.from_array(np.array(z, np.uint8), name) for name, z in _ZEROS.items()]
    tables = {node.input[0] for node in nodes if node.op_type == "Gather"}
    constants = [
        _raised(constant) if constant.name in tables else constant
        for constant in made.graph.initializer if constant.name != "zero"
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, made.graph.name, made.graph.input, made.graph.output, [*constants, *zeros]
    )
    return helper.make_model(graph, opset_imports=made.opset_import, ir_version=made.ir_version)


def _raised(table: onnx.TensorProto) -> onnx.TensorProto:
    """A table of int8 as the uint8 that mean the same; another one as it is."""
    values = numpy_helper.to_array(table)
    if values.dtype != np.int8:
        return table
    raised = (values.astype(np.int16) + _ZEROS["zero"]).astype(np.uint8)
    return numpy_helper.from_array(raised, table.name)
