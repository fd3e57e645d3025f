"""Turn layer and RMS normalisation of tokens, between Dequantize and Quantize, into integers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ...te.expr import Binary, Call, Const, Expr, Var, substitute
from ..ir import Graph, Node, Tensor
from ..ops.elementwise import Add, Map
from ..ops.movement import Reshape, Slice
from ..ops.normalisation import FACTOR_BITS, Numbers, QLayerNorm
from ..ops.quantisation import Dequantize, Quant, Quantize
from ..ops.reduction import Reduce
from .fuse_tables import is_int8, known_value

#: A gain in steps of the result is less than this, so that it can be requantised.
MOST_GAIN = 2.0**30


def fuse_layer_norm(graph: Graph) -> Graph:
    """``Quantize(normalised(Dequantize(x)) * gain + bias)`` becomes ``QLayerNorm(x)``, where it
    runs along the last axis. A Reshape before the Quantize, which makes rows of tokens, comes
    behind it then, and so does a Slice, which takes the class token.

    So it is with ``Dequantize(x) + Dequantize(low)``, where the scale of ``low`` is a power of two
    below that of x, by the mean and the variance of x.

    It does for every target, so that a model's values are the same on all of them.
    """
    producers = graph.producers()
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    for node in graph.nodes:
        if isinstance(node.op, Quantize) and is_int8(node.op.quant):
            real, moves = _before_moves(producers, node.inputs[0])
            result = graph.result(node)
            node = _fused(graph, producers, node, node.op, real)
            for number, move in enumerate(moves if isinstance(node.op, QLayerNorm) else ()):
                shape = graph[move.inputs[0]].shape
                made = replace(result, name=f"{result.name}.normalised{number}", shape=shape)
                tensors.append(made)
                nodes.append(replace(node, output=made.name))
                node = replace(node, name=f"{node.name}.rows", op=move.op, inputs=(made.name,))
        nodes.append(node)
    return graph.with_nodes(nodes, *tensors)


def _before_moves(producers: Mapping[str, Node], name: str) -> tuple[str, list[Node]]:
    """The tensor whose elements another one has, and the moves from one to the other."""
    moves: list[Node] = []
    while (node := producers.get(name)) is not None and isinstance(node.op, Reshape | Slice):
        moves.insert(0, node)
        name = node.inputs[0]
    return name, moves


def _fused(
    graph: Graph, producers: Mapping[str, Node], node: Node, quantize: Quantize, real: str
) -> Node:
    """The Quantize as a normalisation in integers that ends in ``real``, or as it is."""
    last, shape = producers.get(real), graph[real].shape
    if last is None or not isinstance(last.op, Map | Add) or len(shape) < 2:
        return node
    steps = _Steps(graph, producers, shape)
    whole = steps.value(last.output)
    found = None if whole is None or not steps.sources else steps.affine(whole)
    if found is None:
        return node
    gain, bias, epsilon, is_centred = found
    high, *low = (n.op_as(Dequantize).quant for n in steps.sources)
    quant = quantize.quant
    centre = None if is_centred else int(high.zero_point[0])
    in_scale, out_scale = (float(q.scale[0]) for q in (high, quant))
    fits = in_scale > 0 and out_scale > 0 and epsilon >= 0
    if not (fits and Numbers(shape[-1], epsilon / in_scale**2, centre).fits):
        return node
    if not (np.abs(gain) / out_scale < MOST_GAIN).all() or not np.isfinite(bias).all():
        return node
    zero_point = int(quant.zero_point[0])
    axis = len(shape) - 1
    low_bits = find_low_bits(high, low[0]) if low else None
    op = QLayerNorm(axis, in_scale, epsilon, gain, bias, out_scale, zero_point, centre, low_bits)
    inputs = tuple(name for source in steps.sources for name in source.inputs)
    return replace(node, name=last.name, op=op, inputs=inputs, reason="")


def find_low_bits(high: Quant, low: Quant) -> int | None:
    """How many times the steps of ``low`` are half of those of ``high``, a whole number; None for
    any other steps, and where the zero point of ``low`` is not 0."""
    fraction, bits = math.frexp(float(high.scale[0]) / float(low.scale[0]))
    fits = fraction == 0.5 and 0 < bits - 1 < FACTOR_BITS and not low.zero_point.any()
    return bits - 1 if fits else None


@dataclass
class _Steps:
    """Float operators on one tensor of int8 as one expression of its element ``x``: constants of
    each channel are variables, and a sum along the last axis is the function "sum". With a second
    tensor of what rounding lost, ``whole`` is the sum of both."""

    graph: Graph
    producers: Mapping[str, Node]
    shape: tuple[int, ...]
    x: Var = field(default_factory=lambda: Var("x", "float32"))
    whole: Var = field(default_factory=lambda: Var("whole", "float32"))
    #: What dequantises the tensors.
    sources: tuple[Node, ...] = ()
    channels: dict[Var, np.ndarray] = field(default_factory=dict)
    known: dict[str, Expr | None] = field(default_factory=dict)

    def value(self, name: str) -> Expr | None:
        """The expression of a tensor; None if it is anything else."""
        if name not in self.known:
            self.known[name] = self._value(name)
        return self.known[name]

    def _value(self, name: str) -> Expr | None:
        node, constant = self.producers.get(name), self._constant(name)
        if constant is not None:
            return constant
        if found := self._dequantizes(node):
            known = self.sources[: len(found)] in ((), found[: len(self.sources)])
            if not known or self.graph[name].shape != self.shape:
                return None
            self.sources = max(self.sources, found, key=len)
            return self.whole if len(found) > 1 else self.x
        match node:
            case Node(op=Reduce("+", axes, True)) if axes == (len(self.shape) - 1,):
                inner = self.value(node.inputs[0])
                return None if inner is None else Call("sum", (inner,), "float32")
            case Node(op=Map(args=args, body=body)):
                return self._substituted(args, body, node.inputs)
            case Node(op=Add() as op) if op == Add():
                args = (Var("a", "float32"), Var("b", "float32"))
                return self._substituted(args, args[0] + args[1], node.inputs)
        return None

    def _dequantizes(self, node: Node | None) -> tuple[Node, ...]:
        """A node that dequantises, or the two whose sum it is, of which the second one has what
        rounding the first one lost."""
        match node:
            case Node(op=Dequantize(quant)) if is_int8(quant):
                return (node,)
            case Node(op=Add() as op) if op == Add():
                both = [self.producers.get(name) for name in node.inputs]
                match both:
                    case [Node(op=Dequantize(high)) as a, Node(op=Dequantize(low)) as b] if (
                        is_int8(high) and is_int8(low) and find_low_bits(high, low) is not None
                        and {self.graph[name].shape for name in node.inputs} == {self.shape}
                        and not self.graph[b.inputs[0]].is_constant
                    ):  # fmt: skip
                        return a, b
        return ()

    def _substituted(
        self, args: tuple[Var, ...], body: Expr, inputs: tuple[str, ...]
    ) -> Expr | None:
        """The body of a function with what its operands are."""
        values = {arg: self.value(name) for arg, name in zip(args, inputs, strict=True)}
        known = {arg: value for arg, value in values.items() if value is not None}
        return substitute(body, known) if len(known) == len(values) else None

    def _constant(self, name: str) -> Expr | None:
        """A constant number, or one of each channel, which may be dequantised."""
        data = known_value(self.graph, self.producers, name)
        if data is None or data.dtype != np.float32:
            return None
        if data.size == 1:
            return Const(float(data.reshape(())), "float32")
        if data.shape[-1:] != self.shape[-1:] or data.size != self.shape[-1]:
            return None
        var = Var(name, "float32")
        self.channels[var] = data.reshape(-1)
        return var

    def affine(self, whole: Expr) -> tuple[np.ndarray, np.ndarray, float, bool] | None:
        """Gain, bias and epsilon of a normalisation, and whether the mean is subtracted; None if an
        expression is none.
        """
        bias = np.zeros(self.shape[-1], np.float32)
        match whole:
            case Binary("+", product, Var() as added) | Binary("+", Var() as added, product) if (
                added in self.channels
            ):
                whole, bias = product, self.channels[added]
        gain, others = np.ones(self.shape[-1], np.float32), []
        for factor, is_above in _factors(whole):
            if isinstance(factor, Const) and is_above:
                gain = gain * np.float32(factor.value)
            elif isinstance(factor, Var) and factor in self.channels and is_above:
                gain = gain * self.channels[factor]
            else:
                others.append((factor, is_above))
        match sorted(others, key=lambda pair: not pair[1]):
            case [(above, True), (Call("sqrt", (Binary("+", variance, Const(epsilon)),)), False)]:
                pass
            case _:
                return None
        x = self.whole if len(self.sources) > 1 else self.x
        is_centred = above == x - self._mean(self.x)
        apart = self.x - self._mean(self.x) if is_centred else self.x
        same = (is_centred or above == x) and variance in (
            self._mean(apart * apart),
            self._mean(Call("pow", (apart, Const(2.0, "float32")), "float32")),
        )
        return (gain, bias, float(epsilon), is_centred) if same else None

    def _mean(self, value: Expr) -> Expr:
        """The mean of a value, as the frontends write it."""
        return Call("sum", (value,), "float32") / Const(float(self.shape[-1]), "float32")


def _factors(value: Expr, is_above: bool = True) -> Iterator[tuple[Expr, bool]]:
    """What is multiplied, and whether it is above the fraction bar."""
    match value:
        case Binary("*" | "/" as op, a, b):
            yield from _factors(a, is_above)
            yield from _factors(b, is_above if op == "*" else not is_above)
        case _:
            yield value, is_above
