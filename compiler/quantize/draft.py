"""An ONNX model while it is rewritten: nodes in order, constants as arrays, shapes by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

from ...isa.errors import VdlaError
from ..frontends.onnx.decoders import OPSET as PARTS_OPSET
from ..frontends.onnx.importer import Importer, declared_sizes, import_onnx
from ..frontends.onnx.model import load_model, opset_of
from ..frontends.sizes import ONE, Sizes
from ..graph.ir import Graph
from .expand import in_float32, taken_apart

#: The first operator set whose DequantizeLinear has scales along an axis.
OPSET = 13
#: From this one on, what models of floats consist of has the same form up to the newest one.
ALIKE = 18
#: Operators that fused ones are taken apart into and older operator sets lack.
NEWEST = {"RotaryEmbedding", "TensorScatter"}
#: Operators that some node of every quantised model has.
QUANTISED = {"DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "QuantizeLinear"}
#: Operators that put elements in other places, or give them another shape.
_REARRANGED = {"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
#: Constants of more elements decide no shape.
MOST_OF_SHAPES = 1024


@dataclass
class Draft:
    """``model`` has neither nodes nor constants: these may be large, and are here once. ``shapes``
    and ``dtypes`` are those of one batch (the model's own batch, or 1). ``fused`` names the nodes
    that became part of other nodes, for the report. ``alike`` are groups of tensors that share a
    scale, where they are quantised. ``dims`` are the sizes of open dimensions, by name.
    ``float_nodes`` are names of nodes that shall stay float, and ``wide`` names of tensors that
    shall have two bytes."""

    model: onnx.ModelProto
    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    fused: list[str] = field(default_factory=list)
    alike: list[list[str]] = field(default_factory=list)
    dims: dict[str, int] = field(default_factory=dict)
    float_nodes: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()

    @staticmethod
    def load(
        source: str | Path | bytes | onnx.ModelProto,
        samples: Mapping[str, np.ndarray] | np.ndarray | None = None,
        dims: Mapping[str, int] = MappingProxyType({}),
    ) -> Draft:
        """Read a float model; what the importer refuses is refused with its message. Open
        dimensions that ``dims`` names get these sizes; others behind the first one have those of
        the samples.

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
        if model.graph.sparse_initializer:
            import_onnx(model)  # which refuses it
        read = Importer(where, ONE).array
        constants = {i.name: read(i) for i in model.graph.initializer}
        draft = Draft(in_float32(_outline(model)), [], constants, {}, {})
        draft.nodes = [in_float32(node) for node in model.graph.node]
        if isinstance(samples, np.ndarray):  # of the only input, but for states
            samples = dict.fromkeys(draft.inputs, samples) if len(draft.inputs) == 1 else {}
        for name, size in dims.items():
            if type(size) is not int or size < 1:
                raise VdlaError(f"dims: expected a size above 0 as {name!r}, got {size!r}")
        fixed = _fix_sizes(draft.model, dims)
        unknown = {name: size for name, size in dims.items() if name not in fixed}
        draft.dims = _open_sizes(draft.model, samples or {}) | unknown
        draft.infer()
        apart = [
            part
            for node in draft.nodes
            for part in taken_apart(node, draft.shapes, draft.dtypes, draft.constants)
        ]
        if len(apart) != len(draft.nodes) or draft.opset < OPSET:
            draft.nodes = apart
            if any(node.op_type in NEWEST for node in apart):
                draft.renew(where)
            else:
                draft.bring_up(where)
            draft.infer()
        return draft

    def infer(self) -> None:
        """Find the shapes and dtypes of all tensors; the importer's refusals are raised."""
        graph = self.imported()
        self.shapes = {tensor.name: tensor.shape for tensor in graph.tensors.values()}
        self.dtypes = {tensor.name: tensor.dtype for tensor in graph.tensors.values()}

    def imported(self) -> Graph:
        """The nodes as the importer reads them, whose tensors have the same names."""
        model, constants = self.outline()
        return import_onnx(model, Sizes(dims=self.dims, values=constants))

    def renew(self, where: str = "the model") -> None:
        """Bring the nodes to an operator set that has what fused ones are taken apart into."""
        if self.opset >= PARTS_OPSET:
            return
        self.bring_up(where, ALIKE)
        for item in self.model.opset_import:
            if item.domain == "":
                item.version = PARTS_OPSET

    def bring_up(self, where: str, version: int = OPSET) -> None:
        """Convert the nodes to an operator set that has what quantised models need."""
        if self.opset >= version:
            return
        made = _recent(self.outline()[0], where, version)
        self.nodes = [copied(node) for node in made.graph.node]
        read = Importer(where, ONE).array
        self.constants |= {i.name: read(i) for i in made.graph.initializer}
        inputs = [v for v in made.graph.input if v.name not in self.constants]
        self.model = _outline(made)
        del self.model.graph.input[:]
        self.model.graph.input.extend(inputs)

    @property
    def opset(self) -> int:
        return opset_of(self.model)

    @property
    def inputs(self) -> list[str]:
        """Inputs that a caller gives."""
        return [v.name for v in self.model.graph.input if v.name not in self.constants]

    def sizes(self, name: str) -> list[int]:
        """The sizes of an input, 0 for one that nothing says."""
        [value] = [v for v in self.model.graph.input if v.name == name]
        sizes = declared_sizes(value)
        return [size if isinstance(size, int) else self.dims.get(size, 0) for size in sizes]

    @property
    def outputs(self) -> list[str]:
        return [v.name for v in self.model.graph.output]

    def producers(self) -> dict[str, onnx.NodeProto]:
        return {name: node for node in self.nodes for name in node.output if name}

    def readers(self) -> Counter[str]:
        """How often each tensor is read; an output of the model counts as a read."""
        read = [name for node in self.nodes for name in node.input if name]
        return Counter([*read, *self.outputs])

    def copies(self, groups: Mapping[str, str]) -> dict[str, str]:
        """By each tensor that has the elements of another one of its group in other places or
        another shape, that one, which is no such tensor itself."""
        found: dict[str, str] = {}
        for node in self.nodes:
            source, result = (*node.input, "")[0], node.output[0]
            alike = groups.get(source, "") == groups.get(result)
            if node.op_type in _REARRANGED and alike:
                found[result] = found.get(source, source)
        return found

    def written_shapes(self) -> dict[str, list[int]]:
        """The shapes that a Reshape can name, by tensor: one dimension may be open, which is -1."""
        model, constants = self.outline()
        try:
            graph = import_onnx(model, Sizes(2, dims=self.dims, values=constants))
            twice = {tensor.name: tensor.shape for tensor in graph.tensors.values()}
        except VdlaError:  # it takes one image at a time
            twice = self.shapes
        found = {}
        for name, shape in self.shapes.items():
            other = twice.get(name, ())
            if len(other) == len(shape):
                sizes = [n if n == m else -1 for n, m in zip(shape, other, strict=True)]
                if sizes.count(-1) <= 1:
                    found[name] = sizes
        return found

    def place(self, node: onnx.NodeProto) -> int:
        """The position of a node."""
        return next(i for i, other in enumerate(self.nodes) if other is node)

    def without_nodes(self, model: onnx.ModelProto | None = None) -> Draft:
        """A draft of the same constants, or one of another model, that has no nodes yet."""
        constants = dict(self.constants)
        model = model or self.model
        return Draft(model, [], constants, self.shapes, self.dtypes, dims=self.dims)

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
        """The model with its constants; ``outputs`` as of :meth:`outline`."""
        made, large = self.outline(outputs)
        used = {*large, *(i.name for i in made.graph.initializer)}
        del made.graph.input[len(self.inputs) :], made.graph.initializer[:]
        names = (name for name in self.constants if name in used)
        made.graph.initializer.extend(numpy_helper.from_array(self.constants[n], n) for n in names)
        return made

    def outline(
        self, outputs: list[str] | None = None
    ) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model with its large constants as its last inputs, and these by name: they are not
        copied. With ``outputs``, it has these tensors as its outputs instead."""
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        graph = made.graph
        wanted = self.outputs if outputs is None else outputs
        kept = _needed(self.nodes, wanted)
        graph.node.extend(kept)
        read = {name for node in kept for name in names_read(node)} | {*wanted}
        large = {}
        for name in self.constants:
            value = self.constants[name]
            if name in read and value.size <= MOST_OF_SHAPES:
                graph.initializer.append(numpy_helper.from_array(value, name))
            elif name in read:
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
                large[name] = value
        if outputs is not None:
            del graph.output[:]
            graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
        return made, large


def _needed(nodes: list[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on, in order."""
    wanted = {*outputs}
    kept = []
    for node in reversed(nodes):
        if wanted & {*node.output}:
            kept.append(node)
            wanted |= {*names_read(node)}
    return kept[::-1]


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, also in its subgraphs."""
    yield from node.input
    for item in node.attribute:
        for inner in item.g.node if item.HasField("g") else ():
            yield from names_read(inner)
        if item.HasField("g"):
            yield from (value.name for value in item.g.output)


def _open_sizes(model: onnx.ModelProto, samples: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes that samples have where inputs leave other dimensions than the first one open."""
    found = {}
    for value in model.graph.input:
        shape = samples[value.name].shape if value.name in samples else ()
        for name, size in [*zip(declared_sizes(value), shape, strict=False)][1:]:
            if isinstance(name, str):
                found[name] = size
    return found


def _fix_sizes(model: onnx.ModelProto, dims: Mapping[str, int]) -> set[str]:
    """Let inputs and outputs have sizes for open dimensions; returns which ones inputs have."""
    inputs = {name for value in model.graph.input for name in declared_sizes(value)}
    for value in (*model.graph.input, *model.graph.output):
        sizes = declared_sizes(value)
        for dim, name in zip(value.type.tensor_type.shape.dim, sizes, strict=True):
            if isinstance(name, str) and name in dims:
                dim.dim_value = dims[name]
    return {name for name in dims if name in inputs}


def _outline(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model without nodes and constants, from which the rest is copied."""
    made, graph = onnx.ModelProto(ir_version=model.ir_version), model.graph
    made.producer_name = model.producer_name
    made.opset_import.extend(model.opset_import)
    made.metadata_props.extend(model.metadata_props)
    made.graph.name = graph.name
    constants = {i.name for i in graph.initializer}
    made.graph.input.extend(v for v in graph.input if v.name not in constants)
    made.graph.output.extend(graph.output)
    return made


def _recent(model: onnx.ModelProto, where: str, wanted: int) -> onnx.ModelProto:
    version = opset_of(model)
    try:
        return onnx.version_converter.convert_version(model, wanted)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise VdlaError(
            f"{where}: expected operator set {wanted} or later, got {version}, and"
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
