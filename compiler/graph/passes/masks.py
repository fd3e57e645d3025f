"""Recognise the mask of a softmax, however a model writes it.

A constant mask: an exporter adds it to the scores (0, and a large negative number where a query
does not see a key), chooses between scores and such a number by it (Where), or multiplies by it and
adds another constant. A quantiser may put a pair behind these steps. All of them map each score
to a value that depends on the constants at its position, and there are few different constants. So
the values of 256 scores for each of these constants show what is masked.

A mask that is computed: a function of conditions is added to the scores, or conditions choose
between them and a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...te.expr import Const, Expr, Select, Var
from ..ir import Graph, Node
from ..ops.elementwise import Add, Map
from ..ops.integer import QAdd, QTable
from ..ops.movement import Identity
from ..ops.quantisation import Dequantize, Quantize
from ..ops.softmax import ONE
from .fuse_tables import ELEMENTWISE, EVERY_INT8, is_int8

STEPS = (*ELEMENTWISE, Dequantize, Quantize, QAdd, QTable)
#: So far below the maximum, the exponential of a softmax's table is 0.
GAP = math.log(2 * ONE)
#: The most different constants that the positions of a mask have.
MOST_KINDS = 16
#: Visible scores are equidistant, except for this share of their step.
TOLERANCE = 1e-3
NO_MASK = (
    f"a mask that neither keeps a score nor brings it {GAP:.1f} below all that are kept, or that "
    "keeps none of a row"
)


@dataclass(frozen=True)
class Scores:
    """The operand of a softmax: ``source``, an int8 tensor, by ``table`` (int8 [256]) if there is
    one, times ``scale``. ``visible`` (bool, broadcast) says which scores the softmax sees; None if
    it sees all."""

    source: str
    scale: float
    table: np.ndarray | None = None
    visible: np.ndarray | None = None


def find_scores(graph: Graph, producers: Mapping[str, Node], name: str) -> Scores | str | None:
    """The scores that a float tensor has. A text says why there is no legal mask. None is for a
    tensor that is no function of one int8 tensor and constants."""
    node, shape = producers.get(name), graph[name].shape
    if node is not None and isinstance(node.op, Dequantize):
        if not is_int8(node.op.quant):
            return None
        source, scale = node.inputs[0], float(node.op.quant.scale[0])
        cone = _Cone(graph, producers, shape)
        if not (cone.add(source, opened=True) and cone.has_mask()):
            return Scores(source, scale)
        found = cone.values(source)
        masked = None if found is None else _masked(found[0] * np.float64(scale), found[1], shape)
        if found is None or masked is None:
            return Scores(source, scale)
        best, visible = masked
        table = found[0][:, best]
        return Scores(cone.source, scale, None if (table == EVERY_INT8).all() else table, visible)
    cone = _Cone(graph, producers, shape)
    if not (cone.add(name) and cone.source):
        return None
    found = cone.values(name)
    masked = None if found is None else _masked(*found, shape)
    if found is None or masked is None:
        return NO_MASK
    best, visible = masked
    scale = _step(found[0][:, best])
    return None if scale is None else Scores(cone.source, scale, None, visible)


@dataclass(frozen=True)
class Condition:
    """A mask that is computed: tensor ``name`` of bool. Where it equals ``visible``, a softmax sees
    a score; elsewhere ``hidden`` takes the place of the score, or is added to it (``is_added``).
    """

    scores: str
    name: str
    visible: bool
    hidden: float
    is_added: bool

    def hides(self, quant_scale: float) -> bool:
        """Whether the exponentials of hidden scores are 0, wherever visible ones are within the
        range of int8."""
        return self.hidden <= -(GAP + (2 - self.is_added) * 255 * quant_scale)


def find_condition(graph: Graph, producers: Mapping[str, Node], name: str) -> Condition | None:
    """The scores of a softmax's operand and the conditions of its mask, if that is computed."""
    node = producers.get(name)
    match node.op if node is not None else None:
        case Add(lo, hi) if node and lo == -np.inf and hi == np.inf:
            for scores, mask in (node.inputs, node.inputs[::-1]):
                if (found := _function_of_bool(graph, producers, mask)) is None:
                    continue
                conditions, values = found
                if 0.0 in values and graph[scores].shape == graph[name].shape:
                    visible = values[1] == 0.0
                    return Condition(scores, conditions, visible, values[not visible], True)
        case Map(args=args, body=Select(cond, a, b)) if node and len(args) == len(node.inputs):
            given = dict(zip(args, node.inputs, strict=True))
            for scores, other, visible in ((a, b, True), (b, a, False)):
                hidden = number(graph, given, other)
                if hidden is None or not (isinstance(cond, Var) and isinstance(scores, Var)):
                    continue
                computed = not graph[given[cond]].is_constant
                if computed and graph[given[scores]].shape == graph[name].shape:
                    return Condition(given[scores], given[cond], visible, hidden, False)
    return None


def number(graph: Graph, given: Mapping[Var, str], value: Expr) -> float | None:
    """A constant number; None for anything else."""
    data = graph[given[value]].data if isinstance(value, Var) else None
    if isinstance(value, Const):
        return float(value.value)
    return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None


def _function_of_bool(
    graph: Graph, producers: Mapping[str, Node], name: str
) -> tuple[str, tuple[float, float]] | None:
    """The tensor of conditions that a tensor is a function of, element by element, and its values
    where they are false and where they are true."""
    steps: list[Node] = []
    while graph[name].dtype != "bool":
        node = producers.get(name)
        if node is None or not isinstance(node.op, (*ELEMENTWISE, Identity)):
            return None
        rest = [i for i in node.inputs if graph[i].data is None]
        known = (data for i in node.inputs if (data := graph[i].data) is not None)
        if len(rest) != 1 or any(data.size != 1 for data in known):
            return None
        steps.insert(0, node)
        name = rest[0]
    values = np.array([False, True])
    for node in steps:
        operands = (
            values if (data := graph[i].data) is None else data.reshape(()) for i in node.inputs
        )
        with np.errstate(all="ignore"):
            values = node.op.evaluate(*operands)
    return name, (float(values[0]), float(values[1]))


def _masked(
    values: np.ndarray, kinds: np.ndarray, shape: tuple[int, ...]
) -> tuple[int, np.ndarray | None] | None:
    """The kind of constants that leave a score visible, and the visible scores (None for all), from
    real values [256, kinds] and the kind of each position; None if that is no mask."""
    low, high = values.min(axis=0), values.max(axis=0)
    best = int(high.argmax())
    same = (values == values[:, [best]]).all(axis=0)
    if not (same | (high <= low[best] - GAP)).all():
        return None
    visible = same[kinds]
    if not np.broadcast_to(visible, shape).any(axis=-1).all():
        return None
    return best, None if visible.all() else visible


def _step(values: np.ndarray) -> float | None:
    """The distance of values that are equidistant and grow, else None."""
    line = np.linspace(float(values[0]), float(values[-1]), len(values))
    step = float(line[1] - line[0])
    return step if step > 0 and (np.abs(values - line) <= TOLERANCE * step).all() else None


@dataclass
class _Cone:
    """The element-wise nodes that compute a tensor from one int8 tensor, ``source``, and constants
    that are broadcast, in order."""

    graph: Graph
    producers: Mapping[str, Node]
    shape: tuple[int, ...]
    source: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, opened: bool = False) -> bool:
        """Add the nodes that compute a tensor; False if it is none of what is described above. An
        int8 tensor is the source, unless it is ``opened``."""
        tensor, node = self.graph[name], self.producers.get(name)
        if name in self.nodes or name in self.constants:
            return True
        if tensor.data is not None:
            self.constants[name] = tensor.data
            return True
        if tensor.dtype == "int8" and not opened and not self.is_constant(node):
            same = self.source in ("", name)
            self.source = name
            return same and tensor.shape == self.shape
        if node is None or not (isinstance(node.op, STEPS) and all(map(self.add, node.inputs))):
            return False
        if all(name in self.constants for name in node.inputs):
            operands = (self.constants[name] for name in node.inputs)
            self.constants[name] = node.op.evaluate(*operands)
            return True
        self.nodes[name] = node
        whole = isinstance(node.op, Quantize | Dequantize) and not is_int8(node.op.quant)
        return tensor.shape == self.shape and not whole

    def is_constant(self, node: Node | None) -> bool:
        """Whether a node computes with constants only."""
        return node is not None and all(self.graph[name].is_constant for name in node.inputs)

    def has_mask(self) -> bool:
        """Whether constants are not the same everywhere."""
        return bool(self.source) and any(value.size > 1 for value in self.constants.values())

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The values of a tensor for every int8 and for each kind of positions, [256, kinds], and
        the kind of each position, as the constants are broadcast; None for too many kinds."""
        grid = np.broadcast_shapes((1,), *(value.shape for value in self.constants.values()))
        columns = [np.broadcast_to(v, grid).reshape(-1) for v in self.constants.values()]
        table = np.stack([np.zeros(math.prod(grid)), *columns], axis=1)
        kinds, positions = np.unique(table, axis=0, return_inverse=True)
        if len(kinds) > MOST_KINDS:
            return None
        known = {self.source: EVERY_INT8[:, None]}
        for number, (constant, value) in enumerate(self.constants.items(), 1):
            known[constant] = kinds[None, :, number].astype(value.dtype)
        with np.errstate(all="ignore"):
            for output, node in self.nodes.items():
                known[output] = node.op.evaluate(*(known[i] for i in node.inputs))
        whole = np.broadcast_to(known[name], (len(EVERY_INT8), len(kinds)))
        return whole, positions.reshape(grid)
