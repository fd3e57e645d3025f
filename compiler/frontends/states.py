"""States that the caller names: inputs of a model that are outputs of its last run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ...isa.errors import VdlaError
from ..graph.ir import Graph, Node
from ..graph.ops.movement import Concat, Identity, Slice
from ..graph.ops.quantisation import Dequantize, Quantize


def with_states(
    graph: Graph,
    states: Mapping[str, str],
    initial: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Graph:
    """The graph in which each of these inputs is the named output of the run before; before the
    first one it has its initial value, or zeros. Of an output that is the input with places added
    behind it, as decoders' caches are, the last ones are kept, as many as the input has.

    Raises
    ------
    VdlaError
        For names that the graph lacks, an output that is named twice, one of another shape or
        dtype than its input to which not only places are added, places that are added at unknown
        positions, and an initial value of another shape or dtype.
    """
    used: set[str] = set()
    grown = _Grown(graph)
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
            grown.keep_last(before, after)
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
    grown.expect_positions(states)
    graph = grown.graph
    first = {b: np.zeros(graph[b].shape, graph[b].dtype) for b in states} | {**initial}
    own = [(b, grown.kept.get(a, a), first[b]) for b, a in states.items()]
    before, after, values = zip(*own, *graph.state_values, strict=True)
    given = [name for name in graph.given if name not in states]
    results = [name for name in graph.results if name not in used]
    if not results:
        raise VdlaError("states: expected an output besides the states, got none")
    symbols = {name: sizes for name, sizes in graph.symbols.items() if name not in states}
    return replace(
        graph, inputs=(*given, *before), outputs=(*results, *after), states=values, symbols=symbols
    )


class _Grown:
    """A graph in which states that become longer keep their last places.

    Attributes
    ----------
    kept : by output, the tensor of its last places
    new : by input, the tensors that are added behind it
    """

    def __init__(self, graph: Graph):
        self.graph, self.producers = graph, graph.producers()
        self.kept: dict[str, str] = {}
        self.new: dict[str, tuple[str, ...]] = {}

    def keep_last(self, before: str, after: str) -> None:
        """Add what keeps the last places of an output: of its integers, if it is dequantised."""
        graph, joined = self.graph, self.producers.get(self.origin(after))
        adds = joined is not None and isinstance(joined.op, Concat)
        if joined is None or not adds or self.origin(joined.inputs[0]) != before:
            raise VdlaError(
                f"states: expected an output like {before!r}, {graph[before].type_text}, or that"
                f" with places added behind it, got {after!r}, {graph[after].type_text}"
            )
        self.new[before] = joined.inputs[1:]
        last, name, size = self.producers[after], f"{after}.last", graph[before].shape
        whole = last.inputs[0] if isinstance(last.op, Dequantize) else after
        starts = tuple(n - m for n, m in zip(graph[whole].shape, size, strict=True))
        nodes = [Node(name, Slice(starts, (1,) * len(size), size), (whole,), name)]
        if whole != after:
            nodes.append(Node(f"{name}.real", last.op, (name,), f"{name}.real"))
        made = [
            replace(graph[like], name=node.output, shape=size)
            for node, like in zip(nodes, (whole, after), strict=False)
        ]
        self.graph = graph.with_nodes((*graph.nodes, *nodes), *made)
        self.kept[after] = nodes[-1].output

    def origin(self, name: str) -> str:
        """The tensor that one has the numbers of, but for quantisation."""
        while (node := self.producers.get(name)) is not None:
            if not isinstance(node.op, Identity | Quantize | Dequantize):
                break
            name = node.inputs[0]
        return name

    def expect_positions(self, states: Collection[str]) -> None:
        """Refuse places of which those of the first layer depend on one input, the tokens: the
        model would take these for the same tokens of the sequence in all runs, as many behind its
        begin as the state has places.

        Raises
        ------
        VdlaError
            Naming that input.
        """
        read = {before: self.inputs(new) for before, new in self.new.items()}
        first = {before: names for before, names in read.items() if names.isdisjoint(states)}
        if first and all(len(names) < 2 for names in first.values()):
            before, names = next(iter(first.items()))
            raise VdlaError(
                f"states: expected that what is added to {before!r} depends on positions of tokens,"
                f" as an input of the model, got only {', '.join(names) or 'constants'}"
            )

    def inputs(self, names: Iterable[str]) -> set[str]:
        """The inputs of the graph that tensors depend on."""
        open_, seen = [*names], set[str]()
        while open_:
            name = open_.pop()
            if name not in seen:
                seen.add(name)
                open_ += self.producers[name].inputs if name in self.producers else ()
        return seen.intersection(self.graph.given)
