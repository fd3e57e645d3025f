"""The libraries that the host's machine code is compared with: each runs an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx

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
