"""Turn the softmax of attention, between Dequantize and Quantize, into integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ...te.expr import Binary, Call, Const, Select, Var, select
from ..ir import Graph, Node, Tensor
from ..ops.base import Op
from ..ops.elementwise import Map
from ..ops.integer import QTable
from ..ops.linear import QMatMul
from ..ops.quantisation import Quantize
from ..ops.reduction import Reduce
from ..ops.softmax import MASKED, MOST_KEYS, MOST_ROOM, VISIBLE, QTableSoftmax
from .fuse_tables import is_int8
from .masks import NO_MASK, Condition, Scores, find_condition, find_scores, number

#: Scales of a result for which the inverse of a sum is exact enough, and which can be requantised.
OUT_SCALES = (2.0 ** -(8 + MOST_ROOM), 1.0)


def fuse_softmax(graph: Graph) -> Graph:
    """``Quantize(softmax(Dequantize(x)))`` becomes ``QTableSoftmax(x)``, where it runs along the
    last axis and a product of two activations takes its rows. With a mask of the scores, it is
    ``QTableSoftmax(x, mask)``.

    It does for every target, so that a model's values are the same on all of them. Any other
    softmax, such as that of a classifier, stays in float32.
    """
    weights = {node.inputs[0] for node in graph.nodes if isinstance(node.op, QMatMul)}
    fusion = _Softmax(graph, graph.producers())
    for node in graph.nodes:
        if isinstance(node.op, Quantize) and node.output in weights:
            node = fusion.fused(node)
        fusion.nodes.append(node)
    return graph.with_nodes(fusion.nodes, *fusion.made)


def is_nan(op: Op) -> bool:
    """Whether an operator finds what is not equal to itself."""
    match op:
        case Map(args=(x,), body=Select(Binary("==", a, b), Const(False), Const(True))):
            return a == b == x
    return False


@dataclass
class _Softmax:
    """Matches the float operators that a softmax is made of. ``nodes`` are those of the new graph,
    ``made`` its new tensors."""

    graph: Graph
    producers: Mapping[str, Node]
    nodes: list[Node] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)

    def fused(self, quantize: Node) -> Node:
        """The Quantize as a softmax in integers, or as it is; a mask that is none is its reason."""
        assert isinstance(quantize.op, Quantize)
        share, out = self.share(quantize.inputs[0]), quantize.op.quant
        operand = self.operand(share) if share is not None and is_int8(out) else None
        if share is None or operand is None:
            return quantize
        shape, scale = self.graph.result(quantize).shape, float(out.scale[0])
        is_row = len(shape) > 1 and 0 < shape[-1] <= MOST_KEYS
        if not (is_row and OUT_SCALES[0] <= scale <= OUT_SCALES[1]):
            return quantize
        condition = find_condition(self.graph, self.producers, operand)
        if condition is not None:
            operand = condition.scores
        scores = find_scores(self.graph, self.producers, operand)
        if not isinstance(scores, Scores):
            return replace(quantize, reason=scores or "")
        if not scores.scale > 0:
            return quantize
        if condition is not None and (
            scores.visible is not None or not condition.hides(scores.scale)
        ):
            return replace(quantize, reason=NO_MASK)
        op = QTableSoftmax(len(shape) - 1, scores.scale, scale, int(out.zero_point[0]))
        inputs = self.inputs(scores, quantize)
        if condition is not None:
            inputs = (*inputs, self.visible(condition))
        return replace(quantize, name=share.name, op=op, inputs=inputs, reason="")

    def inputs(self, scores: Scores, quantize: Node) -> tuple[str, ...]:
        """The operands of a softmax: scores, whose table is a node of its own, and the mask."""
        names = [scores.source]
        if scores.table is not None:
            result = replace(self.graph[scores.source], name=f"{quantize.output}.scores")
            node = Node(f"{quantize.name}.scores", QTable(scores.table), (names[0],), result.name)
            self.nodes.append(node)
            self.made.append(result)
            names = [result.name]
        if scores.visible is not None:
            mask = np.where(scores.visible, VISIBLE, MASKED).astype(np.int8)
            mask = Tensor.constant(f"{quantize.output}.mask", mask)
            self.made.append(mask)
            names.append(mask.name)
        return tuple(names)

    def visible(self, condition: Condition) -> str:
        """The mask of conditions that are computed, int8; one for all that read them."""
        name = f"{condition.name}.{'visible' if condition.visible else 'hidden'}"
        if all(tensor.name != name for tensor in self.made):
            x = Var("x", "bool")
            true, false = (VISIBLE, MASKED) if condition.visible else (MASKED, VISIBLE)
            shown = select(x, Const(true, "int8"), false)
            self.nodes.append(Node(name, Map("Cast", (x,), shown), (condition.name,), name))
            self.made.append(Tensor(name, self.graph[condition.name].shape, "int8"))
        return name

    def share(self, name: str) -> Node | None:
        """The node that ends a softmax, without the guard of exporters, which choose 0 where a
        share is NaN because all scores of its row are hidden. There the integers have 0, too."""
        node = self.producers.get(name)
        match node.op if node is not None else None:
            case Map(args=args, body=Select(Var() as guard, zero, Var() as share)) if node:
                given = dict(zip(args, node.inputs, strict=True))
                unlike = self.producers.get(given[guard])
                if unlike is None or unlike.inputs != (given[share],) or not is_nan(unlike.op):
                    return node
                if number(self.graph, given, zero) == 0.0:
                    return self.producers.get(given[share])
        return node

    def operand(self, share: Node) -> str | None:
        """The tensor whose softmax along the last axis a node ends."""
        match share.op:
            case Map(args=args, body=Binary("/", above, below)) if (above, below) == args:
                power = self.producers.get(share.inputs[0])
            case _:
                return None
        match power:
            case Node(op=Map(args=args, body=Call("exp", (Binary("-", x, m),)))) if (x, m) == args:
                operand, most = power.inputs
            case _:
                return None
        is_softmax = self.is_reduced(most, "max", operand) and self.is_reduced(
            share.inputs[1], "+", power.output
        )
        return operand if is_softmax else None

    def is_reduced(self, name: str, kind: str, source: str) -> bool:
        """Whether a tensor is another one, reduced along its last axis."""
        node = self.producers.get(name)
        last = len(self.graph[source].shape) - 1
        if node is None or node.inputs != (source,):
            return False
        return node.op == Reduce(kind, (last,), True)
