"""The interpreter of graphs: what every node means, in NumPy. It is the oracle of all targets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...isa.errors import VdlaError
from .ir import Graph


def interpret(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    """The graph's outputs for its inputs, in the graph's order; errors as :func:`evaluate`."""
    if len(inputs) != len(graph.inputs):
        raise VdlaError(
            f"graph {graph.name}: expected {len(graph.inputs)} inputs, got {len(inputs)}"
        )
    values = evaluate(graph, dict(zip(graph.inputs, inputs, strict=True)))
    return [values[name] for name in graph.outputs]


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
