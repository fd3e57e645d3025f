"""What templates of CPU and GPU know of an operator, and the shapes of its loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...choose.space import Workload
from ...graph.ir import Graph, Node
from ...graph.ops.base import Fusion, Op, Shape, Type
from ...tir.ir import PrimFunc
from ...topi import broadcast_shapes, merged_axes


@dataclass(frozen=True)
class OperatorWorkload(Workload):
    """An operator, the attributes that decide how it is computed, and the types of its operands and
    result.
    """

    operator: str
    attributes: tuple[tuple[str, str], ...]
    operands: tuple[Type, ...]
    result: Type
    op: Op = field(compare=False)


@dataclass(frozen=True, eq=False)
class Lowered:
    """A node's loop program. Its parameters are the node's operands, then its attributes that are
    arrays, whose values are ``attributes``, then the result."""

    func: PrimFunc
    attributes: tuple[np.ndarray, ...]


def workload_of(graph: Graph, node: Node) -> OperatorWorkload:
    """The workload of a node."""
    result, operands = graph.result(node), graph.operands(node)
    return OperatorWorkload(
        node.op.name, tuple(_deciding(node.op)), tuple((t.shape, t.dtype) for t in operands),
        (result.shape, result.dtype), node.op,
    )  # fmt: skip


def loop_shapes(op: Op, shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes of operands as the loops see them: for an element-wise operator, merged into as
    few axes as broadcasting allows.
    """
    return merged_axes(*shapes) if op.fusion is Fusion.ELEMENTWISE else list(shapes)


def row_extent(op: Op, operands: Sequence[Shape], result: Shape) -> int:
    """The extent of the innermost loop over a result."""
    if op.fusion is Fusion.ELEMENTWISE:
        result = broadcast_shapes(*loop_shapes(op, operands))
    return result[-1] if result else 1


def _deciding(op: Op) -> Iterator[tuple[str, str]]:
    """Names and values of the attributes that decide how an operator is computed: integers and
    strings. For an attribute that is itself an operator, its name and its own such attributes.
    """
    for name, text in op.attributes():
        value = getattr(op, name)
        parts = value if isinstance(value, tuple) else (value,)
        if all(map(_is_plain, parts)):
            yield name, text
        for number, part in enumerate(parts):
            if isinstance(part, Op):
                inside = f"{name}.{number}"
                yield inside, part.name
                yield from ((f"{inside}.{name}", text) for name, text in _deciding(part))


def _is_plain(value: object) -> bool:
    """Whether a value is an integer, a string, or a tuple of these."""
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, int | str)
