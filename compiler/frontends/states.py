"""States that the caller names: inputs of a model that are outputs of its last run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ...isa.errors import VdlaError
from ..graph.ir import Graph


def with_states(
    graph: Graph,
    states: Mapping[str, str],
    initial: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Graph:
    """The graph in which each of these inputs is the named output of the run before; before the
    first one it has its initial value, or zeros.

    Raises
    ------
    VdlaError
        For names that the graph lacks, an output that is named twice, and one of another shape or
        dtype than its input, as an initial value may not be either.
    """
    used: set[str] = set()
    for before, after in states.items():
        for kind, name, known in (
            ("input", before, graph.given), ("output", after, graph.results)
        ):  # fmt: skip
            if name not in known:
                names = ", ".join(known) or "none"
                raise VdlaError(f"states: expected an {kind} of the model ({names}), got {name!r}")
        if after in used:
            raise VdlaError(f"states: expected another output for {before!r}, got {after!r} again")
        used.add(after)
        if graph[before].type_text != graph[after].type_text:
            raise VdlaError(
                f"states: expected an output like {before!r}, {graph[before].type_text}, got"
                f" {after!r}, {graph[after].type_text}"
            )
    for name, value in initial.items():
        if name not in states:
            known = ", ".join(states) or "none"
            raise VdlaError(f"initial: expected names of states ({known}), got {name!r}")
        found, wanted = np.asarray(value), graph[name]
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise VdlaError(
                f"initial: expected {wanted.type_text} of {name!r}, got {found.dtype}"
                f" {[*found.shape]}"
            )
    if not states:
        return graph
    first = {b: np.zeros(graph[b].shape, graph[b].dtype) for b in states} | {**initial}
    own = [(b, a, first[b]) for b, a in states.items()]
    before, after, values = zip(*own, *graph.state_values, strict=True)
    given = [name for name in graph.given if name not in states]
    results = [name for name in graph.results if name not in used]
    if not results:
        raise VdlaError("states: expected an output besides the states, got none")
    symbols = {name: sizes for name, sizes in graph.symbols.items() if name not in states}
    return replace(
        graph, inputs=(*given, *before), outputs=(*results, *after), states=values, symbols=symbols
    )
