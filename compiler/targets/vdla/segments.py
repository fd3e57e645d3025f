"""Where nodes run, in rows: the segments of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....isa.params import HwParams
from ...graph.ir import Graph, Node
from ...graph.ops.integer import QTable
from ...graph.ops.movement import Concat, Reshape
from .lowering import Product
from .table import most_pieces

#: A place and the nodes that run there before the place changes.
Row = tuple[str, tuple[Node, ...]]


def retarget(graph: Graph, params: HwParams) -> Graph:
    """Give the host what does not fit this accelerator's layout, with the reason."""
    nodes = []
    places: dict[str, str] = {}  # what lies where another tensor does, as it is another name for it
    parts: set[str] = set()  # what lies in a tensor that is concatenated
    for node in graph.nodes:
        concat = isinstance(node.op, Concat) and node.target == "accel"
        lie = [places.get(name, name) for name in node.inputs]
        reason = _misfit(graph, node, params) if node.target == "accel" else ""
        if concat:
            reason = reason or _apart(graph, node, params, lie, parts)
        if concat and not reason:
            parts |= {*lie}
        if isinstance(node.op, Reshape) and node.target == "accel" and not reason:
            places[node.output] = lie[0]
        nodes.append(replace(node, target="cpu", reason=reason) if reason else node)
    return graph.with_nodes(nodes)


def _apart(graph: Graph, node: Node, params: HwParams, lie: Sequence[str], parts: set[str]) -> str:
    """Why operands, which ``lie`` there, cannot lie one behind another in the result."""
    odd = [t.shape[1] for t in graph.operands(node)[:-1] if t.shape[1] % params.block]
    if odd:
        return f"{odd[0]} channels are no whole blocks of {params.block}"
    again = [n for n, at in zip(node.inputs, lie, strict=True) if at in parts or lie.count(at) > 1]
    return f"operand {again[0]!r} is a part of another tensor already" if again else ""


def _misfit(graph: Graph, node: Node, params: HwParams) -> str:
    # Weights and biases of products are packed apart; everything else lies as an activation.
    packed = isinstance(node.op, Product)
    operands = graph.operands(node)[: 1 if packed else None]
    for tensor in (*operands, graph.result(node)):
        if len(tensor.shape) not in (2, 4):
            return f"{len(tensor.shape)} dimensions, the accelerator's layout has 2 or 4"
        if tensor.shape[0] > params.batch:
            return f"{tensor.shape[0]} images at a time, the configuration has batch {params.batch}"
        if tensor.is_constant:
            return "a constant operand"
    if isinstance(node.op, QTable) and node.op.bends:
        pieces, room = len(node.op.bends.knots), most_pieces(params)
        if pieces > room:
            return f"a line of {pieces} pieces, the configuration has room for {room}"
    return ""


def split(graph: Graph) -> list[Row]:
    """Rows of nodes, the host's first, as few as the graph's order of data allows.

    After the first row on the accelerator, another one must hold a convolution or a dense layer:
    for less it is not worth to change places, and the nodes go to the host.
    """
    targets = {node.output: node.target for node in graph.nodes}
    while True:
        rows = _rows(graph, targets)
        accelerated = [nodes for target, nodes in rows if target == "accel"]
        small = [
            nodes
            for nodes in accelerated[1:]
            if not any(isinstance(node.op, Product) for node in nodes)
        ]
        if not small:
            return rows
        targets |= {node.output: "cpu" for nodes in small for node in nodes}


def _rows(graph: Graph, targets: dict[str, str]) -> list[Row]:
    """Greedily: all that can run on the host, then on the accelerator, and so on."""
    waiting = list(graph.nodes)
    missing = {node.output for node in waiting}
    rows: list[Row] = []
    place = "cpu"
    while waiting:
        row = []
        for node in waiting:
            if targets[node.output] == place and not missing & set(node.inputs):
                row.append(node)
                missing.discard(node.output)
        if row:
            rows.append((place, tuple(row)))
        waiting = [node for node in waiting if node.output in missing]
        place = "accel" if place == "cpu" else "cpu"
    return rows
