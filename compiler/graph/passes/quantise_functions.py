"""Quantise between a product and a function or sum of its result, where a file does not.

Quantisation-aware trainers and TensorRT leave what follows a convolution in float up to the next
Quantize::

    y = Quantize(f(Conv(x)))        y = Quantize(Conv(x) + Dequantize(r))

The integer operators need the convolution's own result as int8. The file gives no scale for it, so
it follows from where the last result still changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ....isa.errors import VdlaError
from ..arithmetic.requant import INT8_MAX, INT8_MIN
from ..ir import Graph, Node, Tensor
from ..ops.convolution import Conv2d, ConvTranspose2d
from ..ops.elementwise import Add
from ..ops.integer import QAdd
from ..ops.linear import Dense
from ..ops.quantisation import Dequantize, Quant, Quantize
from .fuse_qdq import QdqFusion
from .fuse_tables import EVERY_INT8, is_int8, is_step
from .raise_quantize import MOVES

PRODUCTS = (Conv2d, ConvTranspose2d, Dense)
#: Steps of an int8 range.
STEPS = INT8_MAX - INT8_MIN
#: Values for which a function is tried, on each side of zero.
TRIED = 1 << 15


def quantise_functions(graph: Graph) -> Graph:
    """Make ``f(Conv(x))`` two tables of int8 results, one for the negative results of the
    convolution and one for the others, which are added: each side has a scale of its own, with
    which functions that are linear there, such as a leaky ReLU, are exact. ``Conv(x) +
    Dequantize(r)`` gets a scale for the convolution alone.

    Nothing else may read the convolution's result; one that has no integer form stays as it is.
    """
    found = _Between(graph, graph.producers(), graph.consumers())
    nodes = [new for node in graph.nodes for new in found.around(node)]
    return graph.with_nodes(nodes, *found.made)


@dataclass(frozen=True)
class _Source:
    """A tensor of real numbers, the product that it comes from, and what moves its elements."""

    name: str
    product: Node
    moves: tuple[Node, ...]


@dataclass
class _Between:
    graph: Graph
    producers: dict[str, Node]
    readers: dict[str, list[Node]]
    made: list[Tensor] = field(default_factory=list)

    def around(self, node: Node) -> list[Node]:
        """The nodes in place of a Quantize; the node itself, if it is another one."""
        if not (isinstance(node.op, Quantize) and is_int8(node.op.quant)):
            return [node]
        last = self.producers.get(node.inputs[0])
        if last is not None and isinstance(last.op, Add) and self.is_inside(last.output):
            for i, name in enumerate(last.inputs):
                source, other = self.source(name), self.producers.get(last.inputs[1 - i])
                alone = source and self.is_inside(source.name)
                if source and alone and other and isinstance(other.op, Dequantize):
                    return self.sum(node, last, source, other.op.quant)
        steps = self.steps(node.inputs[0])
        return [node] if steps is None else self.function(node, *steps)

    def source(self, name: str) -> _Source | None:
        """The product that makes a tensor, perhaps moved; None if another operator does."""
        moves: list[Node] = []
        node = self.producers.get(name)
        while node and isinstance(node.op, MOVES) and self.is_inside(node.inputs[0]):
            moves.insert(0, node)
            node = self.producers.get(node.inputs[0])
        return _Source(name, node, tuple(moves)) if node and isinstance(node.op, PRODUCTS) else None

    def is_inside(self, name: str) -> bool:
        """Whether a single node reads a tensor."""
        return name not in self.graph.outputs and len(self.readers[name]) == 1

    def steps(self, last: str) -> tuple[_Source, list[Node]] | None:
        """The product that a tensor is a function of, and the nodes of the function in order."""
        steps: dict[str, Node] = {}
        sources: dict[str, _Source] = {}

        def add(name: str) -> bool:
            data, node = self.graph[name].data, self.producers.get(name)
            if name in steps or name in sources or (data is not None and data.size == 1):
                return True
            if node is None or self.graph[name].shape != self.graph[last].shape:
                return False
            if source := self.source(name):
                sources[name] = source
                return True
            known = is_step(node) and all(map(add, node.inputs))
            steps[name] = node
            return known

        if not add(last) or len(sources) != 1 or not steps or not self.is_inside(last):
            return None
        [source] = sources.values()
        inside = {id(node) for node in steps.values()}
        names = {source.name, *steps} - {last}
        alone = all(id(n) in inside for name in names for n in self.readers[name])
        return (
            (source, [*steps.values()]) if alone and names.isdisjoint(self.graph.outputs) else None
        )

    def limit(self, product: Node, quant: Quant) -> float:
        """The largest magnitude that a product's result may have; raises VdlaError for one without
        an integer form whose result has this scale."""
        fusion = QdqFusion(self.graph, self.producers)
        _, (_, weight, *biases) = fusion.fuse(product, quant)
        if not biases:
            raise VdlaError("a product of two activations")
        [bias] = biases
        made = {tensor.name: tensor for tensor in fusion.constants}
        data, added = (
            (made[name] if name in made else self.graph[name]).data for name in (weight, bias)
        )
        assert data is not None and added is not None
        axis = int(isinstance(product.op, ConvTranspose2d))
        sums = np.abs(data.astype(np.float64)).sum(axis=tuple(set(range(data.ndim)) - {axis}))
        given, factors = (self.producers[n].op for n in product.inputs[:2])
        assert isinstance(given, Dequantize) and isinstance(factors, Dequantize)
        scale = given.quant.scale.astype(np.float64) * factors.quant.scale
        far = max(given.quant.zero_point[0] - INT8_MIN, INT8_MAX - given.quant.zero_point[0])
        return float(((sums * far + np.abs(added.astype(np.float64))) * scale).max())

    # ---- what is made ----

    def sum(self, node: Node, last: Node, source: _Source, other: Quant) -> list[Node]:
        """A sum with something dequantised: the product's result is quantised for the range that
        leaves the sum within its own."""
        assert isinstance(node.op, Quantize)
        if not is_int8(other):
            return [node]
        ends = [self.real(EVERY_INT8[[0, -1]], quant) for quant in (node.op.quant, other)]
        try:
            limit = self.limit(source.product, node.op.quant)
        except VdlaError:
            return [node]
        lo, hi = np.clip([ends[0][0] - ends[1][1], ends[0][1] - ends[1][0]], -limit, limit)
        lo, hi = min(lo, 0.0), max(hi, 0.0)
        scale = np.float32(max(hi - lo, np.finfo(np.float32).tiny * STEPS) / STEPS)
        quant = _quant(scale, round(INT8_MIN - lo / scale))
        nodes, name = self.quantised(source, quant, f"{node.output}.product")
        inputs = tuple(name if i == source.name else i for i in last.inputs)
        total = self.like(last.output, f"{node.output}.sum")
        nodes.append(replace(last, inputs=inputs, output=total))
        return [*nodes, replace(node, inputs=(total,))]

    def function(self, node: Node, source: _Source, steps: list[Node]) -> list[Node]:
        """A table for each side of zero, and their sum less what both have at zero."""
        assert isinstance(node.op, Quantize)
        out = node.op

        def real(x: np.ndarray) -> np.ndarray:
            values = {source.name: x.astype(np.float32)}
            for step in steps:
                operands = [values[i] if i in values else self.number(i) for i in step.inputs]
                values[step.output] = step.op.evaluate(*operands)
            return values[node.inputs[0]]

        try:
            limit = self.limit(source.product, out.quant)
        except VdlaError:
            return [node]
        sides = [_side(real, out, limit * sign) for sign in (1, -1)]
        sides = [quant for quant in sides if quant is not None]
        if not sides:
            return [node]
        first = source.product.output
        nodes, tables = [], []
        for number, quant in enumerate(sides):
            base = f"{node.output}.side{number}"
            made, given = self.quantised(_Source(first, source.product, ()), quant, base)
            renamed = {source.name: given}
            for step in steps:
                renamed[step.output] = self.like(first, f"{base}.{step.output}")
                inputs = tuple(renamed.get(i, i) for i in step.inputs)
                made.append(replace(step, inputs=inputs, output=renamed[step.output]))
            tables.append(self.like(first, base, "int8"))
            made.append(replace(node, inputs=(renamed[steps[-1].output],), output=tables[-1]))
            nodes += made
        if len(sides) == 2:
            zero = int(out.evaluate(real(np.zeros(1)))[0])
            total = self.like(first, f"{node.output}.sides", "int8")
            add = QAdd((2, 2), 1, -2 * zero, 0)
            nodes.append(Node(f"{node.name}.sides", add, tuple(tables), total))
        nodes += self.moved(nodes[-1].output, source.moves, f"{node.output}.moved")
        return [*nodes[:-1], replace(nodes[-1], output=node.output)]

    def quantised(self, source: _Source, quant: Quant, base: str) -> tuple[list[Node], str]:
        """A product's result quantised, moved and dequantised, and the name of that."""
        first, label = source.product.output, source.product.name
        stored = self.like(first, f"{base}.int8", "int8")
        nodes = [Node(f"{label}.quantize", Quantize(quant), (first,), stored)]
        nodes += self.moved(stored, source.moves, base)
        real = self.like(source.name, f"{base}.real")
        last = Node(f"{label}.dequantize", Dequantize(quant), (nodes[-1].output,), real)
        return [*nodes, last], real

    def moved(self, name: str, moves: Sequence[Node], base: str) -> list[Node]:
        """The moves of a tensor of int8."""
        nodes: list[Node] = []
        for move in moves:
            result = self.like(move.output, f"{base}.{move.output}", "int8")
            nodes.append(replace(move, inputs=(name,), output=result))
            name = result
        return nodes

    def like(self, name: str, made: str, dtype: str | None = None) -> str:
        """A tensor of the shape of another one."""
        tensor = self.graph[name]
        self.made.append(Tensor(made, tensor.shape, dtype or tensor.dtype))
        return made

    def number(self, name: str) -> np.ndarray:
        data = self.graph[name].data
        assert data is not None
        return data.reshape(())

    @staticmethod
    def real(stored: np.ndarray, quant: Quant) -> np.ndarray:
        return Dequantize(quant).evaluate(stored).astype(np.float64)


def _quant(scale: float | np.floating, zero_point: int) -> Quant:
    return Quant(np.array([scale], np.float32), np.array([zero_point], np.int32))


def _side(real: Callable[[np.ndarray], np.ndarray], out: Quantize, limit: float) -> Quant | None:
    """The quantisation of a product's results between zero and ``limit`` with which a function of
    them is nearest to what ``out`` makes of it otherwise; None if that is the same for all.

    The range ends where the result does not change any more. The steps that are tried are those
    with which 255 reach that far, and those that are a step of the result where the function is
    linear at the end.
    """
    x = np.linspace(0, limit, TRIED)
    for _ in range(2):  # where the end is; then only up to there
        wanted = out.evaluate(real(x)).astype(np.int64)
        changing = np.flatnonzero(wanted != wanted[-1])
        if not len(changing):
            return None
        x = np.linspace(0, x[changing[-1] + 1], TRIED)
    wanted = out.evaluate(real(x)).astype(np.int64)
    end, ends = abs(x[-1]), x[[TRIED // 2, -1]].astype(np.float32)
    slope = abs(float(np.diff(real(ends))[0] / np.diff(ends)[0]))
    zero = INT8_MIN if limit > 0 else INT8_MAX

    def wrong(scale: float) -> int:
        quant = _quant(scale, zero)
        rounded = Dequantize(quant).evaluate(Quantize(quant).evaluate(x.astype(np.float32)))
        return int(np.abs(out.evaluate(real(rounded)) - wanted).sum())

    scales = [end / STEPS, *([float(out.quant.scale[0]) / slope] if slope else [])]
    # A step of the result is not lost where the range is half a step too short.
    scales = [scale for scale in scales if scale * (STEPS + 0.5) >= end * (1 - 1e-6)]
    return _quant(min(scales, key=wrong), zero)
