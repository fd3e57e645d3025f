"""The order of ONNX nodes: each node after the nodes whose results it reads.

ONNX requires it of graphs, subgraphs and functions; edited or merged files often lack it.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import onnx

from ....isa.errors import VdlaError

#: The most nodes of a circle that a message names.
NAMED = 6
Body = onnx.GraphProto | onnx.FunctionProto


def in_order(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The model itself where all its nodes are in order, else a copy in which they are.

    A name that nothing defines is left for the importer to refuse.

    Raises
    ------
    VdlaError
        When nodes read each other's results in a circle, naming them.
    """
    if all(_order(body, where) is None for body in _bodies(model)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for body in _bodies(copy):
        order = _order(body, where)
        if order is not None:
            nodes = [body.node[place] for place in order]
            del body.node[:]
            body.node.extend(nodes)
    return copy


def _bodies(model: onnx.ModelProto) -> Iterator[Body]:
    """All graphs and functions; graphs inside of nodes come before those around them."""
    for body in (model.graph, *model.functions):
        for node in body.node:
            yield from _inside(node)
        yield body


def _inside(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for graph in _subgraphs(node):
        for inner in graph.node:
            yield from _inside(inner)
        yield graph


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _order(body: Body, where: str) -> list[int] | None:
    """The places of the nodes in order; None if that is their order already."""
    given = _given(body)
    makers: dict[str, int] = {}
    for place, node in enumerate(body.node):
        for name in node.output:
            if name not in given:
                makers.setdefault(name, place)
    needed = {
        place: [makers[name] for name in _reads(node) if name in makers]
        for place, node in enumerate(body.node)
    }
    if all(maker < place for place, found in needed.items() for maker in found):
        return None
    try:
        return [*TopologicalSorter(needed).static_order()]
    except CycleError as error:
        circle = [body.node[place] for place in error.args[1]]
    names = [f"{node.name!r} ({node.op_type})" for node in circle]
    if len(names) > NAMED:
        names[NAMED - 1 : -1] = [f"{len(names) - NAMED} more"]
    raise VdlaError(
        f"{where}: expected nodes that can be put in order, got a circle, in which each reads what"
        f" the one before makes: {' -> '.join(names)}"
    ) from None


def _given(body: Body) -> set[str]:
    """Names that exist before any node; the empty name of an absent operand is one."""
    if isinstance(body, onnx.FunctionProto):
        return {"", *body.input}
    constants = [*body.initializer, *(sparse.values for sparse in body.sparse_initializer)]
    return {"", *(value.name for value in (*body.input, *constants))}


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads; its subgraphs may read those of the graph around them."""
    names = {*node.input}
    for graph in _subgraphs(node):
        own = _given(graph) | {name for inner in graph.node for name in inner.output}
        names |= {name for inner in graph.node for name in _reads(inner)} - own
        names |= {value.name for value in graph.output} - own
    return names
