"""The libraries that the host's machine code is compared with: each runs an ONNX model, a quantised
one in the form that ONNX Runtime runs fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..isa.errors import VdlaError

#: Runs a model on its inputs, which are given by name; returns its outputs.
Runner = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def onnx_runtime(model: onnx.ModelProto, threads: int) -> Runner:
    """ONNX Runtime with all of its optimisations, which are its defaults."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Otherwise its threads would keep the cores busy between its turns, waiting for work.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session: Any = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda inputs: session.run(None, dict(inputs))


def openvino(model: onnx.ModelProto, threads: int) -> Runner:
    """OpenVINO, set up for the shortest time of one call, in the precision of the model."""
    import openvino  # pyright: ignore[reportMissingImports]

    core: Any = openvino.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    request = compiled.create_infer_request()

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        results = request.infer(dict(inputs))
        return [results[port] for port in compiled.outputs]

    return run


#: For each library the package that it needs, and how it loads a model. All ratios are to the
#: first, which must be installed; the others are compared with where they are installed.
PEERS: dict[str, Callable[[onnx.ModelProto, int], Runner]] = {
    "onnxruntime": onnx_runtime, "openvino": openvino,
}  # fmt: skip
REFERENCE = "onnxruntime"


def installed_peers() -> list[str]:
    """Names of those :data:`PEERS` that are installed; raises VdlaError without the first."""
    names = [name for name in PEERS if find_spec(name) is not None]
    if REFERENCE not in names:
        raise VdlaError(
            f"bench cpu: expected the package {REFERENCE} to compare with, which is not installed; "
            f"install it with pip install {REFERENCE}"
        )
    return names


def in_dynamic_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """A float model as ONNX Runtime's quantiser writes it, with weights of eight bits and
    activations that are quantised by their own ranges. Its convolutions take uint8 alone."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    convolves = any(node.op_type == "Conv" for node in model.graph.node)
    kind = QuantType.QUInt8 if convolves else QuantType.QInt8
    with TemporaryDirectory() as folder:
        place = Path(folder) / "int8.onnx"
        quantize_dynamic(model, place, weight_type=kind)
        return onnx.load(place)


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
