"""Which door a model takes."""

from __future__ import annotations

from pathlib import Path

import onnx

from ....isa.errors import VdlaError
from ...graph.ir import Graph
from ..pytorch.importer import is_torch
from .jax_function import convert_function
from .keras import export_keras, is_keras
from .package import Examples, comes_from
from .saved_model import convert_saved_model, is_saved_model
from .torch_module import export_module, is_torch_module

#: What to do with objects of other packages, by the package of their classes.
ADVICE = {
    "sklearn": "convert it with skl2onnx.to_onnx and give the result",
    "tf_keras": "this is Keras 2; write it with model.export(folder) and give the folder",
    "tensorflow": "write it with tf.saved_model.save and give the folder",
    "mxnet": "export it with mxnet.onnx.export_model and give the file",
    "onnxruntime": "give the model's file",
    "xgboost": "convert it with onnxmltools and give the result",
    "lightgbm": "convert it with onnxmltools and give the result",
    "torch": "give the torch.nn.Module, with example_inputs, or a program of torch.export",
    "onnx": "put it into an onnx.ModelProto",
    "vdla": "it is compiled already",
}


def open_door(model: object, examples: Examples | None = None) -> object:
    """A model in a form that :func:`~..load.load_graph` reads: a file's path, bytes, a ModelProto,
    an ExportedProgram or a Graph. One that has such a form is returned as it is.

    Parameters
    ----------
    model
        Besides these forms: a ``torch.nn.Module``, a Keras 3 model or ``.keras`` file, a folder of
        a TensorFlow SavedModel, a function of JAX.
    examples
        The arguments of a module or function.

    Raises
    ------
    VdlaError
        For any other object, for examples with a model that has its shapes, where the package of a
        door is missing, and where it refuses the model.
    """
    if is_keras(model):
        return export_keras(model, examples)
    if is_torch_module(model):
        return export_module(model, examples)
    if callable(model) and not isinstance(model, type) and _advice(model) is None:
        return convert_function(model, examples)
    if not (isinstance(model, str | Path | bytes | onnx.ModelProto | Graph) or is_torch(model)):
        raise VdlaError(f"expected a model ({FORMS}), got {_kind(model)}{_hint(model)}")
    if examples is not None:
        raise VdlaError(
            "example_inputs: expected a torch.nn.Module, a Keras model or a function of JAX with"
            f" them, got {_kind(model)}, which says what its inputs are"
        )
    if is_saved_model(model):
        return convert_saved_model(model)  # type: ignore[arg-type]
    return model


FORMS = (
    "a path, bytes, an onnx.ModelProto, a program of torch.export, a torch.nn.Module, a Keras model"
    " or a function of JAX"
)


def _kind(model: object) -> str:
    """What an object is, in a message."""
    if isinstance(model, str | Path):
        return f"the file {model}"
    return f"the class {model.__name__}" if isinstance(model, type) else type(model).__qualname__


def _advice(model: object) -> str | None:
    found = (text for package, text in ADVICE.items() if comes_from(model, package))
    return next(found, None)


def _hint(model: object) -> str:
    if isinstance(model, type):
        return "; give an instance of it"
    if isinstance(model, dict):
        return "; a state dict has weights and no operators: give the torch.nn.Module that loads it"
    advice = _advice(model)
    return "" if advice is None else f"; {advice}"
