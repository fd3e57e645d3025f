"""Import of ONNX models (opset 7 to the current one), with shape inference.

An ONNX node becomes one or several nodes of the graph (``ops/``). Shapes are known numbers, so
every operand that decides a shape must be constant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ....isa.additions import add, note
from ....isa.errors import VdlaError
from ...graph.ir import DTYPES, Graph, Node, Tensor
from ...graph.ops.base import Misfit
from ...graph.ops.movement import Identity
from ...graph.verify import verify
from ..sizes import ONE, Declared, Sizes, size_name
from .control import CONTROL, renamed_node
from .decoders import OPSET as PARTS_OPSET
from .decoders import RULES
from .functions import function_body
from .model import STANDARD, first_line, load_model, opset_of
from .narrow import (
    HALVES,
    HELD,
    held,
    in_range,
    narrow_results,
    narrow_type,
    rounds_inside,
    widened,
)
from .ops import DOMAINS, LIKE_FIRST, READERS
from .ops.call import Call, Reader, ValueNeeded
from .parts import Parts

#: The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
#: How many supported operators a message about an unknown one names.
NEAREST = 4
#: The longest name of an operator that is read.
LONGEST_KIND = 100


def register_reader(domain: str, kind: str, read: Reader) -> None:
    """Add a reader for a custom operator: ``read`` gets a :class:`Call` and returns the results of
    the nodes that it has emitted. ``domain`` may be ONNX's own, which is "".

    Raises
    ------
    VdlaError
        When there is a reader for it.
    """
    if domain in STANDARD:
        add("ONNX operator", kind, READERS, read)
        return
    if domain not in DOMAINS:
        DOMAINS[domain] = {}
        note(f"ONNX domain {domain}", partial(DOMAINS.pop, domain))
    add(f"ONNX operator of {domain}", kind, DOMAINS[domain], read)


def import_onnx(
    source: str | Path | bytes | onnx.ModelProto,
    sizes: Sizes = ONE,
) -> Graph:
    """Read a model into a graph.

    Parameters
    ----------
    source
        A file, the bytes of one, or a loaded model.
    sizes
        Of dimensions of the inputs that the model leaves open, and values of inputs.

    Raises
    ------
    VdlaError
        When the file is unreadable or damaged, or a node is not supported; the message names the
        node and the operator and says what is supported.
    ValueNeeded
        When shapes depend on the value of an input; it can be given in ``sizes.values``.
    """
    return open_onnx(source)(sizes)


def open_onnx(source: str | Path | bytes | onnx.ModelProto) -> Callable[[Sizes], Graph]:
    """What reads a model for given sizes: its constants are the same arrays in all graphs. Errors
    as :func:`import_onnx`."""
    model, where = load_model(source)
    arrays: dict[str, np.ndarray] = {}

    def read(sizes: Sizes) -> Graph:
        try:
            graph = Importer(where, sizes, arrays).run(model)
        except (UnicodeDecodeError, DecodeError, OverflowError) as error:
            raise VdlaError(f"{where}: damaged ONNX model: {first_line(error)}") from None
        verify(graph)
        return graph

    return read


@dataclass
class Importer:
    """The graph of a model while it is read, node by node."""

    where: str
    sizes: Sizes
    #: Initial values that were read before, by name.
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    producers: dict[str, Node] = field(default_factory=dict)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    #: Types in the model of tensors that have a wider one here, by name.
    narrow: dict[str, str] = field(default_factory=dict)

    def run(self, model: onnx.ModelProto) -> Graph:
        opset = opset_of(model)
        for initializer in model.graph.initializer:
            data = self.arrays.get(initializer.name)
            if data is None or narrow_type(initializer.data_type):
                data = self.arrays[initializer.name] = self.array(initializer)
            self.define(Tensor.constant(initializer.name, data))
        for sparse in model.graph.sparse_initializer:
            raise VdlaError(
                f"{self.where}: constant {sparse.values.name!r} is sparse; store all its elements"
            )
        given = [value for value in model.graph.input if value.name not in self.tensors]
        self.sizes.check_values([value.name for value in given])
        types = {v.name: self.input(v) for v in given}
        declared = {n: sizes for n, (_, sizes) in types.items() if n not in self.sizes.values}
        shapes = self.resolve(declared)
        for name, (dtype, sizes) in types.items():
            if name in shapes:
                self.define(Tensor(name, shapes[name], dtype))
            else:
                value = self.sizes.value(name, dtype, sizes)
                self.define(Tensor.constant(name, value))
        inputs = tuple(shapes)
        for index, proto in enumerate(model.graph.node):
            self.node(proto, index, opset)
        outputs = tuple(value.name for value in model.graph.output)
        if not outputs:
            raise VdlaError(f"{self.where}: expected a model with outputs, got none")
        for name in outputs:
            if name not in self.tensors:
                raise VdlaError(f"{self.where}: output {name!r} is not computed by any node")
        name = model.graph.name or "main"
        symbols = self.sizes.named(declared)
        return Graph(name, inputs, outputs, tuple(self.nodes), self.tensors, symbols=symbols)

    def resolve(self, declared: Mapping[str, Declared]) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs."""
        try:
            return self.sizes.resolve(declared)
        except VdlaError as error:
            raise VdlaError(f"{self.where}: {error}") from None

    def define(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            raise VdlaError(f"{self.where}: tensor {tensor.name!r} is defined twice")
        self.tensors[tensor.name] = tensor

    def array(self, proto: onnx.TensorProto) -> np.ndarray:
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            raise VdlaError(
                f"{self.where}: constant {proto.name!r} lies in another file; load the model from"
                " the path of its own file, in whose folder that one must be"
            )
        try:
            data = np.ascontiguousarray(numpy_helper.to_array(proto)).reshape(tuple(proto.dims))
            if data.shape != tuple(proto.dims):
                raise ValueError(f"shape {[*proto.dims]}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise VdlaError(
                f"{self.where}: constant {proto.name!r} is damaged: {first_line(error)}"
            ) from None
        if narrow_type(proto.data_type):
            self.narrow[proto.name] = narrow_type(proto.data_type)
        data = held(data)
        if str(data.dtype) not in DTYPES:
            raise VdlaError(
                f"{self.where}: constant {proto.name!r} has type {data.dtype},"
                f" supported are {', '.join(DTYPES)}"
            )
        return data

    def input(self, value: onnx.ValueInfoProto) -> tuple[str, Declared]:
        """The dtype of an input here, and its sizes in the model."""
        name, kind = value.name, value.type.tensor_type
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            what = value.type.WhichOneof("value").removesuffix("_type").replace("_", " ")
            raise VdlaError(f"{self.where}: input {name!r}: expected a tensor, got a {what}")
        if narrow_type(kind.elem_type):
            self.narrow[name] = narrow_type(kind.elem_type)
        try:
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        except KeyError:
            dtype = "not a tensor" if not kind.elem_type else f"type {kind.elem_type}"
        dtype = "strings" if kind.elem_type == onnx.TensorProto.STRING else HELD.get(dtype, dtype)
        if dtype not in DTYPES:
            raise VdlaError(
                f"{self.where}: input {name!r}: expected a tensor of {', '.join(DTYPES)},"
                f" got {dtype}"
            )
        if not kind.HasField("shape"):
            given = self.sizes.values.get(name, self.sizes.shapes.get(name))
            if given is None:
                raise VdlaError(
                    f"{self.where}: input {name!r}: expected a tensor of known rank, got an unknown"
                    f" one; give its shape with --shape {name}=NxN (in Python shapes=)"
                )
            return dtype, tuple(map(int, getattr(given, "shape", given)))
        sizes = [declared_size(dim) for dim in kind.shape.dim]
        if sizes and sizes[0] == 0:
            sizes[0] = None  # as some tools write an open one
        return dtype, tuple(sizes)

    def node(self, proto: onnx.NodeProto, index: int, opset: int) -> None:
        if not isinstance(proto.op_type, str) or len(proto.op_type) > LONGEST_KIND:
            got = str(proto.op_type)[:LONGEST_KIND]
            raise VdlaError(f"{self.where}: node {index}: expected an operator, got {got!r} ...")
        name = proto.name or f"{proto.op_type}_{index}"
        label = f"node {name!r} ({proto.op_type})"
        standard = proto.domain in STANDARD
        reader = (READERS if standard else DOMAINS.get(proto.domain, {})).get(proto.op_type)
        for operand in proto.input:
            if operand and operand not in self.tensors:
                raise VdlaError(f"{label}: reads {operand!r}, which nothing before it defines")
        if not any(proto.output):
            raise VdlaError(f"{label}: expected an output, got none")
        if standard:
            _check_form(proto, label)
        operands = tuple(self.tensors[i] if i else None for i in proto.input)
        control = CONTROL.get(proto.op_type) if standard else None
        if standard and rounds_inside(proto, opset, self.narrow):
            self.function(proto, name, opset, operands)
            return
        if reader is None and control is None and not (proto.op_type == "Constant" and standard):
            if not standard and proto.domain == MICROSOFT and proto.op_type in RULES:
                self.parts(proto, name, operands)
            else:
                self.function(proto, name, opset, operands)
            return
        try:
            inferred = standard and control is None
            if proto.op_type in LIKE_FIRST and proto.op_type not in _schemas():
                kind = self.narrow.get(proto.input[0], "")
                narrow = dict.fromkeys(filter(None, proto.output), kind) if kind in HALVES else {}
            else:
                narrow = narrow_results(proto, opset, operands, self.narrow) if inferred else {}
        except VdlaError as error:
            raise VdlaError(f"{label}: {error}") from None
        proto = widened(proto)
        self.narrow |= narrow
        try:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
        except ValueError as error:
            raise VdlaError(f"{label}: damaged attributes: {first_line(error)}") from None
        if reader is None and control is None:
            self.define(Tensor.constant(proto.output[0], self.constant(attributes, label)))
            return
        call = Call(
            name, proto.op_type, self.tensors, operands, attributes, tuple(proto.output), opset,
            self.producers, self.known,
        )  # fmt: skip
        if reader is None:
            CONTROL[proto.op_type](self, call)
            return
        try:
            found = reader(call)
        except Misfit as misfit:
            raise call.refuse(f"expected {misfit}") from None
        results = found if isinstance(found, tuple) else (found,)
        self.adopt(call, _in_range(call, results, narrow))

    def function(
        self, proto: onnx.NodeProto, name: str, opset: int, operands: tuple[Tensor | None, ...]
    ) -> None:
        """Read an operator without a reader by ONNX's definition of it, if there is one."""
        named = onnx.NodeProto()
        named.CopyFrom(proto)
        named.name = name
        body = None
        if proto.domain in STANDARD:
            try:
                body = function_body(named, opset, operands, self.narrow)
            except (ValueError, RuntimeError, onnx.shape_inference.InferenceError) as error:
                raise VdlaError(
                    f"node {name!r} ({proto.op_type}): expected what ONNX's definition of it"
                    f" allows: {first_line(error)}"
                ) from None
        if body is None:
            raise VdlaError(f"node {name!r}: {_unknown(proto)}")
        for index, inner in enumerate(body[0]):
            self.node(inner, index, body[1])

    def parts(self, proto: onnx.NodeProto, name: str, operands: tuple[Tensor | None, ...]) -> None:
        """Read an operator of ONNX Runtime as the nodes of ONNX that it stands for."""
        given = {t.name: t for t in operands if t is not None}
        call = Call(
            name, proto.op_type, self.tensors, operands, {}, (), PARTS_OPSET, self.producers,
            self.known,
        )  # fmt: skip
        values: dict[str, np.ndarray] = {}
        for tensor in given.values():
            with suppress(ValueNeeded):
                values[tensor.name] = call.value_of(tensor, "value")
        known = {*values}
        shapes = {name: tensor.shape for name, tensor in given.items()}
        for shape in shapes.values():  # rules make numbers of some dimensions; one may be 0
            call.check_size([max(size, 1) for size in shape])
        dtypes = {name: tensor.dtype for name, tensor in given.items()}
        parts = Parts(proto, shapes, values, dtypes)
        results = RULES[proto.op_type](parts)
        for number, output in enumerate(proto.output[len(results) :], len(results)):
            if output:
                raise call.refuse(f"output {number} ({output!r}) is not supported")
        half = self.narrow.get(proto.input[0])
        for constant in values.keys() - known:
            self.define(Tensor.constant(constant, values[constant]))
            if half and values[constant].dtype == np.float32:
                self.narrow[constant] = half
        for index, inner in enumerate(parts.named(results)):
            self.node(inner, index, PARTS_OPSET)

    def inline(
        self, call: Call, graph: onnx.GraphProto, prefix: str, given: Mapping[str, str]
    ) -> list[str]:
        """Read a subgraph of a node in its place; ``given`` names the tensors that are its inputs,
        and ``prefix`` begins the names of its own. Returns the names of its outputs."""
        names = dict(given)
        for initializer in graph.initializer:
            constant = onnx.TensorProto()
            constant.CopyFrom(initializer)
            constant.name = names[initializer.name] = f"{prefix}/{initializer.name}"
            self.define(Tensor.constant(constant.name, self.array(constant)))
        made = [name for node in graph.node for name in node.output if name]
        names |= {name: f"{prefix}/{name}" for name in made}
        for index, node in enumerate(graph.node):
            copy = renamed_node(node, names)
            copy.name = f"{prefix}/{node.name or f'{node.op_type}_{index}'}"
            self.node(copy, index, call.opset)
        found = [names.get(value.name, value.name) for value in graph.output]
        unknown = [name for name in found if name not in self.tensors]
        if unknown:
            raise call.refuse(f"output {unknown[0]!r} of its subgraph is not computed by any node")
        return found

    def emit(self, like: Call, build: Callable[[Call], Tensor], name: str) -> Tensor:
        """Add the nodes that ``build`` makes of a node; the result gets a name."""
        call = replace(like, name=name, outputs=(name,), nodes=[], made={})
        self.adopt(call, (build(call),))
        read = {self.narrow[n] for node in call.nodes for n in node.inputs if n in self.narrow}
        if len(read) == 1:
            self.narrow[name] = read.pop()
        return self.tensors[name]

    def adopt(self, call: Call, results: tuple[Tensor | None, ...]) -> None:
        """Add the nodes and tensors that a reader made; results get the names of the outputs."""
        wanted = [(output, i) for i, output in enumerate(call.outputs) if output]
        renamed: dict[str, str] = {}
        made_here = {node.output for node in call.nodes}
        for output, i in wanted:
            result = results[i] if i < len(results) else None
            if result is None:
                raise call.refuse(f"output {i} ({output!r}) is not supported")
            if result.name in made_here and result.name not in renamed:
                renamed[result.name] = output
            else:
                copy = call.emit(Identity(), result)
                renamed[copy.name] = output
        for tensor in call.made.values():
            self.define(replace(tensor, name=renamed.get(tensor.name, tensor.name)))
        first = _provisional(renamed, call.outputs)
        for position, node in enumerate(call.nodes):
            node = Node(
                call.name if node.output == first else f"{call.name}.{position}",
                node.op,
                tuple(renamed.get(i, i) for i in node.inputs),
                renamed.get(node.output, node.output),
            )
            self.nodes.append(node)
            self.producers[node.output] = node

    def constant(self, attributes: dict[str, Any], label: str) -> np.ndarray:
        try:
            match attributes:
                case {"value": onnx.TensorProto() as proto}:
                    return self.array(proto)
                case {"value_float": value} | {"value_floats": value}:
                    return np.array(value, np.float32)
                case {"value_int": value} | {"value_ints": value}:
                    return np.array(value, np.int64)
        except (ValueError, TypeError):
            pass  # of another type than its name says
        raise VdlaError(f"{label}: expected a tensor or numbers, got {sorted(attributes)}")


def declared_size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """A size as a model declares it."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param if dim.dim_param not in ("", "?") else None


def declared_sizes(value: onnx.ValueInfoProto) -> list[int | str]:
    """The sizes of an input or output as a model declares them, with a name for each open one."""
    dims = value.type.tensor_type.shape.dim
    return [size_name(value.name, axis, declared_size(dim)) for axis, dim in enumerate(dims)]


def _in_range(
    call: Call, results: tuple[Tensor | None, ...], narrow: Mapping[str, str]
) -> tuple[Tensor | None, ...]:
    """Results with those of narrow types rounded, unless elements only moved."""
    moved = all(node.op.moves for node in call.nodes) and call.kind not in ("Cast", "CastLike")
    if not narrow or moved:
        return results
    names = (*call.outputs, *[""] * len(results))
    return tuple(
        in_range(call, tensor, narrow[name]) if tensor is not None and name in narrow else tensor
        for tensor, name in zip(results, names, strict=False)
    )


def _check_form(proto: onnx.NodeProto, label: str) -> None:
    """Refuse attributes and operands that no version of an ONNX operator has: they would have no
    effect, which their author did not intend."""
    versions = _schemas().get(proto.op_type)
    if versions is None:
        return
    known = sorted({name for schema in versions for name in schema.attributes})
    unknown = [a.name for a in proto.attribute if a.name not in known]
    if unknown:
        raise VdlaError(
            f"{label}: expected attributes {', '.join(known) or 'none'}, got {unknown[0]!r}"
        )
    most = max(schema.max_input for schema in versions)
    if len(proto.input) > most:
        raise VdlaError(f"{label}: expected at most {most} operands, got {len(proto.input)}")


@cache
def _schemas() -> Mapping[str, list[onnx.defs.OpSchema]]:
    """Every version of ONNX's own operators, by name."""
    found: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema)
    return found


def _provisional(renamed: Mapping[str, str], outputs: tuple[str, ...]) -> str:
    """The provisional name of the first output: its node keeps the ONNX node's name."""
    first = next(output for output in outputs if output)
    return next(old for old, new in renamed.items() if new == first)


def input_names(model: onnx.ModelProto) -> list[str]:
    """Names of the inputs that a caller must give: those without an initial value."""
    given = {initializer.name for initializer in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in given]


def _known(domain: str) -> set[str]:
    """The operators of a domain that are read."""
    if domain in STANDARD:
        return {*READERS, "Constant"}
    return {*DOMAINS[domain], *(RULES if domain == MICROSOFT else ())}


def _unknown(proto: onnx.NodeProto) -> str:
    """What to say of an operator that nothing can run: its name, its domain, what there is."""
    standard = proto.domain in STANDARD
    operator = proto.op_type if standard else f"{proto.domain}.{proto.op_type}"
    if not standard and proto.domain not in DOMAINS:
        return (
            f"operator {operator!r} is not supported, nor is any other of domain "
            f"{proto.domain!r}; supported domains are ai.onnx, {', '.join(DOMAINS)}"
        )
    known = sorted(_known(proto.domain))
    nearest = difflib.get_close_matches(proto.op_type, known, NEAREST, cutoff=0.0)
    return (
        f"operator {operator!r} is not supported; of the {len(known)} of domain "
        f"{proto.domain or 'ai.onnx'!r} that are, these have the nearest names: "
        f"{', '.join(nearest)}"
    )
