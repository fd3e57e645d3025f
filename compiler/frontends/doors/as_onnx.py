"""A model in the form that the quantiser rewrites: ONNX, whatever it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....isa.errors import VdlaError
from ..pytorch.importer import is_torch
from ..tflite.importer import is_tflite
from .keras import is_keras
from .opening import open_door
from .torch_module import is_torch_module


@dataclass(frozen=True, eq=False)
class OnnxForm:
    """A model as a path, bytes or a ModelProto; its inputs that are outputs of the run before; and
    their values before the first run, by name."""

    model: Any
    states: Mapping[str, str] = field(default_factory=dict)
    initial: Mapping[str, np.ndarray] = field(default_factory=dict)


def as_onnx(model: object) -> OnnxForm:
    """Any model that says what its inputs are.

    Raises
    ------
    VdlaError
        As :func:`.opening.open_door`, and for a program of PyTorch that torch.onnx cannot write.
    """
    if is_torch_module(model) and not is_keras(model):
        raise VdlaError(
            "model: expected a program of torch.export, got a torch.nn.Module; give"
            " torch.export.export(module, arguments)"
        )
    opened = open_door(model)
    if is_tflite(opened):
        raise VdlaError(
            "model: expected one that is ONNX or becomes it, got one of TensorFlow Lite, whose own"
            " converter quantises"
        )
    if not is_torch(opened):
        return OnnxForm(opened)
    from .torch_onnx import write_onnx  # it imports torch

    return OnnxForm(*write_onnx(opened))
