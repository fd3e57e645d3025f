"""The interpreter of graphs: what every node means, in NumPy. It is the oracle of all targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...isa.errors import VdlaError
from .ir import Graph


def interpret(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    """The graph's outputs for its inputs, in the graph's order; those of the first run, where it
    has states. Errors as :func:`evaluate`.
    """
    (outputs,) = interpret_runs(graph, inputs)
    return outputs


def interpret_runs(graph: Graph, *runs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """The outputs of runs one after the other: each begins with the states that the one before it
    left. Errors as :func:`evaluate`.
    """
    held, found = {before: value for before, _, value in graph.state_values}, []
    for inputs in runs:
        if len(inputs) != len(graph.given):
            raise VdlaError(
                f"graph {graph.name}: expected {len(graph.given)} inputs, got {len(inputs)}"
            )
        values = evaluate(graph, {**dict(zip(graph.given, inputs, strict=True)), **held})
        held = {before: values[after] for before, after, _ in graph.state_values}
        found.append([values[name] for name in graph.results])
    return found


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor's value by name, constants included.

    Raises
    ------
    VdlaError
        When an input is missing or has another shape or dtype than the graph declares.
    """
    values = {t.name: t.data for t in graph.tensors.values() if t.data is not None}
    for name in graph.inputs:
        tensor, value = graph[name], inputs.get(name)
        if value is None:
            raise VdlaError(f"graph {graph.name}: input {name!r} is missing, got {sorted(inputs)}")
        if value.shape != tensor.shape or str(value.dtype) != tensor.dtype:
            raise VdlaError(
                f"graph {graph.name}: input {name!r} expects {tensor.type_text},"
                f" got {value.dtype}{list(value.shape)}"
            )
        values[name] = value
    for node in graph.nodes:
        values[node.output] = node.op.evaluate(*(values[name] for name in node.inputs))
    return values
