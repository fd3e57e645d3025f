"""Builders of small QDQ models."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

MODELS = Path(__file__).parents[2] / "examples" / "models"


@dataclass
class Builder:
    """Collects nodes and constants; every method returns the name of what it made."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def input(self, name: str, shape: list[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], f"{output}_node", **attributes))
        return output

    def scaled(
        self, kind: str, x: str, y: str, scale: object, zero: np.ndarray, **kw: object
    ) -> str:
        scale = self.constant(f"{y}_scale", np.asarray(scale, np.float32))
        return self.node(kind, [x, scale, self.constant(f"{y}_zero", zero)], y, **kw)

    def quantize(self, x: str, scale: float, zero: int, dtype: str = "int8") -> str:
        return self.scaled("QuantizeLinear", x, f"{x}_q", scale, np.array(zero, dtype))

    def qdq(self, x: str, scale: float, zero: int, dtype: str = "int8") -> str:
        q = self.quantize(x, scale, zero, dtype)
        return self.scaled("DequantizeLinear", q, f"{x}_dq", scale, np.array(zero, dtype))

    def stored(self, name: str, value: np.ndarray, scale: object, axis: int = 0) -> str:
        """A quantised constant (zero point 0) and its DequantizeLinear."""
        zero = np.zeros(np.shape(scale), value.dtype)
        constant = self.constant(name, value)
        return self.scaled("DequantizeLinear", constant, f"{name}_dq", scale, zero, axis=axis)

    def model(self, outputs: list[str], opset: int = 17, name: str = "test") -> onnx.ModelProto:
        made = [onnx.ValueInfoProto(name=output) for output in outputs]
        graph = helper.make_graph(self.nodes, name, self.inputs, made, self.constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
        )


@pytest.fixture
def builder() -> Builder:
    """An empty model."""
    return Builder()


@pytest.fixture
def models() -> Path:
    """The folder of the committed example models."""
    return MODELS
