"""Merge nodes that compute the same, and constants that are equal."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass, replace

import numpy as np

from ...te.expr import Var, substitute
from ..ir import Graph, Node
from ..ops.elementwise import Map


def common_subexpressions(graph: Graph) -> Graph:
    """Remove each node with the operator and the operands of an earlier one; its readers read the
    earlier result. Outputs of the graph keep their names, so a node that computes one stays.
    """
    renamed: dict[str, str] = {}
    constants: dict[Hashable, str] = {}
    for tensor in graph.tensors.values():
        if tensor.data is not None and tensor.name not in graph.outputs:
            key = meaning(tensor.data), meaning(tensor.quant)
            first = constants.setdefault(key, tensor.name)
            if first != tensor.name:
                renamed[tensor.name] = first
    nodes: list[Node] = []
    computed: dict[Hashable, str] = {}
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        key = (meaning(node.op), node.inputs)
        if key in computed and node.output not in graph.outputs:
            renamed[node.output] = computed[key]
        else:
            computed.setdefault(key, node.output)
            nodes.append(node)
    gone = {name for name in renamed if graph[name].is_constant}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in gone}
    return replace(graph, tensors=tensors).with_nodes(nodes)


def meaning(value: object) -> Hashable:
    """A key that is equal for operators, or attributes, that compute the same."""
    match value:
        case np.ndarray():
            return value.dtype.str, value.shape, value.tobytes()
        case Map(_, args, body):
            # Variables are known by their places; their own names and the label mean nothing.
            places = {arg: Var(f"x{i}", arg.dtype) for i, arg in enumerate(args)}
            return Map, tuple(arg.dtype for arg in args), repr(substitute(body, places))
        case tuple():
            return tuple(meaning(item) for item in value)
        case _ if is_dataclass(value):
            return type(value), tuple(meaning(getattr(value, f.name)) for f in fields(value))
        case _:
            return repr(value)  # which tells 0.0 from -0.0, and 1 from True
