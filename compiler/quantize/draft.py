"""An ONNX model while it is rewritten: nodes in order, constants as arrays, shapes by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx.version_converter
from onnx import helper, numpy_helper

from ...isa.errors import VdlaError
from ..frontends.onnx.importer import import_onnx
from ..frontends.onnx.model import load_model, opset_of

#: The first operator set whose DequantizeLinear has scales along an axis.
OPSET = 13
#: Operators that some node of every quantised model has.
QUANTISED = {"DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "QuantizeLinear"}


@dataclass
class Draft:
    """``shapes`` and ``dtypes`` are those of one batch (the model's own batch, or 1). ``fused``
    names the nodes that became part of other nodes, for the report. ``alike`` are groups of tensors
    that share a scale, where they are quantised."""

    model: onnx.ModelProto
    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    fused: list[str] = field(default_factory=list)
    alike: list[list[str]] = field(default_factory=list)

    @staticmethod
    def load(source: str | Path | bytes | onnx.ModelProto) -> Draft:
        """Read a float model; what the importer refuses is refused with its message.

        Raises
        ------
        VdlaError
            When the model cannot be read, run or brought to an operator set that has what
            quantised models need, or when it is quantised already.
        """
        model, where = load_model(source)
        found = next((n.op_type for n in model.graph.node if n.op_type in QUANTISED), None)
        if found:
            raise VdlaError(f"{where}: expected a float model, got one with {found} nodes")
        graph = import_onnx(model)
        model = _recent(model, where)
        shapes = {tensor.name: tensor.shape for tensor in graph.tensors.values()}
        dtypes = {tensor.name: tensor.dtype for tensor in graph.tensors.values()}
        nodes = [copied(node) for node in model.graph.node]
        constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        return Draft(model, nodes, constants, shapes, dtypes)

    @property
    def opset(self) -> int:
        return opset_of(self.model)

    @property
    def inputs(self) -> list[str]:
        """Inputs that a caller gives."""
        return [v.name for v in self.model.graph.input if v.name not in self.constants]

    @property
    def outputs(self) -> list[str]:
        return [v.name for v in self.model.graph.output]

    def producers(self) -> dict[str, onnx.NodeProto]:
        return {name: node for node in self.nodes for name in node.output if name}

    def readers(self) -> Counter[str]:
        """How often each tensor is read; an output of the model counts as a read."""
        read = [name for node in self.nodes for name in node.input if name]
        return Counter([*read, *self.outputs])

    def written_shapes(self) -> dict[str, list[int]]:
        """The shapes that a Reshape can name, by tensor: one dimension may be open, which is -1."""
        known = onnx.shape_inference.infer_shapes(self.finish()).graph
        found = {}
        for value in (*known.input, *known.value_info, *known.output):
            dims = value.type.tensor_type.shape.dim
            sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in dims]
            if sizes.count(-1) <= 1 and len(sizes) == len(self.shapes.get(value.name, ())):
                found[value.name] = sizes
        return found

    def place(self, node: onnx.NodeProto) -> int:
        """The position of a node."""
        return next(i for i, other in enumerate(self.nodes) if other is node)

    def without_nodes(self, model: onnx.ModelProto | None = None) -> Draft:
        """A draft of the same constants, or one of another model, that has no nodes yet."""
        constants = dict(self.constants)
        return Draft(model or self.model, [], constants, self.shapes, self.dtypes)

    def fresh(self, base: str) -> str:
        """A tensor name that nothing has yet."""
        taken = {name for node in self.nodes for name in node.output} | {*self.constants}
        taken |= {*self.inputs}
        while base in taken:
            base += "'"
        return base

    def constant(self, base: str, data: np.ndarray) -> str:
        """Add a constant; returns its name."""
        name = self.fresh(base)
        self.constants[name] = np.array(data, order="C")  # keeps rank 0
        return name

    def finish(self, outputs: list[str] | None = None) -> onnx.ModelProto:
        """The model; with ``outputs``, one that has these tensors as its outputs instead."""
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        graph = made.graph
        wanted = self.outputs if outputs is None else outputs
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        kept = _needed(self.nodes, wanted)
        graph.node.extend(kept)
        read = {name for node in kept for name in node.input} | {*wanted}
        used = [name for name in self.constants if name in read]
        graph.initializer.extend(numpy_helper.from_array(self.constants[n], n) for n in used)
        inputs = [v for v in graph.input if v.name not in self.constants]
        del graph.input[:]
        graph.input.extend(inputs)
        if outputs is not None:
            del graph.output[:]
            graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
        return made


def _needed(nodes: list[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on, in order."""
    wanted = {*outputs}
    kept = []
    for node in reversed(nodes):
        if wanted & {*node.output}:
            kept.append(node)
            wanted |= {*node.input}
    return kept[::-1]


def _recent(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    version = opset_of(model)
    if version >= OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPSET)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise VdlaError(
            f"{where}: expected operator set {OPSET} or later, got {version}, and"
            f" onnx.version_converter refuses: {str(error).strip().splitlines()[0]}"
        ) from None


def copied(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node of its own with the same operator, names and attributes."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    return made


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """An attribute's value as Python."""
    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Replace or add an attribute."""
    others = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


def label(node: onnx.NodeProto) -> str:
    """A node's name, or that of its first output."""
    return node.name or next(name for name in node.output if name)


def operands(node: onnx.NodeProto) -> Iterator[str]:
    """Inputs that are not left out."""
    return (name for name in node.input if name)
