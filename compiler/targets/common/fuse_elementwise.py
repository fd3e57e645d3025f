"""Chains of element-wise operators become one operator, which passes over memory once.

::

    a = Dequantize(x)
    b = Relu(a)              ->      y = Dequantize+Relu+Quantize(x)
    y = Quantize(b)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...graph.ir import Graph, Node
from ...graph.ops.base import Fusion, Op
from ...graph.ops.fused import Fused, FusedParts

#: Whether a node that can be fused with its reader should be.
Joins = Callable[[Graph, Node], bool]


def fuse_elementwise(
    graph: Graph, joins: Joins = lambda graph, node: True, parts: tuple[type[Op], ...] = ()
) -> Graph:
    """Fuse element-wise operators on tensors of one shape into one
    :class:`~....graph.ops.fused.Fused`, where no other operator reads the results between them.
    ``parts`` are operators that take parts of tensors, which may be the first ones of those.

    It takes the place and the name of the last operator, whose result is the only one that is
    stored.
    """

    def fits(node: Node, readers: Sequence[Node], end: str) -> bool:
        shape = graph[node.output].shape
        alike = graph[end].shape == shape and 0 not in shape
        return (
            alike
            and (is_elementwise(node) or isinstance(node.op, parts))
            and all(map(is_elementwise, readers))
            and joins(graph, node)
        )

    def make(members: Sequence[Node]) -> Sequence[Node]:
        return [one_node(members, Fused if all(map(is_elementwise, members)) else FusedParts)]

    return fuse_groups(graph, fits, make)


def fuse_groups(
    graph: Graph,
    fits: Callable[[Node, Sequence[Node], str], bool],
    make: Callable[[Sequence[Node]], Sequence[Node]],
) -> Graph:
    """Fuse nodes with those that read them. ``fits`` says whether a node may be in the group of its
    readers, by them and the group's result; ``make`` gives the nodes that take the place of a
    group's last one."""
    ends = _ends(graph, fits)
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(ends[node.output], []).append(node)
    nodes = [n for node in graph.nodes if node.output in groups for n in make(groups[node.output])]
    gone = {node.output for node in graph.nodes} - {node.output for node in nodes}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in gone}
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def _ends(graph: Graph, fits: Callable[[Node, Sequence[Node], str], bool]) -> dict[str, str]:
    """For the result of every node, the result of the last node that it is fused with."""
    readers, ends = graph.consumers(), dict[str, str]()
    for node in reversed(graph.nodes):
        name = node.output
        ends[name] = name
        following = {ends[reader.output] for reader in readers[name]}
        if len(following) != 1 or name in graph.outputs:
            continue
        [end] = following
        if fits(node, readers[name], end):
            ends[name] = end
    return ends


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node's result needs elements in its place only."""
    return node.op.fusion is Fusion.ELEMENTWISE


def one_node(members: Sequence[Node], kind: type[Fused], first: Sequence[str] = ()) -> Node:
    """One node for all members, in the place of the last one. Its operands begin with ``first``."""
    *before, last = members
    if not before and not first:
        return last
    made = {node.output for node in members}
    read = dict.fromkeys(first)
    read |= dict.fromkeys(name for node in members for name in node.inputs if name not in made)
    numbers = {name: number for number, name in enumerate((*read, *(n.output for n in members)))}
    reads = tuple(tuple(numbers[name] for name in node.inputs) for node in members)
    op = kind(len(read), tuple(node.op for node in members), reads)
    return replace(last, op=op, inputs=tuple(read))
