"""Turn rotary position embeddings, between Dequantize and Quantize, into integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ....isa.errors import VdlaError
from ...te.expr import Binary, Const, Var
from ..arithmetic.requant import INT8_MAX, requant
from ..ir import Graph, Node, Tensor, infer
from ..ops.base import Op
from ..ops.elementwise import Add, Map
from ..ops.movement import Concat, Gather, Identity, Pad, Reshape, Slice, Transpose
from ..ops.quantisation import Dequantize, Quant, Quantize
from ..ops.rotation import QRotate
from .fuse_qdq import is_product
from .fuse_tables import is_int8

MOVES = (Identity, Reshape, Slice, Transpose)


def fuse_rotation(graph: Graph) -> Graph:
    """``Quantize(x * cos + rotated(x) * sin)`` of ``x``, which is dequantised, becomes
    ``QRotate``, however slices, concatenations, signs and transpositions spell it. Cosines and
    sines that the model has as floats are quantised for their :func:`largest` magnitude; where that
    is unknown the embedding stays in float32.
    """
    found = _Rotations(graph, graph.producers())
    nodes = [new for node in graph.nodes for new in found.fused(node)]
    return graph.with_nodes(nodes, *found.made.values())


@dataclass(frozen=True)
class _Term:
    """For each element, the element of ``x`` times a sign, and times an element of a factor if
    there is one, float32 or int8, whose real magnitude is at most ``most``: indices into both
    tensors, and signs, all of one shape."""

    x: np.ndarray
    sign: np.ndarray
    factor: str = ""
    index: np.ndarray | None = None
    most: float = 0.0

    def moved(self, op: Op) -> _Term:
        index = None if self.index is None else op.evaluate(self.index)
        return replace(self, x=op.evaluate(self.x), sign=op.evaluate(self.sign), index=index)


def _joined(op: Concat, terms: list[_Term]) -> _Term | None:
    """Terms one behind another along an axis, if they have one factor."""
    if len({term.factor for term in terms}) > 1:
        return None
    indices = [term.index for term in terms if term.index is not None]
    return replace(
        terms[0], x=op.evaluate(*(term.x for term in terms)),
        sign=op.evaluate(*(term.sign for term in terms)),
        index=op.evaluate(*indices) if indices else None,
    )  # fmt: skip


@dataclass(frozen=True)
class _Sum:
    """One or two terms of the elements of ``source``, an int8 tensor that is dequantised by
    ``quant``."""

    source: str
    quant: Quant
    terms: tuple[_Term, ...]

    def with_terms(self, terms: Iterable[_Term]) -> _Sum:
        return replace(self, terms=tuple(terms))

    def is_alike(self, other: _Sum) -> bool:
        """Whether another one has as many terms of the same elements."""
        same = self.source == other.source and self.quant.same(other.quant)
        return same and len(self.terms) == len(other.terms)


def _is_pair(found: _Sum) -> bool:
    """Whether a sum has two terms with a factor each."""
    return len(found.terms) == 2 and all(term.factor for term in found.terms)


def _places(shape: tuple[int, ...]) -> np.ndarray:
    """The index of each element of a tensor."""
    return np.arange(prod(shape), dtype=np.int32).reshape(shape)


@dataclass
class _Rotations:
    graph: Graph
    producers: Mapping[str, Node]
    made: dict[str, Tensor] = field(default_factory=dict)
    known: dict[str, _Sum | None] = field(default_factory=dict)
    shared: dict[tuple[str | bytes, ...], str] = field(default_factory=dict)

    # ---- what is computed ----

    def terms(self, name: str) -> _Sum | None:
        """The dequantised tensor that a float tensor is a sum of signed elements of, times factors,
        and the one or two terms; None for anything else."""
        if name not in self.known:
            self.known[name] = None
            self.known[name] = self._terms(name)
        return self.known[name]

    def _terms(self, name: str) -> _Sum | None:
        node = self.producers.get(name)
        match node.op if node is not None else None:
            case Dequantize(quant) if node and is_int8(quant):
                return self._dequantised(quant, node.inputs[0])
            case Identity() | Reshape() | Slice() | Transpose() as op if node:
                found = self.terms(node.inputs[0])
                return found and found.with_terms(term.moved(op) for term in found.terms)
            case Concat() as op if node:
                return self._concatenated(op, node)
            case Add() | Map() as op if node:
                return self._computed(op, node)
        return None

    def _elements(self, name: str) -> tuple[str, np.ndarray]:
        """The int8 tensor that moves of integers begin with, and each element's index there."""
        node = self.producers.get(name)
        match node.op if node is not None else None:
            case Identity() | Reshape() | Slice() | Transpose() | Gather() as op if node:
                others = [self.graph[other].data for other in node.inputs[1:]]
                known = [data for data in others if data is not None]
                if len(known) == len(others):
                    source, index = self._elements(node.inputs[0])
                    return source, op.evaluate(index, *known)
            case Concat() as op if node:
                parts = [self._elements(part) for part in node.inputs]
                if len({source for source, _ in parts}) == 1:
                    return parts[0][0], op.evaluate(*(index for _, index in parts))
        return name, _places(self.graph[name].shape)

    def _dequantised(self, quant: Quant, name: str) -> _Sum | None:
        """Elements of the int8 tensor that moves begin with."""
        source, index = self._elements(name)
        if self.graph[source].is_constant:
            return None
        return _Sum(source, quant, (_Term(index, np.ones(index.shape, np.int8)),))

    def _concatenated(self, op: Concat, node: Node) -> _Sum | None:
        parts = [found for found in map(self.terms, node.inputs) if found is not None]
        if len(parts) < len(node.inputs) or not all(part.is_alike(parts[0]) for part in parts):
            return None
        columns = [sorted(part.terms, key=lambda term: term.factor) for part in parts]
        joined = [_joined(op, [*column]) for column in zip(*columns, strict=True)]
        whole = [term for term in joined if term is not None]
        return parts[0].with_terms(whole) if len(whole) == len(joined) else None

    def _computed(self, op: Add | Map, node: Node) -> _Sum | None:
        match op:
            case Map(args=(x,), body=Binary("*", Const(-1), body)) if body is x:
                found = self.terms(node.inputs[0])
                return found and found.with_terms(replace(t, sign=-t.sign) for t in found.terms)
            case Map() if is_product(node):
                return self._product(node)
            case Map(args=(a, b), body=Binary("-", left, right)) if left is a and right is b:
                sign = -1
            case Map(args=(a, b), body=Binary("+", left, right)) if left is a and right is b:
                sign = 1
            case Add(lo, hi) if lo == -np.inf and hi == np.inf:
                sign = 1
            case _:
                return None
        first, second = (self.terms(name) for name in node.inputs)
        if first is None or second is None or not first.is_alike(second):
            return None
        (a, *more), (b, *_) = first.terms, second.terms
        if more:
            return None
        if a.x.shape != b.x.shape:
            return None
        return first.with_terms((a, replace(b, sign=np.int8(sign) * b.sign)))

    def _product(self, node: Node) -> _Sum | None:
        """One term times a factor."""
        shape = self.graph.result(node).shape
        for name, factor in (node.inputs, node.inputs[::-1]):
            found = self.terms(name)
            if found is None:
                continue
            term, *more = found.terms
            if more or term.factor:
                continue
            known, most = self.factor(factor)
            if term.x.shape == shape and most:
                index = np.broadcast_to(_places(self.graph[known].shape), shape)
                return found.with_terms([replace(term, factor=known, index=index, most=most)])
        return None

    def factor(self, name: str) -> tuple[str, float]:
        """The int8 tensor that a factor is dequantised from, or the factor itself, and its largest
        magnitude; 0 if that is unknown."""
        node, most = self.producers.get(name), largest(self.graph, self.producers, name)
        is_stored = node is not None and isinstance(node.op, Dequantize)
        return (node.inputs[0] if node is not None and is_stored else name), most

    # ---- what is made ----

    def fused(self, node: Node) -> list[Node]:
        """The nodes in place of a Quantize; the node itself, if it ends no embedding."""
        if not (isinstance(node.op, Quantize) and is_int8(node.op.quant)):
            return [node]
        name, moves, factor = node.inputs[0], list[Node](), 1.0
        while (found := self.terms(name)) is None or not _is_pair(found):
            last = self.producers.get(name)
            if last is not None and (scaled := _scaled(self.graph, last)) is not None:
                name, factor = scaled[0], factor * scaled[1]
                continue
            if last is None or not isinstance(last.op, (*MOVES, Pad)):
                return [node]
            moves.insert(0, last)
            name, *others = last.inputs
            if others:
                return [node]
        made, pair = list[Node](), [*found.terms]
        for straight, crossed in (pair, pair[::-1]):
            made = made or self.rotation(node, name, found, factor, straight, crossed)
        for number, move in enumerate(moves if made else ()):
            result = f"{node.output}.rotated{number}"
            made[-1] = replace(made[-1], output=result)
            like = self.graph.result(node)
            self.made[result] = replace(like, name=result, shape=self.graph[move.inputs[0]].shape)
            made.append(replace(move, inputs=(result,), output=node.output))
        return made or [node]

    def rotation(
        self, node: Node, name: str, found: _Sum, factor: float, straight: _Term, crossed: _Term
    ) -> list[Node]:
        """The nodes of an embedding; none if the terms are not those of one in halves."""
        shape, x = straight.x.shape, self.graph[found.source]
        if not straight.x.size or not shape or shape[-1] % 2:
            return []
        partner = np.roll(straight.x, -(shape[-1] // 2), axis=-1)
        if (straight.sign != 1).any() or (crossed.x != partner).any():
            return []
        moves = _moves(straight.x, x.shape)
        cos, sin = (self.coefficient(term) for term in (straight, crossed))
        if moves is None or cos is None or sin is None:
            return []
        assert isinstance(node.op, Quantize)
        given, out, nodes = found.quant, node.op.quant, list[Node]()
        quant = _even(max(straight.most, crossed.most))  # one scale serves both products
        real = factor * float(given.scale[0]) * float(quant.scale[0]) / float(out.scale[0])
        try:
            rescale = requant(np.array([real]), int(out.zero_point[0]))
        except VdlaError:  # scales too far apart
            return []

        def append(op: Op, inputs: tuple[str, ...], label: str) -> str:
            """The result of an operator, once for all embeddings; known if it is constant."""
            key = op.name, op.text, *inputs
            if key in self.shared:
                return self.shared[key]
            name = self.shared[key] = f"{node.output}.{label}"
            tensors = tuple(self.made.get(i) or self.graph[i] for i in inputs)
            known = [tensor.data for tensor in tensors if tensor.data is not None]
            if len(known) == len(tensors):
                self.made[name] = Tensor.constant(name, op.evaluate(*known))
            else:
                self.made[name] = Tensor(name, *infer(op, tensors, node.name))
                nodes.append(Node(f"{node.name}.{label}", op, inputs, name))
            return name

        operands = [found.source]
        for number, move in enumerate(moves):
            operands.append(append(move, (operands.pop(),), f"heads{number}"))
        for label, (term, steps, signs) in (("cos", cos), ("sin", sin)):
            made = term.factor
            for number, step in enumerate(steps):
                doubled = (made,) * (2 if isinstance(step, Concat) else 1)
                made = append(step, doubled, f"{label}{number}")
            is_stored, is_signed = self.graph[term.factor].dtype == "int8", (signs != 1).any()
            if is_stored and not is_signed and _even(term.most).same(quant):
                operands.append(made)
                continue
            if is_stored:
                made = append(Dequantize(_even(term.most)), (made,), f"{label}.real")
            if is_signed:
                sign = self.shared.setdefault(("signs", signs.tobytes()), f"{node.output}.signs")
                self.made.setdefault(sign, Tensor.constant(sign, signs.astype(np.float32)))
                made = append(_times(), (made, sign), f"{label}.signed")
            operands.append(append(Quantize(quant), (made,), f"{label}.int8"))
        op = QRotate(len(shape) - 1, shape[-1], int(given.zero_point[0]), rescale)
        label = self.producers[name].name
        return [*nodes, replace(node, name=label, op=op, inputs=tuple(operands))]

    def coefficient(self, term: _Term) -> tuple[_Term, list[Op], np.ndarray] | None:
        """A term, the moves that make of its factor what it is multiplied by, with sizes of 1 where
        that is the same, and without the first of these; and the signs along the last axis."""
        index, signs = term.index, term.sign
        assert index is not None
        for axis in range(index.ndim - 1):
            first, sign = index.take([0], axis), signs.take([0], axis)
            if (signs != sign).any():
                return None
            signs = sign
            index = first if (index == first).all() else index
        while index.ndim > 1 and len(index) == 1:
            index = index[0]
        signs = signs.reshape(-1)
        size = prod(self.graph[term.factor].shape)
        *lead, width = index.shape
        flat = index.reshape(-1)
        if flat.size == size and (flat == np.arange(size)).all():
            return term, [Reshape(index.shape)], signs
        halves = np.split(index, 2, axis=-1)
        once = halves[0].reshape(-1)
        twice = (halves[0] == halves[1]).all() and once.size == size
        if twice and (once == np.arange(size)).all():
            return term, [Reshape((*lead, width // 2)), Concat(len(lead))], signs
        return None


def _even(most: float) -> Quant:
    """The scale of int8 numbers as large as ``most``, of either sign."""
    return Quant(np.array([most / INT8_MAX], np.float32), np.array([0], np.int32))


def largest(graph: Graph, producers: Mapping[str, Node], name: str) -> float:
    """The largest magnitude that a tensor may have, where constants or a cosine or sine decide,
    wherever it is read; 0 where it is unknown."""
    data, node = graph[name].data, producers.get(name)
    if data is not None:
        known = data.dtype in (np.float32, np.int8)
        return float(np.abs(data.astype(np.float32)).max(initial=0)) if known else 0.0
    if node is None:
        return 0.0
    match node.op:
        case Map() if node.op.label in ("Cos", "Sin"):
            return 1.0
        case Map():
            scaled = _scaled(graph, node)
            return largest(graph, producers, scaled[0]) * scaled[1] if scaled else 0.0
        case Concat():
            parts = [largest(graph, producers, part) for part in node.inputs]
            return max(parts) if all(parts) else 0.0
        case Dequantize(quant) if is_int8(quant) and not quant.zero_point.any():
            is_known = largest(graph, producers, node.inputs[0]) > 0
            return float(quant.scale[0]) * INT8_MAX if is_known else 0.0
        case Quantize() | Gather() | Identity() | Reshape() | Slice() | Transpose():
            return largest(graph, producers, node.inputs[0])
    return 0.0


def _scaled(graph: Graph, node: Node) -> tuple[str, float] | None:
    """The tensor that a node multiplies by a positive number, and the number: PyTorch multiplies
    queries and keys by the root of the scores' factor."""
    match node.op:
        case Map(args=(a, b), body=Binary("*", left, right)) if (left, right) == (a, b):
            for name, other in (node.inputs, node.inputs[::-1]):
                data = graph[other].data
                if data is not None and data.size == 1 and data.reshape(()) > 0:
                    return name, float(data.reshape(()))
        case Map(args=(_,), body=Binary("*", Var(), Const(value))) if value > 0:
            return node.inputs[0], float(value)
    return None


def _times() -> Map:
    """The product of two float tensors."""
    a, b = Var("a", "float32"), Var("b", "float32")
    return Map("Mul", (a, b), a * b)


def _moves(order: np.ndarray, shape: tuple[int, ...]) -> list[Op] | None:
    """The reshape and the transposition that put all elements of a tensor of a shape in an order,
    which holds their indices; None if none does."""
    first = order.flat[0]
    strides = [
        int(order.take([size > 1], axis).flat[0] - first) for axis, size in enumerate(order.shape)
    ]
    axes = sorted(range(order.ndim), key=lambda axis: (-strides[axis], axis))
    wide = tuple(order.shape[axis] for axis in axes)
    back = tuple(axes.index(axis) for axis in range(order.ndim))
    if (order == _places(order.shape)).all():
        return [] if shape == order.shape else [Reshape(order.shape)]
    if prod(shape) != order.size or (_places(wide).transpose(back) != order).any():
        return None
    return [*([] if wide == shape else [Reshape(wide)]), Transpose(back)]
