"""From an exported program to a graph: parameters, symbolic sizes, and one ATen node at a time."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import operator
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.export.graph_signature import InputKind, OutputKind  # pyright: ignore[reportMissingImports]

from ....isa.errors import VdlaError
from ...graph.ir import DTYPES, Graph, Node, Tensor
from ...graph.ops.movement import Identity
from ...graph.verify import verify
from ..onnx.importer import Importer
from ..onnx.model import OPSETS
from ..sizes import Declared, Sizes
from .ops import KEPT, READERS
from .ops.call import Call, Value

importlib.import_module("torch.ao.quantization.fx._decomposed")  # defines its operators

#: How many supported operators a message about an unknown one names.
NEAREST = 4
PARAMETERS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def open_program(source: Any) -> Callable[[Sizes], Graph]:
    """As :func:`~vdla.compiler.frontends.pytorch.importer.open_torch`."""
    program, where = load_program(source)
    table = torch.export.default_decompositions()
    for name in KEPT:
        packet, overload = name.removeprefix("aten.").split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    program = decomposed(program, where, table)

    def read(sizes: Sizes) -> Graph:
        try:
            graph = _Program(program, sizes).run()
        except VdlaError as error:
            raise VdlaError(f"{where}: {error}") from None
        verify(graph)
        return graph

    return read


def check_output(spec: Any) -> None:
    """Refuse what a program changes besides buffers."""
    if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
        raise VdlaError(
            f"the model changes {spec.target!r} ({spec.kind.name.lower()}); return it as an output"
            " instead"
        )


def decomposed(program: Any, where: str, table: Mapping[Any, Any]) -> Any:
    """The program without the operators in a table, in which only outputs change buffers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about itself
        try:
            return program.run_decompositions(table)
        except Exception as error:  # a program of unknown origin can make tracing fail in any way
            what = f"torch cannot decompose the program: {_line(error)}"
            if constants := changed_constants(program):
                what = (
                    f"the program changes {constants[0]!r}, which is no buffer of the model; export"
                    " it with torch.export.export(..., strict=True)"
                )
            raise VdlaError(f"{where}: {what}") from None


def changed_constants(program: Any) -> list[str]:
    """The constants that an exported program writes to. torch makes such programs of caches that
    are no buffers of the module where it does not trace its bytecode (``strict=False``)."""
    constants = {
        spec.arg.name: spec.target for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.CONSTANT_TENSOR
    }  # fmt: skip
    written = [
        str(node.args[0]) for node in program.graph.nodes
        if node.op == "call_function" and str(node.target).partition(".default")[0].endswith("_")
    ]  # fmt: skip
    return [str(constants[name]) for name in written if name in constants]


def load_program(source: Any) -> tuple[Any, str]:
    """The program that a file or its bytes hold, and how messages name it."""
    if isinstance(source, torch.export.ExportedProgram):
        return source, "exported program"
    where = "PyTorch model" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise VdlaError(f"{where}: {error.strerror or error}") from None
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what torch has to say is in the error, too
    try:
        return torch.export.load(io.BytesIO(data)), where
    except Exception as error:  # torch raises what its JSON, its archive and its schema raise
        raise VdlaError(
            f"{where}: expected a program that torch.export.save wrote, got a damaged file:"
            f" {_line(error.__context__ or error)}"
        ) from None
    finally:
        logging.disable(disabled)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass
class _Program:
    """A program in core ATen operators while it is read.

    Attributes
    ----------
    given : what is known of its inputs
    sizes : the number that each symbol of a shape stands for
    values : the value that each node of the program has in the graph: a tensor, or several
    states : of buffers that the program changes, by name: the input, and the value before a run
    """

    program: Any
    given: Sizes
    sizes: dict[Any, int] = field(default_factory=dict)
    values: dict[Any, Value] = field(default_factory=dict)
    states: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    graph: Importer = field(init=False)

    def __post_init__(self) -> None:
        self.graph = Importer("exported program", self.given)

    def run(self) -> Graph:
        signature = self.program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        inputs: list[str] = []
        declared = self.bind(specs)
        changed = {s.target for s in signature.output_specs if s.kind == OutputKind.BUFFER_MUTATION}
        for node in self.program.graph.nodes:
            match node.op:
                case "placeholder":
                    inputs += self.placeholder(node, specs[node.name], changed)
                case "call_function":
                    self.call(node)
                case "output":
                    continue
                case _:
                    raise VdlaError(f"{_label(node)}: {node.op} is not supported")
        after = {s.target: self.next(s) for s in signature.output_specs if s.target in self.states}
        outputs = [self.output(s) for s in signature.output_specs if s.target not in after]
        if not outputs:
            raise VdlaError("expected a program with outputs, got none")
        before, initial = zip(*self.states.values(), strict=True) if self.states else ((), ())
        outputs += [after[name] for name in self.states]
        return Graph(
            "main", (*inputs, *before), tuple(outputs), tuple(self.graph.nodes),
            self.graph.tensors, initial, symbols=self.given.named(declared),
        )  # fmt: skip

    # ---- inputs and outputs ----

    def placeholder(self, node: Any, spec: Any, changed: Collection[str]) -> list[str]:
        """The names that the node adds to the graph's inputs. A buffer that the program changes is
        a state."""
        if spec.kind == InputKind.BUFFER and spec.target in changed:
            value = self.stored(spec)
            self.hold(node, Tensor(node.name, value.shape, str(value.dtype)))
            self.states[spec.target] = node.name, value
            return []
        if spec.kind in PARAMETERS:
            if node.users:
                self.hold(node, Tensor.constant(node.name, self.stored(spec)))
            return []
        example = node.meta.get("val")
        if spec.kind != InputKind.USER_INPUT or not isinstance(example, torch.Tensor):
            if not node.users:
                return []  # an argument that the model was given and did not read
            raise VdlaError(
                f"input {node.name!r}: expected a tensor, got {type(example).__name__}"
                f" ({spec.kind.name.lower()}); make it a constant of the model"
            )
        dtype = self.dtype(f"input {node.name!r}", example)
        shape = tuple(self.number(size) for size in example.shape)
        if node.name in self.given.values:
            value = self.given.value(node.name, dtype, shape)
            tensor = Tensor.constant(node.name, value)
        else:
            tensor = Tensor(node.name, shape, dtype)
        self.hold(node, tensor)
        return [] if tensor.is_constant else [node.name]

    def hold(self, node: Any, tensor: Tensor) -> None:
        """Let a node's value be a tensor that no node of the graph computes."""
        self.graph.define(tensor)
        self.values[node] = tensor

    def bind(self, specs: Mapping[str, Any]) -> dict[str, Declared]:
        """Give every symbol a size; returns the sizes of the inputs as the program has them."""
        declared: dict[str, Declared] = {}
        symbols: dict[str, Any] = {}
        for node in self.program.graph.nodes:
            example = node.meta.get("val")
            user = node.op == "placeholder" and specs[node.name].kind == InputKind.USER_INPUT
            if not user or not isinstance(example, torch.Tensor):
                continue
            found = [s.node.expr if _is_symbolic(s) else int(s) for s in example.shape]
            symbols |= {str(s): s for s in found if getattr(s, "is_Symbol", False)}
            # A size that is computed of others is known when they are.
            declared[node.name] = [s if isinstance(s, int) else str(s) for s in found]
        self.given.check_values([*declared])
        computed = {s: 1 for sizes in declared.values() for s in sizes if str(s) not in symbols}
        shapes = self.given.resolve(declared, {str(s): n for s, n in computed.items()})
        for name, sizes in declared.items():
            for size, number in zip(sizes, shapes[name], strict=True):
                symbol = symbols.get(str(size))
                if symbol is not None:
                    self._allow(name, symbol, number)
        return {n: sizes for n, sizes in declared.items() if n not in self.given.values}

    def _allow(self, name: str, symbol: Any, size: int) -> None:
        allowed = self.program.range_constraints.get(symbol)
        if allowed is not None and not allowed.lower <= size <= allowed.upper:
            raise VdlaError(
                f"input {name!r}: expected {allowed.lower} to {allowed.upper} for dimension"
                f" {str(symbol)!r}, got {size}"
            )
        self.sizes[symbol] = size

    def stored(self, spec: Any) -> np.ndarray:
        """The value of a parameter, a buffer or a constant."""
        store = self.program.state_dict
        if spec.target not in store:
            store = self.program.constants
        what = f"constant {spec.target!r}"
        data = store[spec.target]
        dtype = self.dtype(what, data)
        try:
            return data.detach().cpu().contiguous().numpy().astype(dtype)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise VdlaError(f"{what}: expected values, got none: {_line(error)}") from None

    def next(self, spec: Any) -> str:
        """The value of a state after a run, a tensor of its own."""
        source, name = self.output(spec), f"{self.states[spec.target][0]}.next"
        self.graph.define(replace(self.graph.tensors[source], name=name, data=None, quant=None))
        self.graph.nodes.append(Node(name, Identity(), (source,), name))
        return name

    def output(self, spec: Any) -> str:
        check_output(spec)
        by_name = {node.name: value for node, value in self.values.items()}
        value = by_name.get(getattr(spec.arg, "name", ""))
        if not isinstance(value, Tensor):
            raise VdlaError(f"expected tensors as outputs, got {spec.arg}")
        return value.name

    def dtype(self, what: str, tensor: Any) -> str:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise VdlaError(f"{what} has type {name}, supported are {', '.join(DTYPES)}")
        return name

    def number(self, value: Any) -> int:
        """A size, its symbols replaced."""
        if not _is_symbolic(value):
            return int(value)
        expression = value.node.expr.subs(self.sizes)
        if expression.free_symbols:
            raise VdlaError(f"expected sizes that shapes decide, got {value}, which values decide")
        return int(expression)

    # ---- nodes ----

    def call(self, node: Any) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            self.values[node] = self.item(node, self.values[source], index)
            return
        example = node.meta.get("val")
        if example is None or isinstance(example, torch.SymInt | torch.SymBool | int):
            return  # an assertion, or arithmetic with sizes, which its readers evaluate
        label = _label(node)
        packet = str(node.target).rpartition(".")[0]
        reader = READERS.get(packet)
        if reader is None:
            nearest = difflib.get_close_matches(packet, READERS, NEAREST, cutoff=0.0)
            raise VdlaError(
                f"{label}: the operator is not supported; of the {len(READERS)} that are, these"
                f" have the nearest names: {', '.join(nearest)}"
            )
        try:
            results = [self.type_of(value) for value in _flat(example)]
            call = Call(node.name, self.arguments(node), results, self.graph, OPSETS[-1])
            value = reader(call)
        except VdlaError as error:
            raise VdlaError(f"{label}: {error}") from None
        if isinstance(value, Tensor):
            value = call.named(value)
            if (value.shape, value.dtype) != results[0]:
                raise AssertionError(f"{label}: expected {results[0]}, read {value.type_text}")
        self.values[node] = value

    def item(self, node: Any, value: Value, index: int) -> Tensor:
        found = value[index] if isinstance(value, tuple) else None
        if found is None:
            raise VdlaError(f"{_label(node.args[0])}: output {index} is not supported")
        return found

    def arguments(self, node: Any) -> dict[str, Any]:
        """Every argument of the operator by its name, including those that were left out."""
        schema = node.target._schema.arguments
        given = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
        defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
        given = {a.name: None for a in schema} | defaults | given
        return {name: self.argument(value) for name, value in given.items()}

    def argument(self, value: Any) -> Any:
        match value:
            case torch.fx.Node() if value in self.values:
                return self.values[value]
            case torch.fx.Node():
                return self.number(value.meta["val"])
            case torch.SymInt():
                return self.number(value)
            case list() | tuple():
                return [self.argument(v) for v in value]
            case torch.dtype():
                return str(value).removeprefix("torch.")
        return value

    def type_of(self, value: Any) -> tuple[tuple[int, ...], str]:
        return tuple(self.number(size) for size in value.shape), self.dtype("a result", value)


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt)


def _flat(example: Any) -> Iterator[Any]:
    for value in example if isinstance(example, list | tuple) else (example,):
        if isinstance(value, torch.Tensor):
            yield value


def _label(node: Any) -> str:
    """The node, its operator, and the line that called it, as far as the program says."""
    places = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [place for place in places if "/torch/" not in place[0]] or places
    where = f", {own[-1][0]}:{own[-1][1]}" if own else ""
    return f"node {node.name!r} ({node.target}{where})"
