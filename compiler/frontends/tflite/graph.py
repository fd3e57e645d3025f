"""From the tables of a TensorFlow Lite file to a graph: tensors, layouts, and what readers need.

Files hold images as NHWC, the graph computes on NCHW. So a tensor of the file may exist in up to
three layouts; each is made when an operator first asks for it:

- ``plain``: the file's own, named ``t<index>``, or as in the file for inputs and outputs;
- ``nchw``: channels first, named ``t<index>.nchw``;
- ``flat``: a matrix whose rows are flattened from NCHW, named ``t<index>.flat``; a dense layer
  takes it by reordering its weights.

uint8 becomes int8 at the edges (``Recentre``); float16 is float32, rounded where CAST makes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tflite

from ....isa.errors import VdlaError
from ...graph.arithmetic.requant import OFFSET
from ...graph.ir import Node, Tensor, infer
from ...graph.ops.base import Op
from ...graph.ops.movement import Identity, Reshape, Transpose
from ...graph.ops.quantisation import Quant
from ...te.expr import integer_range
from ..builder import Builder
from ..onnx.model import OPSETS
from ..onnx.ops import READERS
from ..onnx.ops.call import Call as OnnxCall
from ..sizes import Sizes
from .file import DAMAGE, SIGNALS, FlatGraph, FlatModel, FlatOperator, FlatTensor
from .state import Key, Variables, initial_value

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
#: Types of activations whose integers have a scale and a zero point.
QUANTISED = ("int8", "uint8", "int16")
#: Types that the graph does not have, and the types that hold their elements.
_HELD = {"uint8": "int8", "float16": "float32"}
_Activation = tflite.ActivationFunctionType
#: Real bounds of each fused activation.
ACTIVATIONS = {
    _Activation.NONE: (-math.inf, math.inf),
    _Activation.RELU: (0.0, math.inf),
    _Activation.RELU_N1_TO_1: (-1.0, 1.0),
    _Activation.RELU6: (0.0, 6.0),
}
_ACTIVATION_NAMES = {code: name for name, code in vars(_Activation).items() if type(code) is int}
#: Characters of what Python or NumPy says about attributes that no operator can have.
MESSAGE_LIMIT = 120
#: Elements that are computed while a model is read: of constants, and of what they make.
MAX_FOLDED = 1 << 26
#: Subgraphs that call each other; more is a damaged file, in which one calls itself.
MAX_DEPTH = 8
#: How often subgraphs are read in all, so that loops in loops end.
MAX_CALLS = 1 << 14
#: Operators of subgraphs, of state and of signals, by which images of a batch could depend on each
#: other.
_TOGETHER = ("CALL_ONCE", "IF", "VAR_HANDLE", "WHILE", *SIGNALS)
#: A value that goes from one subgraph to another: a constant in the file's own type, the graph's
#: tensor that holds it in the layout ``plain``, or a variable.
Bound = np.ndarray | str | Key
Reader = Callable[["Call"], None]
#: Readers by operator and by the types of the first operand: one or several words, or ``ANY``.
Rows = Mapping[str, Mapping[str, Reader]]
ANY = "any"


def held_in(dtype: str) -> str:
    """The graph's type for elements of a type of the file."""
    return _HELD.get(dtype, dtype)


@dataclass
class Importer:
    """The graph while it grows, and the subgraph that is read.

    ``values`` names the graph's tensor of each layout that exists. ``prefix`` begins the names of
    what a subgraph makes; nodes, tensors and variables are those of the whole graph.
    """

    model: FlatModel
    sizes: Sizes
    readers: Rows
    #: How many times the file's own batch is computed at once, and whether inputs have other sizes
    #: than the file has otherwise.
    scale: int = 1
    resized: bool = False
    number: int = 0
    prefix: str = ""
    depth: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    variables: Variables = field(default_factory=Variables)
    #: How often each subgraph was read.
    calls: Counter[int] = field(default_factory=Counter)
    values: dict[int, dict[str, str]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    #: Tensors that operators compute from constants, with their values, by index.
    folded: dict[int, FlatTensor] = field(default_factory=dict)
    #: Shapes of what is computed so far, by index; those of the file may be guesses.
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: Variables whose handles tensors hold.
    handles: dict[int, Key] = field(default_factory=dict)

    @property
    def flat(self) -> FlatGraph:
        """The subgraph that is read."""
        return self.model.graph(self.number)

    def tensor(self, index: int) -> FlatTensor:
        """A tensor of the file, in the shape that it turned out to have."""
        tensor = self.folded[index] if index in self.folded else self.flat.tensor(index)
        return replace(tensor, shape=self.shapes[index]) if index in self.shapes else tensor

    def call_subgraph(self, number: int, given: Sequence[Bound], label: str) -> list[Bound]:
        """Read a subgraph in the place of an operator; its inputs have the values ``given``.
        Returns its outputs.
        """
        if self.depth >= MAX_DEPTH:
            raise VdlaError(f"expected at most {MAX_DEPTH} subgraphs that call each other")
        self.calls[number] += 1
        if self.calls.total() > MAX_CALLS:
            raise VdlaError(f"expected loops of at most {MAX_CALLS} subgraphs in all")
        inner = replace(
            self, number=number, prefix=f"{self.prefix}{label}/", depth=self.depth + 1,
            values={}, names={}, folded={}, shapes={}, handles={},
        )  # fmt: skip
        indices = inner.flat.inputs
        if len(indices) != len(given):
            raise VdlaError(
                f"subgraph {number}: expected {len(indices)} operands, got {len(given)}"
            )
        for index, value in zip(indices, given, strict=True):
            inner.bind(index, value)
        inner.operators()
        return [inner.bound(index) for index in inner.flat.outputs]

    def bound(self, index: int) -> Bound:
        """A tensor's value for another subgraph."""
        if index in self.handles:
            return self.handles[index]
        tensor = self.tensor(index)
        return self.value(tensor, "plain") if tensor.data is None else tensor.data

    def bind(self, index: int, value: Bound) -> None:
        """Define a tensor by a value from another subgraph, which must be of its type."""
        tensor = self.tensor(index)
        if isinstance(value, tuple):
            self.handles[index] = value
            return
        known = isinstance(value, np.ndarray)
        found = value if known else self.tensors[value]
        dtype = str(found.dtype) if known else found.dtype
        wanted = tensor.dtype if known else held_in(tensor.dtype)
        if dtype != wanted:
            raise VdlaError(
                f"{tensor} of subgraph {self.number} is {tensor.dtype}, and gets {dtype}"
            )
        self.shapes[index] = found.shape
        if isinstance(value, np.ndarray):
            self.folded[index] = replace(tensor, data=value)
        else:
            self.values[index] = {"plain": value}

    def operators(self) -> None:
        """Read all operators of the subgraph."""
        for operator in self.flat.operators:
            if operator.kind not in self.readers:
                raise VdlaError(
                    f"operator {operator.index}: {operator.kind} is not supported;"
                    " see docs/tflite.md for the operators that are"
                )
            try:
                with np.errstate(all="ignore"):  # damaged scales; their products are checked
                    self._read(operator)
            except VdlaError as error:
                raise VdlaError(f"{operator}: {error}") from None
            except (*DAMAGE, KeyError, ZeroDivisionError) as error:
                why = " ".join(str(error).split())[:MESSAGE_LIMIT]
                raise VdlaError(f"{operator} is damaged: {why or type(error).__name__}") from None

    def _read(self, operator: FlatOperator) -> None:
        """Read an operator; if it depends on constants only, its results become constants."""
        before = len(self.nodes)
        name = f"{self.prefix}{operator.kind.lower()}_{operator.index}"
        call = Call(name, operator.kind, self.tensors, self, operator, nodes=self.nodes)
        self._reader(call)(call)
        self._name_results(call, before)
        nodes = self.nodes[before:]
        made = {node.output for node in nodes}
        read = {name for node in nodes for name in node.inputs} - made
        known = all(self.tensors[name].is_constant for name in read)
        kept = any(i in self.names or self.tensor(i).dtype == "complex64" for i in operator.outputs)
        kept = kept or self.variables.hold(made)
        if not nodes or not known or kept:
            return
        results = [i for i in operator.outputs if i not in self.folded]
        plain = {i: self.value(self.tensor(i), "plain") for i in results}
        sizes = [math.prod(self.tensors[node.output].shape) for node in self.nodes[before:]]
        if sum(sizes) > MAX_FOLDED:
            return
        values = {n: t.data for n, t in self.tensors.items() if t.data is not None}
        for node in self.nodes[before:]:
            values[node.output] = node.op.evaluate(*(values[name] for name in node.inputs))
            del self.tensors[node.output]
        del self.nodes[before:]
        for index, name in plain.items():
            tensor, data = self.tensor(index), values[name]
            if tensor.dtype == "uint8":
                data = (data.astype(np.int16) + OFFSET).astype(np.uint8)
            elif tensor.dtype == "float16":
                data = data.astype(np.float16)
            self.folded[index] = replace(tensor, data=data)
            self.shapes[index] = data.shape
            del self.values[index]

    def _reader(self, call: Call) -> Reader:
        """The reader of an operator: the first operand's type decides."""
        row = self.readers[call.kind]
        dtype = call.operand(0).dtype if call.operator.inputs else ANY
        if dtype not in row and ANY not in row:
            raise call.refuse(f"supported are {', '.join(row)}, got {dtype} of {call.operand(0)}")
        return row.get(dtype) or row[ANY]

    def _name_results(self, call: Call, before: int) -> None:
        """Give the results of an operator, whose nodes begin at ``before``, the names that they
        have in the file."""
        renamed, nodes = {}, self.nodes
        several = len(call.operator.outputs) > 1
        for tensor, layout, value in call.defined:
            plain = layout == "plain"
            name = self.plain_name(tensor) if plain else f"{self.label(tensor)}.{layout}"
            place = call.operator.outputs.index(tensor.index)
            renamed[value] = name, f"{call.name}.{place}" if several else call.name
            self.values[tensor.index] = {layout: name}
            self.tensors[name] = replace(self.tensors.pop(value), name=name)
        new = {old: name for old, (name, _) in renamed.items()}
        for i in range(before, len(nodes)):
            node, name = nodes[i], renamed.get(nodes[i].output, (nodes[i].output, nodes[i].name))
            inputs = tuple(new.get(i, i) for i in node.inputs)
            nodes[i] = replace(node, name=name[1], inputs=inputs, output=name[0])
        current = self.variables.current
        current.update({key: new[value] for key, value in current.items() if value in new})

    @property
    def images_apart(self) -> bool:
        """Whether an open first dimension of the inputs may be a batch of any size."""
        flat = self.model.graph(0)
        inputs = [flat.tensor(i) for i in flat.inputs]
        symbolic = all(t.signature[:1] == (-1,) and t.shape[0] == 1 for t in inputs)
        return (
            symbolic
            and not any(op.kind in _TOGETHER for op in flat.operators)
            and not any(isinstance(t, FlatTensor) and t.variable for t in flat.tensors)
        )

    def shape(self, tensor: FlatTensor) -> tuple[int, ...]:
        """A computed tensor's shape in the file's layout, for the batch that is compiled: what it
        turned out to have, or else what the file says."""
        if tensor.index in self.shapes:
            return self.shapes[tensor.index]
        return (tensor.shape[0] * self.scale, *tensor.shape[1:]) if tensor.shape else ()

    def emit(self, node: str, op: Op, inputs: tuple[str, ...], output: str) -> str:
        """Append a node; returns the name of its result."""
        shape, dtype = infer(op, tuple(self.tensors[name] for name in inputs), node)
        self.tensors[output] = Tensor(output, shape, dtype)
        self.nodes.append(Node(node, op, inputs, output))
        return output

    def constant(self, name: str, data: np.ndarray) -> Tensor:
        """A constant of the graph; one that exists already must be the same."""
        if name not in self.tensors:
            self.tensors[name] = Tensor.constant(name, np.array(data, order="C"))
        return self.tensors[name]

    def value(self, tensor: FlatTensor, layout: str) -> str:
        """The graph's tensor that holds a computed tensor in a layout, converted if it must be."""
        found = self.values.get(tensor.index)
        if found is None and tensor.variable:
            key = (self.number, tensor.index)
            value = self.variables.read(self.tensors, key, initial_value(tensor))
            found = {"plain": value.name}
            self.values[tensor.index] = found
        if found is None:
            raise VdlaError(f"{tensor} is read, and nothing before it defines it")
        if layout not in found and tensor.dtype == "complex64":
            raise VdlaError(f"{tensor}: only COMPLEX_ABS, REAL and IMAG read complex numbers")
        if layout not in found:
            found[layout] = self._convert(tensor, found, layout)
        return found[layout]

    def _convert(self, tensor: FlatTensor, found: dict[str, str], layout: str) -> str:
        name = self.plain_name(tensor) if layout == "plain" else f"{self.label(tensor)}.{layout}"
        if "flat" in found:  # rows of an image, in the wrong order for anything but a dense layer
            image = self.nodes_of(found["flat"]).inputs[0]
            moved = self.emit(f"{name}.nhwc", Transpose(TO_NHWC), (image,), f"{name}.nhwc")
            found["plain"] = self.emit(name, Reshape(self.shape(tensor)), (moved,), name)
            return self.value(tensor, layout)
        source = found["nchw" if layout == "plain" else "plain"]
        perm = TO_NHWC if layout == "plain" else TO_NCHW
        before = self.tensors[source].shape
        if len(before) != 4:
            raise VdlaError(f"{tensor}: expected an image of 4 dimensions, got {list(before)}")
        after = tuple(before[axis] for axis in perm)
        moved = [axis for axis in perm if before[axis] != 1]
        op = Reshape(after) if moved == sorted(moved) else Transpose(perm)
        return self.emit(name, op, (source,), name)

    def assign(self, tensor: FlatTensor, value: Tensor) -> None:
        """Give a variable of the file its next value."""
        self.variables.current[self.number, tensor.index] = value.name
        self.values[tensor.index] = {"plain": value.name}

    def label(self, tensor: FlatTensor) -> str:
        """What begins the names of a tensor's layouts."""
        return f"{self.prefix}t{tensor.index}"

    def nodes_of(self, output: str) -> Node:
        """The node that computes a tensor."""
        return next(node for node in self.nodes if node.output == output)

    def plain_name(self, tensor: FlatTensor) -> str:
        """The name of a computed tensor in the file's layout."""
        if tensor.dtype != "uint8" and tensor.index in self.names:
            return self.names[tensor.index]
        return self.label(tensor)


@dataclass
class Call(Builder):
    """One operator while it is read: its operands and what it makes.

    The operator's name in the graph is such as ``conv_2d_4``: operators have none in the file.

    Attributes
    ----------
    defined : results that are known: the file's tensor, the layout, the name so far
    """

    importer: Importer
    operator: FlatOperator
    defined: list[tuple[FlatTensor, str, str]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The operator's name in its subgraph."""
        return self.name.removeprefix(self.importer.prefix)

    def option(self, name: str) -> int:
        return self.operator.option(name)

    def vector(self, name: str) -> list[int]:
        """An option of several numbers; none if it is absent."""
        found = self.operator.option(f"{name}AsNumpy")
        return [int(v) for v in found] if isinstance(found, np.ndarray) else []

    def optional(self, position: int) -> FlatTensor | None:
        """An operand that may be absent."""
        inputs = self.operator.inputs
        if position >= len(inputs) or inputs[position] < 0:
            return None
        return self.importer.tensor(inputs[position])

    def operand(self, position: int) -> FlatTensor:
        tensor = self.optional(position)
        if tensor is None:
            raise self.refuse(f"input {position} is missing")
        return tensor

    def reordered(self, *order: int) -> Call:
        """The operator with its operands in another order."""
        inputs = (*self.operator.inputs, *[-1] * len(order))
        moved = tuple(inputs[position] for position in order)
        return replace(self, operator=replace(self.operator, inputs=moved))

    @property
    def result(self) -> FlatTensor:
        """The one result."""
        if len(self.operator.outputs) != 1:
            raise self.refuse(f"expected one output, got {len(self.operator.outputs)}")
        return self.importer.tensor(self.operator.outputs[0])

    @property
    def results(self) -> tuple[FlatTensor, ...]:
        """All results."""
        return tuple(self.importer.tensor(index) for index in self.operator.outputs)

    def constant(self, position: int, what: str) -> np.ndarray:
        tensor = self.operand(position)
        if tensor.data is None:
            raise self.refuse(f"expected a constant {what}, got the computed {tensor}")
        return tensor.data

    def numbers(self, position: int, what: str) -> list[int]:
        """The integers of a constant operand."""
        data = self.constant(position, what)
        if data.dtype.kind != "i":
            raise self.refuse(f"expected integers as {what}, got {data.dtype}")
        return [int(v) for v in data.reshape(-1)]

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise self.refuse(f"expected an axis from {-rank} to {rank - 1}, got {value}")
        return value % rank

    def quant(self, tensor: FlatTensor) -> tuple[np.float32, int]:
        """Scale and zero point of an activation, the zero point of uint8 as for int8."""
        if tensor.dtype not in QUANTISED:
            supported = ", ".join(QUANTISED)
            raise self.refuse(f"supported are {supported}, got {tensor.dtype} of {tensor}")
        if tensor.scale.size != 1:
            raise self.refuse(
                f"expected one scale and zero point of {tensor}, got {tensor.scale.size};"
                " the model is not quantised as TensorFlow Lite does it"
            )
        offset = OFFSET if tensor.dtype == "uint8" else 0
        zero = int(tensor.zero_point[0]) - offset
        low, high = integer_range("int8" if offset else tensor.dtype)
        if not low <= zero <= high:
            raise self.refuse(f"zero point {zero + offset} of {tensor} is not {tensor.dtype}")
        return tensor.scale[0], zero

    def same_quant(self, tensor: FlatTensor) -> None:
        """Refuse an operand whose integers mean something else than the result's."""
        if self.quant(tensor) != self.quant(self.result):
            raise self.refuse(f"{tensor} and the result have different scales or zero points")

    @property
    def stored_type(self) -> str:
        """The integer type that holds the first operand in the graph."""
        dtype = self.operand(0).dtype
        return "int8" if dtype == "uint8" else dtype

    def activation(self) -> tuple[float, float]:
        """Real bounds of the fused activation, if the operator has one."""
        code = self.operator.option("FusedActivationFunction", _Activation.NONE)
        if code not in ACTIVATIONS:
            raise self.refuse(
                f"fused activation {_ACTIVATION_NAMES.get(code, code)} is not supported;"
                f" supported are {', '.join(_ACTIVATION_NAMES[c] for c in ACTIVATIONS)}"
            )
        return ACTIVATIONS[code]

    def bounds(self) -> tuple[int, int]:
        """Bounds of the fused activation in the result's integers, at its scale and zero point."""
        scale, zero = self.quant(self.result)
        lowest, highest = integer_range("int16" if self.result.dtype == "int16" else "int8")

        def stored(real: float, bound: int) -> int:
            if math.isinf(real):
                return bound
            return min(max(zero + steps_of(real, scale), lowest), highest)

        lo, hi = self.activation()
        return stored(lo, lowest), stored(hi, highest)

    def tensor(self, position: int, layout: str = "plain") -> Tensor:
        """The graph's tensor for an operand. A constant becomes a constant of the graph, and uint8
        becomes int8.
        """
        importer, tensor = self.importer, self.operand(position)
        if tensor.data is None:
            return importer.tensors[importer.value(tensor, layout)]
        data = self.as_stored(tensor.data)
        if layout == "nchw":
            data = data.reshape(*(1,) * (4 - data.ndim), *data.shape).transpose(TO_NCHW)
        return importer.constant(importer.label(tensor) + ".nchw" * (layout == "nchw"), data)

    @staticmethod
    def as_stored(data: np.ndarray) -> np.ndarray:
        """Values of the file as the graph stores them: uint8 as int8, float16 as float32."""
        if data.dtype == np.float16:
            return data.astype(np.float32)
        if data.dtype != np.uint8:
            return data
        return (data.astype(np.int16) - OFFSET).astype(np.int8)

    def layouts(self, position: int) -> dict[str, str]:
        """The layouts in which a computed operand exists."""
        return self.importer.values.get(self.operand(position).index, {})

    def emit(self, op: Op, *operands: Tensor) -> Tensor:
        made = super().emit(op, *operands)
        self.importer.tensors[made.name] = made
        return made

    def value(self, data: Any, dtype: str | None = None) -> Tensor:
        made = super().value(data, dtype)
        self.importer.tensors[made.name] = made
        return made

    def onnx(self, kind: str, *operands: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
        """The results of an ONNX operator, by its reader; attributes are as in ONNX."""
        inner = OnnxCall(
            self.name, kind, self.tensors, operands, attributes, ("",), OPSETS[-1], {}, {},
            nodes=self.nodes, made=self.made,
        )  # fmt: skip
        found = READERS[kind](inner)
        self.importer.tensors.update(self.made)
        results = found if isinstance(found, tuple) else (found,)
        return tuple(tensor for tensor in results if tensor is not None)

    def define(
        self, value: Tensor, layout: str = "plain", result: FlatTensor | None = None
    ) -> None:
        """Make a tensor a result, by default the only one. It must have the shape that the file
        says, but for dimensions that are symbolic."""
        importer, tensor = self.importer, self.result if result is None else result
        if 0 in tensor.shape and -1 not in tensor.signature:
            raise self.refuse(f"{tensor} has no elements, {list(tensor.shape)}")
        if tensor.index in importer.values or tensor.data is not None:
            raise self.refuse(f"{tensor} is defined already")
        named = value.name in (name for _, _, name in self.defined)
        held = named or importer.variables.hold((value.name,))
        if value.name not in self.made or value.is_constant or held:
            value = self.emit(Identity(), value)
        self.defined.append((tensor, layout, value.name))
        importer.values[tensor.index] = {layout: value.name}
        if value.dtype != held_in(tensor.dtype):
            raise self.refuse(f"computes {value.dtype}, the file says {tensor.dtype} for {tensor}")
        made = value.shape
        if layout == "nchw":
            made = tuple(made[axis] for axis in TO_NHWC)
        if not self.fits(made, tensor):
            raise self.refuse(
                f"computes shape {list(made)}, the file says {list(importer.shape(tensor))}"
                f" for {tensor}"
            )
        importer.shapes[tensor.index] = made

    def shared(self, label: str, data: np.ndarray) -> Tensor:
        """A constant that the steps of this operator share, by a label."""
        return self.importer.constant(f"{self.name}.{label}", data)

    def fits(self, made: tuple[int, ...], result: FlatTensor) -> bool:
        """Whether a result has the shape that the file says, but for symbolic dimensions."""
        said = self.importer.shape(result)
        if self.importer.resized:
            return len(made) == len(said)
        sizes = zip(result.signature, made, said, strict=False)
        return len(made) == len(said) and all(a == b for size, a, b in sizes if size != -1)


def steps_of(real: float, scale: np.float32) -> int:
    """A real bound in steps of a scale, rounded half away from zero; at most a million."""
    steps = min(max(float(np.float32(real) / scale), -1e6), 1e6)
    return int(math.copysign(math.floor(abs(steps) + 0.5), steps))


def quant_of(tensor: FlatTensor) -> Quant | None:
    """The meaning of an input's integers, if the file has it."""
    if tensor.scale.size != 1:
        return None
    return Quant(tensor.scale, tensor.zero_point.astype(np.int32), tensor.dtype)
