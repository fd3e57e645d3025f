"""The verifier of graphs; it runs after the import and after every pass."""

from __future__ import annotations

from ...isa.errors import VdlaError
from .ir import Graph, Tensor, infer


def verify(graph: Graph, before: Graph | None = None) -> None:
    """Check the graph's structure and recompute every node's result type. What is as it was in a
    graph ``before`` that was verified is not computed again.

    Raises
    ------
    VdlaError
        Naming the node or tensor that is defined twice, used before its definition, or has another
        type than its operator gives.
    """
    old = {} if before is None else before.tensors
    made_by = {} if before is None else before.producers()
    ready = set(graph.inputs)
    for name, tensor in graph.tensors.items():
        if name != tensor.name:
            raise VdlaError(f"graph {graph.name}: tensor {tensor.name!r} is filed under {name!r}")
        if tensor.data is not None:
            ready.add(name)
            if old.get(name) is tensor:
                continue
            if tensor.data.shape != tensor.shape or str(tensor.data.dtype) != tensor.dtype:
                raise VdlaError(
                    f"graph {graph.name}: constant {name!r} is declared {tensor.type_text}"
                    f" but holds {tensor.data.dtype}{list(tensor.data.shape)}"
                )
    for node in graph.nodes:
        for name in node.inputs:
            if name not in ready:
                raise VdlaError(f"node {node.name!r}: input {name!r} is not defined before it")
        if node.output in ready:
            raise VdlaError(f"node {node.name!r}: its output {node.output!r} is defined before")
        ready.add(node.output)
        like = made_by.get(node.output)
        if like is not None and like.op is node.op and like.inputs == node.inputs:
            around = (*node.inputs, node.output)
            if all(graph.tensors[name] is old[name] for name in around):
                continue
        shape, dtype = infer(node.op, graph.operands(node), node.name)
        result = graph[node.output]
        if (result.shape, result.dtype) != (shape, dtype):
            raise VdlaError(
                f"node {node.name!r}: {type(node.op).__name__} gives {dtype}{list(shape)},"
                f" but {result.name!r} is declared {result.type_text}"
            )
    for name in graph.outputs:
        if name not in ready:
            raise VdlaError(f"graph {graph.name}: output {name!r} is not computed")
    for before, after, value in graph.state_values:
        tensors = graph[before], graph[after], Tensor.constant(before, value)
        types = sorted({tensor.type_text for tensor in tensors})
        if len(types) > 1:
            raise VdlaError(
                f"graph {graph.name}: state {before!r} has several types: {', '.join(types)}"
            )
