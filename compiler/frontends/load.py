"""The graph of a model, in whichever format it is stored."""

from __future__ import annotations

from ..graph.ir import Graph
from .doors.opening import open_model
from .onnx.importer import import_onnx
from .pytorch.importer import import_torch, is_torch
from .tflite.importer import import_tflite, is_tflite


def load_graph(model: object, batch: int) -> Graph:
    """The graph of a model, which may need a door (``doors/``). TensorFlow Lite and PyTorch are
    recognised by suffix or identifier; any other model is ONNX. ``batch`` is the number of images
    at once, where the model leaves that open.

    Raises
    ------
    VdlaError
        For a model that cannot be read.
    """
    model = open_model(model)
    if isinstance(model, Graph):
        return model
    if is_tflite(model):
        return import_tflite(model, batch=batch)  # type: ignore[arg-type]
    if is_torch(model):
        return import_torch(model, batch=batch)
    return import_onnx(model, batch=batch)  # type: ignore[arg-type]
