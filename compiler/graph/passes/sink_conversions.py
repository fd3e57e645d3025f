"""Convert after operators that move elements, so that these move integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir import Graph, Node, Tensor, infer
from ..ops.base import Op
from ..ops.movement import Concat, Reshape, Transpose
from ..ops.quantisation import Dequantize, Quant, Quantize, Recentre


def sink_conversions(graph: Graph) -> Graph:
    """``Transpose(Dequantize(x))`` becomes ``Dequantize(Transpose(x))``. So it is with other
    operators that move elements, with Recentre, and with a Concat of operands that are all
    converted alike.

    A Quantize or Recentre that undoes the conversion is dropped: its result is the moved tensor.
    Moved constants are computed.
    """
    producers = graph.producers()
    undoing = {n.inputs[0]: n for n in graph.nodes if isinstance(n.op, Quantize | Recentre)}
    undone: set[str] = set()
    nodes: list[Node] = []
    tensors: dict[str, Tensor] = {}
    for node in graph.nodes:
        if node.output in undone:
            continue
        count = len(node.inputs) if isinstance(node.op, Concat) else 1
        before = [producers.get(name) for name in node.inputs[:count]]
        conversion = _common(before) if (node.op.moves or isinstance(node.op, Concat)) else None
        if conversion is not None:
            conversion = _moved(conversion, node.op, graph[node.inputs[0]])
        if conversion is None:
            nodes.append(node)
            continue
        sources = [source.inputs[0] for source in before if source]
        inputs = (*sources, *node.inputs[count:])
        stored = _stored(graph, tensors, node, inputs)
        if not stored.is_constant:
            last = undoing.get(node.output)
            if last and _undoes(last.op, conversion):
                stored = graph.result(last)
                undone.add(last.output)
            nodes.append(replace(node, inputs=inputs, output=stored.name))
        tensors[stored.name] = stored
        last = Node(f"{node.name}.converted", conversion, (stored.name,), node.output)
        producers[node.output] = last
        nodes.append(last)
    return graph.with_nodes(nodes, *tensors.values())


def _common(sources: list[Node | None]) -> Op | None:
    """The conversion that computes all of these operands, if there is one."""
    ops = [source.op if source else None for source in sources]
    match ops[0]:
        case Recentre() if all(isinstance(op, Recentre) for op in ops):
            return ops[0]
        case Dequantize(quant):
            alike = all(isinstance(op, Dequantize) and op.quant.same(quant) for op in ops)
            return ops[0] if alike else None
    return None


def _undoes(last: Op, conversion: Op) -> bool:
    match last, conversion:
        case Quantize(), Dequantize():
            return last.quant.same(conversion.quant)
    return isinstance(last, Recentre) and isinstance(conversion, Recentre)


def _moved(conversion: Op, op: Op, x: Tensor) -> Op | None:
    """The conversion of the moved tensor. Scales per channel follow their axis; None if that is not
    possible.
    """
    axis = conversion.quant.axis if isinstance(conversion, Dequantize) else None
    if not isinstance(conversion, Dequantize) or axis is None:
        return conversion
    quant: Quant = conversion.quant
    match op:
        case Transpose(order):
            return Dequantize(replace(quant, axis=order.index(axis)))
        case Reshape(shape) if shape[: axis + 1] == x.shape[: axis + 1]:
            return conversion
    return None


def _stored(graph: Graph, made: dict[str, Tensor], node: Node, inputs: tuple[str, ...]) -> Tensor:
    """The tensor of moved integers: a constant where all operands are."""
    name = f"{node.output}.stored"
    while name in graph.tensors:
        name += "'"
    operands = [made.get(i) or graph[i] for i in inputs]
    if all(operand.data is not None for operand in operands):
        data = node.op.evaluate(*(t.data for t in operands if t.data is not None))
        return Tensor.constant(name, np.ascontiguousarray(data))
    shape, dtype = infer(node.op, tuple(operands), node.name)
    return Tensor(name, shape, dtype)
