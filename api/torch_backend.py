"""The backend of ``torch.compile``: ``torch.compile(model, backend="vdla")``.

torch cuts a model into graphs and calls :func:`compile_graph` for each. Parameters and buffers are
constants of the compiled module, as in a program of ``torch.export``, so that both compute the same
bits; when torch counts a change of one, the graph is compiled again. So it is for every set of
shapes, and for every value of an argument that is a number. Results have no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from ..compiler.frontends.doors.torch_module import export_module
from ..isa.errors import VdlaError
from ..module import Module, compile


def compile_graph(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> CompiledGraph:
    """Compile a graph of ``torch.compile``; pyproject.toml names this function to torch.

    Parameters
    ----------
    graph
        A ``torch.fx.GraphModule``.
    example_inputs
        Its arguments: tensors, with parameters and buffers among them, and symbols of sizes.
    options
        Arguments of :func:`vdla.compile`, such as ``{"threads": 2}``; the target is ``cpu`` unless
        they name another one.

    Raises
    ------
    VdlaError
        For what cannot be compiled. torch passes it on as its BackendCompilerFailed, or runs the
        graph itself where ``torch._dynamo.config.suppress_errors`` says so. A graph of several
        sets of shapes is compiled, and refused, when it is called.
    """
    fixed = [
        isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
        for value in example_inputs
    ]
    compiled = CompiledGraph(graph, fixed, {"target": "cpu", **(options or {})})
    symbols = torch.SymInt | torch.SymFloat | torch.SymBool
    if not any(isinstance(value, symbols) for value in example_inputs):
        compiled.prepare(example_inputs)
    return compiled


class CompiledGraph:
    """A graph of ``torch.compile`` with one compiled module for each set of shapes."""

    def __init__(self, graph: Any, fixed: Sequence[bool], options: Mapping[str, Any]) -> None:
        self.graph, self.fixed, self.options = graph, fixed, options
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.numbers = [
            _is_number(node) and not constant for node, constant in zip(inputs, fixed, strict=True)
        ]
        self._constants: list[tuple[int, int]] = []
        self._compiled: dict[tuple[Any, ...], _Compiled] = {}

    def __call__(self, *values: Any) -> list[Any]:
        """The graph's results, by machine code."""
        compiled = self.prepare(values)
        return compiled.run([v for v in self._given(self._known(values)) if _is_tensor(v)])

    def prepare(self, values: Sequence[Any]) -> _Compiled:
        """The module for arguments of such shapes, compiled if there is none."""
        values = self._known(values)
        constants = [_state(v) for v, fixed in zip(values, self.fixed, strict=True) if fixed]
        if constants != self._constants:
            self._compiled.clear()
            self._constants = constants
        key = tuple(
            (v.shape, v.dtype, v.device) if _is_tensor(v) else v for v in self._given(values)
        )
        if key not in self._compiled:
            self._compiled[key] = _Compiled(self.graph, values, self.fixed, self.options)
        return self._compiled[key]

    def _known(self, values: Sequence[Any]) -> list[Any]:
        """The arguments, with a number in place of each tensor that torch makes of one."""
        return [
            Number(v.item()) if number else v
            for v, number in zip(values, self.numbers, strict=True)
        ]

    def _given(self, values: Sequence[Any]) -> list[Any]:
        """The arguments that are no parameters."""
        return [v for v, fixed in zip(values, self.fixed, strict=True) if not fixed]


@dataclass(frozen=True)
class Number:
    """An argument that is a Python number, of which a graph only asks for its value."""

    value: float

    def item(self) -> float:
        """As the method of a tensor."""
        return self.value


class _Bound(torch.nn.Module):
    """A graph whose parameters and sizes are constants: it takes and returns tensors alone, and
    tells ``note`` all that the graph returns, with None in place of each tensor.
    """

    def __init__(
        self,
        graph: Any,
        values: Sequence[Any],
        fixed: Sequence[bool],
        note: Callable[[list[Any]], None],
    ) -> None:
        super().__init__()
        self.graph, self.note = graph, note
        self._values: list[Any] = []
        for index, (value, constant) in enumerate(zip(values, fixed, strict=True)):
            name = f"constant_{index}"
            if constant:
                self.register_buffer(name, value.detach())
            self._values.append(name if constant else None if _is_tensor(value) else value)

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        given = iter(tensors)
        arguments = [
            next(given) if v is None else getattr(self, v) if isinstance(v, str) else v
            for v in self._values
        ]
        results = self.graph(*arguments)
        self.note([None if _is_tensor(result) else result for result in results])
        return tuple(result for result in results if _is_tensor(result))


class _Compiled:
    """A graph for arguments of certain shapes: the module, and where its results go."""

    def __init__(
        self, graph: Any, values: Sequence[Any], fixed: Sequence[bool], options: Mapping[str, Any]
    ) -> None:
        layouts: list[list[Any]] = []  # one for each time that torch traces the graph
        bound = _Bound(graph, values, fixed, layouts.append)
        given = [v for v, f in zip(values, fixed, strict=True) if not f and _is_tensor(v)]
        for tensor in given:
            if tensor.device.type != "cpu":
                raise VdlaError(f"expected tensors on the CPU, got one on {tensor.device}")
        program = export_module(bound, tuple(given))
        self.layout = layouts[-1]
        self.names = [n for n in program.graph_signature.user_inputs if isinstance(n, str)]
        self.module: Module = compile(program, **options)
        if self.module.compiled.states:
            raise VdlaError("the model changes its buffers, which torch would not see")

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        arrays = {
            name: tensor.detach().contiguous().numpy()
            for name, tensor in zip(self.names, tensors, strict=True)
        }
        results = iter(self.module.run(*(arrays[tensor.name] for tensor in self.module.inputs)))
        return [
            torch.from_numpy(np.array(next(results))) if value is None else value
            for value in self.layout
        ]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_number(node: Any) -> bool:
    """Whether an input is a tensor of which the graph only takes the number that is in it."""
    users = [(user.op, user.target) for user in node.users]
    return bool(users) and set(users) == {("call_method", "item")}


def _state(tensor: Any) -> tuple[int, int]:
    """Where a parameter lies, and how often it was changed there, as far as torch counts that."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
