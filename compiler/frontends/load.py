"""The graph of a model, in whichever format it is stored."""

from __future__ import annotations

from collections.abc import Callable

from ..graph.ir import Graph
from .doors.opening import open_door
from .onnx.importer import open_onnx
from .pytorch.importer import is_torch, open_torch
from .sizes import ONE, Sizes
from .tflite.importer import is_tflite, open_tflite


def open_model(model: object) -> Callable[[Sizes], Graph]:
    """What reads a model's graph for given sizes, which may be called several times. The model may
    need a door (``doors/``). TensorFlow Lite and PyTorch are recognised by suffix or identifier;
    any other model is ONNX.

    Raises
    ------
    VdlaError
        For a model that cannot be read.
    """
    model = open_door(model)
    if isinstance(model, Graph):
        return lambda sizes: model
    if is_tflite(model):
        return open_tflite(model)  # type: ignore[arg-type]
    if is_torch(model):
        return open_torch(model)
    return open_onnx(model)  # type: ignore[arg-type]


def load_graph(model: object, sizes: Sizes = ONE) -> Graph:
    """The graph of a model for given sizes. Errors as :func:`open_model`."""
    return open_model(model)(sizes)
