"""The door of Keras 3: its own export to ONNX, with whichever of its backends is there.

With the backend of PyTorch no other package is needed, with that of TensorFlow ``tf2onnx``, with
that of JAX ``jax2onnx``. Only TensorFlow's keeps a recurrent layer whole: the others unroll it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from ....isa.errors import VdlaError
from .package import Examples, check_examples, comes_from, describe, need, quiet

#: In the order in which one is taken where nothing says which.
BACKENDS = ("tensorflow", "torch", "jax")


def is_keras(model: object) -> bool:
    """Whether a model is one of Keras 3, or a path to one that Keras saved."""
    if isinstance(model, str | Path):
        return Path(model).suffix == ".keras"
    return comes_from(model, "keras")


def export_keras(model: Any, examples: Examples | None) -> onnx.ModelProto:
    """The ONNX model of a Keras model or file.

    Parameters
    ----------
    model
        A ``keras.Model``, or a path to a ``.keras`` file.
    examples
        Arguments of the model, for one that does not know its inputs or leaves sizes open.

    Raises
    ------
    VdlaError
        Where Keras or a package of its backend is missing, and where Keras cannot read or export
        the model.
    """
    if isinstance(model, str | Path) and not os.path.isfile(model):
        raise VdlaError(f"{model}: cannot read: no such file")
    _choose_backend()
    keras = need("keras")
    if isinstance(model, str | Path):
        model = _load(keras, Path(model))
    if not isinstance(model, keras.Model):
        raise VdlaError(
            f"model: expected a keras.Model, got {type(model).__name__}; put it into a Sequential"
        )
    with TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "model.onnx"
        try:
            signature = _signature(keras, model, examples)
            model.export(str(path), format="onnx", verbose=False, input_signature=signature)
        except VdlaError:
            raise
        except Exception as error:  # of Keras, of its backend and of its converter
            raise VdlaError(
                f"model: Keras cannot export it to ONNX with the backend {keras.backend.backend()}:"
                f" {describe(error)}"
            ) from None
        return onnx.load(path)


def _choose_backend() -> None:
    """Keras assumes TensorFlow, also where another backend is installed alone."""
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        found = [name for name in BACKENDS if find_spec(name) is not None]
        if found and found[0] != BACKENDS[0]:
            os.environ["KERAS_BACKEND"] = found[0]


def _load(keras: Any, path: Path) -> Any:
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:  # a file can hold anything
        raise VdlaError(f"{path}: Keras cannot read it: {describe(error)}") from None


def _signature(keras: Any, model: Any, examples: Examples | None) -> Any:
    """What Keras is told about inputs; None where it knows them from a call of the model."""
    if examples is not None:
        check_examples(examples, "a Keras model")
        if isinstance(examples, Mapping):
            raise VdlaError("example_inputs: expected a tuple with a Keras model, got a mapping")
        tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, list(examples))
        if not model.built:
            model(*tensors)  # makes the parameters
        return keras.tree.map_structure(lambda x: _spec(keras, x), tensors)
    if not model.built:
        raise VdlaError(
            "model: expected example_inputs with a Keras model that was neither called nor built"
        )
    if isinstance(model, keras.Sequential):
        return model.inputs
    return [model.input] if getattr(model, "inputs", None) else None


def _spec(keras: Any, tensor: Any) -> Any:
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    return keras.InputSpec(shape=tuple(tensor.shape), dtype=dtype)
