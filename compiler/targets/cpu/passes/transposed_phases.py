"""A transposed convolution of integers as ordinary ones: one for each phase of its result.

::

                                           a, b = QConv2d(x, w0), QConv2d(x, w1)
    y = QConvTranspose2d(x, w), stride 2   c, d = QConv2d(x, w2), QConv2d(x, w3)
                                     ->    y = Interleave(a, b, c, d)

Places of the result whose numbers have the same remainders by the strides are a phase: they see the
same taps of the kernel, which has no zeros in between then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ....graph.ir import Graph, Node, Tensor, infer
from ....graph.ops.convolution import QConv2d, QConvTranspose2d
from ....graph.ops.layout import Interleave


def transposed_phases(graph: Graph) -> Graph:
    """The graph with a convolution for each phase, where the weights are known."""
    nodes, tensors = list[Node](), list[Tensor]()
    for node in graph.nodes:
        made = _in_phases(graph, node)
        nodes += [node] if made is None else made[0]
        tensors += [] if made is None else made[1]
    return graph.with_nodes(nodes, *tensors)


@dataclass(frozen=True)
class _Axis:
    """A phase along one axis: the taps that it sees, the last one first, and the padding before and
    behind the image."""

    taps: list[int]
    before: int
    behind: int


def _axes(image: int, kernel: int, stride: int, before: int, size: int) -> Iterator[_Axis]:
    """The phases of one axis, in the order of the result's first places."""
    for place in range(stride):
        taps = [*range((place + before) % stride, kernel, stride)][::-1]
        first = (place + before) // stride - (len(taps) - 1)  # of the image, for the first place
        results = len(range(place, size, stride))
        yield _Axis(taps, -first, first + results + len(taps) - 1 - image)


def _in_phases(graph: Graph, node: Node) -> tuple[list[Node], list[Tensor]] | None:
    """The nodes in the place of a node, and their tensors; None where there are none: a phase
    without a tap, or that does not see all of the image."""
    op = node.op
    if not isinstance(op, QConvTranspose2d):
        return None
    x, bias, result = graph[node.inputs[0]], node.inputs[2], graph.result(node)
    weight = graph[node.inputs[1]].data
    if weight is None or 0 in (*x.shape, *result.shape):
        return None
    rows, columns = (
        [*_axes(image, *rest)]
        for image, *rest in zip(
            x.shape[2:], weight.shape[2:], op.strides, op.before, op.size, strict=True
        )
    )
    if any(not axis.taps or min(axis.before, axis.behind) < 0 for axis in (*rows, *columns)):
        return None
    nodes, tensors = list[Node](), list[Tensor]()
    for number, (row, column) in enumerate(product(rows, columns)):
        name = f"{node.output}.phase{number}"
        taps = weight.swapaxes(0, 1)[:, :, row.taps][:, :, :, column.taps]
        known = Tensor.constant(f"{name}.weight", np.ascontiguousarray(taps))
        pads = (row.before, column.before, row.behind, column.behind)
        conv = QConv2d((1, 1), pads, (1, 1), 1, op.x_zero_point, op.requant)
        shape, dtype = infer(conv, (x, known, graph[bias]), name)
        tensors += [known, Tensor(name, shape, dtype)]
        nodes.append(Node(f"{node.name}.phase{number}", conv, (x.name, known.name, bias), name))
    turns = Interleave(*op.strides)
    return [*nodes, replace(node, op=turns, inputs=tuple(n.output for n in nodes))], tensors
