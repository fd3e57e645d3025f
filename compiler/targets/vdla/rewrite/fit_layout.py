"""Move nodes that do not fit the accelerator's layout to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .....isa.params import HwParams
from ....graph.ir import Graph, Node
from ....graph.ops.integer import QAdd
from ....graph.ops.movement import Concat, Reshape
from ....graph.ops.softmax import QTableSoftmax
from ..machine import ACCELERATOR, HOST


def fit_layout(graph: Graph, params: HwParams) -> Graph:
    """Move nodes whose tensors the accelerator cannot hold to the host, with the reason."""
    nodes = []
    homes: dict[str, str] = {}  # for the result of a reshape, the tensor that it shares memory with
    parts: set[str] = set()  # tensors that lie in the result of a concatenation of channels
    for node in graph.nodes:
        concat = node.op == Concat(1) and node.target == ACCELERATOR
        lie = [homes.get(name, name) for name in node.inputs]
        reason = _misfit(graph, node, params) if node.target == ACCELERATOR else ""
        if concat:
            reason = reason or _apart(graph, node, params, lie, parts)
        if concat and not reason:
            parts |= {*lie}
        if isinstance(node.op, Reshape) and node.target == ACCELERATOR and not reason:
            homes[node.output] = lie[0]
        nodes.append(replace(node, target=HOST, reason=reason) if reason else node)
    return graph.with_nodes(nodes)


def _apart(graph: Graph, node: Node, params: HwParams, lie: Sequence[str], parts: set[str]) -> str:
    """Why the operands of a concatenation cannot lie one behind another in its result, or an empty
    string. ``lie`` names the tensors that hold the operands.
    """
    odd = [t.shape[1] for t in graph.operands(node)[:-1] if t.shape[1] % params.block]
    if odd:
        return f"{odd[0]} channels are no whole blocks of {params.block}"
    again = [n for n, at in zip(node.inputs, lie, strict=True) if at in parts or lie.count(at) > 1]
    return f"operand {again[0]!r} is a part of another tensor already" if again else ""


def _misfit(graph: Graph, node: Node, params: HwParams) -> str:
    # Templates lay out weights and biases of products, and masks; constant addends are laid out
    # where the program is linked. All else has the layout of activations.
    first, *others = graph.operands(node)
    if graph.macs(node) or isinstance(node.op, QTableSoftmax | QAdd):
        others = [tensor for tensor in others if not tensor.is_constant]
    for tensor in (first, *others, graph.result(node)):
        if len(tensor.shape) not in (2, 4):
            return f"{len(tensor.shape)} dimensions, the accelerator's layout has 2 or 4"
        if tensor.shape[0] > params.batch:
            return f"{tensor.shape[0]} images at a time, the configuration has batch {params.batch}"
        if tensor.is_constant:
            return "a constant operand"
    return ""
