"""Turn ``Dequantize -> float operator -> Quantize`` into one integer operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ....isa.errors import VdlaError
from ...te.expr import Binary
from ..arithmetic.requant import (
    INT8_MAX,
    INT8_MIN,
    add_params,
    centre,
    defined_add_params,
    defined_mul_requant,
    requant,
)
from ..ir import Graph, Node, Tensor
from ..ops.base import Bounded, Elementwise, Op
from ..ops.convolution import Conv2d, ConvTranspose2d, QConv2d, QConvTranspose2d
from ..ops.elementwise import Add, Map
from ..ops.integer import QAdd, QMul
from ..ops.linear import Dense, MatMul, QDense, QMatMul
from ..ops.movement import Pad
from ..ops.pooling import AvgPool, MaxPool, QAvgPool, QMaxPool
from ..ops.quantisation import Dequantize, Quant, Quantize

INT32_LIMIT = 2**31
FUSIBLE = (Conv2d, ConvTranspose2d, Dense, MatMul, Add, MaxPool, AvgPool, Pad)


def fuse_qdq(graph: Graph) -> Graph:
    """Replace each Quantize after a float operator on dequantised operands by an integer operator.

    The float nodes lose their readers and fall to ``dead_code``. One that cannot be expressed in
    integers stays, and its ``reason`` says why.
    """
    fusion = QdqFusion(graph, graph.producers())
    nodes: list[Node] = []
    reasons: dict[str, str] = {}
    done: set[str] = set()
    for node in graph.nodes:
        source = fusion.producers.get(node.inputs[0])
        if isinstance(node.op, Quantize) and source and fusion.fusible(source):
            try:
                op, inputs = fusion.fuse(source, node.op.quant)
                again = source.output in done
                done.add(source.output)
                node = replace(node, name=source.name, op=op, inputs=inputs, again=again)
            except VdlaError as reason:
                reasons[source.output] = str(reason)
        nodes.append(node)
    nodes = [replace(n, reason=reasons.get(n.output, n.reason)) for n in nodes]
    return graph.with_nodes(nodes, *fusion.constants)


Fused = tuple[Op, tuple[str, ...]]


def is_product(node: Node) -> bool:
    """Whether a node is the float product of two tensors, element by element."""
    match node.op:
        case Map(args=(a, b), body=Binary("*", left, right)):
            return left is a and right is b
    return False


def is_difference(node: Node) -> bool:
    """Whether a node is the float difference of two tensors, element by element."""
    match node.op:
        case Map(args=(a, b), body=Binary("-", left, right)):
            return left is a and right is b
    return False


@dataclass
class QdqFusion:
    """Matches operands; every refusal is a VdlaError whose text is the reason."""

    graph: Graph
    producers: dict[str, Node]
    constants: list[Tensor] = field(default_factory=list)

    def fuse(self, node: Node, out: Quant) -> Fused:
        if out.dtype != "int8" or out.axis is not None:
            raise VdlaError(f"the result is quantised to {out.dtype}, not to int8 per tensor")
        match node.op:
            case Dense() if self.multiplies_activations(node):
                return self.matmul(node, *_bounds(node.op, out), out)
            case Conv2d() | ConvTranspose2d() | Dense():
                return self.product(node, node.op, out)
            case MatMul():
                return self.matmul(node, INT8_MIN, INT8_MAX, out)
            case Add():
                return self.add(node, node.op, out)
            case Map() if is_difference(node):
                return self.sum(node, (INT8_MIN, INT8_MAX), out)
            case Map():
                return self.scaled(node, out)
            case MaxPool() as op:
                name, quant = self.activation(node.inputs[0])
                self.same_scale(quant, out)
                return QMaxPool(op.kernel, op.strides, op.pads, *_bounds(op, out)), (name,)
            case AvgPool():
                return self.average(node, node.op, out)
            case Pad():
                return self.padded(node, node.op, out)
            case _:
                raise VdlaError(f"{type(node.op).__name__} has no integer form")

    def product(self, node: Node, op: Conv2d | ConvTranspose2d | Dense, out: Quant) -> Fused:
        """A product with a constant weight, whose output channels lie along ``axis``."""
        axis = int(isinstance(op, ConvTranspose2d) or (isinstance(op, Dense) and not op.transposed))
        x, x_quant = self.activation(node.inputs[0])
        weight, w_quant = self.weight(node.inputs[1], axis)
        if isinstance(op, ConvTranspose2d) and weight.dtype != "int8":
            raise VdlaError(f"weight {weight.name!r}, less its zero point, is beyond int8")
        scale = _scale(x_quant) * w_quant.scale.astype(np.float64)
        bias = self.bias(node, scale, weight.shape[axis])
        x_zero = int(x_quant.zero_point[0])
        _check_accumulator(weight, bias, x_zero, axis)
        rescale = requant(scale / _scale(out), int(out.zero_point[0]), *_bounds(op, out))
        fused: Op
        match op:
            case Conv2d():
                fused = QConv2d(op.strides, op.pads, op.dilations, op.groups, x_zero, rescale)
            case ConvTranspose2d():
                fused = QConvTranspose2d(op.strides, op.before, op.size, x_zero, rescale)
            case Dense():
                fused = QDense(x_zero, rescale)
                if not op.transposed:
                    assert weight.data is not None
                    data = np.ascontiguousarray(weight.data.T)
                    weight = Tensor.constant(f"{weight.name}.T", data)
                    self.constants.append(weight)
        return fused, (x, weight.name, bias.name)

    def multiplies_activations(self, node: Node) -> bool:
        """Whether a dense layer multiplies an activation by another one, rows by columns."""
        assert isinstance(node.op, Dense)
        weight = self.producers.get(node.inputs[1])
        constant = weight is None or self.graph[weight.inputs[0]].is_constant
        return not (constant or node.op.transposed) and len(node.inputs) == 2

    def matmul(self, node: Node, lo: int, hi: int, out: Quant) -> Fused:
        (a, a_quant), (b, b_quant) = (self.activation(name) for name in node.inputs)
        zeros = (int(a_quant.zero_point[0]), int(b_quant.zero_point[0]))
        far = [max(zero - INT8_MIN, INT8_MAX - zero) for zero in zeros]
        worst = far[0] * far[1] * self.graph[a].shape[-1]
        if worst >= INT32_LIMIT:
            raise VdlaError(f"the sum of products may reach {worst}, beyond int32")
        scale = np.array([_scale(a_quant) * _scale(b_quant) / _scale(out)])
        rescale = requant(scale, int(out.zero_point[0]), lo, hi)
        return QMatMul(*zeros, rescale), (a, b)

    def add(self, node: Node, op: Add, out: Quant) -> Fused:
        if any(self.is_sum(name) for name in node.inputs):
            return self.sum(node, _bounds(op, out), out)
        # A constant comes second.
        names = sorted(node.inputs, key=self.is_known)
        (a, a_quant), (b, b_quant) = (self.addend(node, name) for name in names)
        scales = _scale(a_quant), _scale(b_quant), _scale(out)
        zero_a, zero_b, zero = (int(quant.zero_point[0]) for quant in (a_quant, b_quant, out))
        bounds = _bounds(op, out)
        params = defined_add_params(scales, (zero_a, zero_b, zero), *bounds)
        return QAdd(*params, zero, *bounds), (a, b)

    def is_sum(self, name: str) -> bool:
        """Whether a tensor is a sum that nothing bounds, or a difference."""
        node = self.producers.get(name)
        return node is not None and (node.op == Add() or is_difference(node))

    def sum(self, node: Node, bounds: tuple[int, int], out: Quant) -> Fused:
        """A sum of more than two tensors, or a difference, as one operator."""
        shape = self.graph.result(node).shape
        found = [(sign, *self.activation(name)) for sign, name in self.terms(node, 1)]
        if any(self.graph[name].shape != shape for _, name, _ in found):
            raise VdlaError("the addends have different shapes")
        if any(self.graph[name].is_constant for _, name, _ in found):
            raise VdlaError("one of more than two addends is a constant")
        ratios = [sign * _scale(quant) / _scale(out) for sign, _, quant in found]
        params = add_params(ratios, [int(quant.zero_point[0]) for *_, quant in found])
        zero = int(out.zero_point[0])
        return QAdd(*params, zero, *bounds), tuple(name for _, name, _ in found)

    def terms(self, node: Node, sign: int) -> Iterator[tuple[int, str]]:
        """The tensors that a node adds up, and whether each is added or, -1, subtracted."""
        signs = (sign, -sign if is_difference(node) else sign)
        for name, own in zip(node.inputs, signs, strict=True):
            if self.is_sum(name):
                yield from self.terms(self.producers[name], own)
            else:
                yield own, name

    def fusible(self, node: Node) -> bool:
        """Whether a float operator has an integer form, if its operands allow it: also an image
        times a value for each of its channels, which squeeze-and-excitation makes, and the product
        of two activations of one shape, as in SwiGLU. If both are functions of one tensor, their
        product is one, too, and becomes a table.
        """
        if is_difference(node):
            known = any(map(self.is_known, node.inputs))
            origins = {self.graph[self.origin(name)] for name in node.inputs}
            is_function = len(origins) == 1 and origins.pop().dtype == "int8"
            return not (known or is_function)
        if not is_product(node):
            return isinstance(node.op, FUSIBLE)
        x, factor = sorted((self.graph[n].shape for n in node.inputs), key=prod)[::-1]
        sources = [self.producers.get(name) for name in node.inputs]
        if not all(n is not None and isinstance(n.op, Dequantize) for n in sources):
            return False
        if x == factor:
            computed = not any(map(self.is_known, node.inputs))
            return computed and len({self.origin(name) for name in node.inputs}) == 2
        return len(x) == 4 and factor == (*x[:2], 1, 1)

    def origin(self, name: str) -> str:
        """The tensor that another one is a function of, element by element."""
        while (node := self.producers.get(name)) is not None:
            computed = [n for n in node.inputs if not self.is_known(n)]
            each = isinstance(node.op, Elementwise | Quantize | Dequantize)
            if not each or len(computed) != 1:
                break
            [name] = computed
        return name

    def is_known(self, name: str) -> bool:
        """Whether a tensor is a constant, or dequantised from one."""
        node = self.producers.get(name)
        stored = node.inputs[0] if node and isinstance(node.op, Dequantize) else name
        return self.graph[stored].is_constant

    def scaled(self, node: Node, out: Quant) -> Fused:
        pairs = [self.activation(name) for name in node.inputs]
        (x, x_quant), (factor, quant) = sorted(pairs, key=lambda p: -prod(self.graph[p[0]].shape))
        zero_x, zero_f, zero = (int(q.zero_point[0]) for q in (x_quant, quant, out))
        scales = _scale(x_quant), _scale(quant), _scale(out)
        rescale = defined_mul_requant(scales, (zero_x, zero_f, zero), INT8_MIN, INT8_MAX)
        return QMul(zero_x, zero_f, rescale), (x, factor)

    def addend(self, node: Node, name: str) -> tuple[str, Quant]:
        """The int8 tensor behind an operand of an addition. A constant of several rows, such as
        positions of tokens, is repeated for each image; one number for each channel is not, as it
        is added exactly (``QAddChannels``)."""
        source, quant = self.activation(name)
        tensor, shape = self.graph[source], self.graph.result(node).shape
        if tensor.shape == shape:
            return source, quant
        known = (1,) * (len(shape) - len(tensor.shape)) + tensor.shape
        if tensor.data is None or known[1:] != shape[1:] or prod(known[:-1]) == 1:
            raise VdlaError("the addends have different shapes")
        repeated = np.ascontiguousarray(np.broadcast_to(tensor.data, shape))
        made = Tensor.constant(f"{node.output}.{source}", repeated)
        self.constants.append(made)
        return made.name, quant

    def average(self, node: Node, op: AvgPool, out: Quant) -> Fused:
        if any(op.pads) and not op.count_include_pad:
            raise VdlaError("the average's divisor varies: it is padded, and count_include_pad = 0")
        x, quant = self.activation(node.inputs[0])
        scale = np.array([_scale(quant) / (_scale(out) * op.kernel[0] * op.kernel[1])])
        rescale = requant(scale, int(out.zero_point[0]), *_bounds(op, out))
        zero = int(quant.zero_point[0])
        fused = QAvgPool(op.kernel, op.strides, op.pads, op.count_include_pad, zero, rescale)
        return fused, (x,)

    def padded(self, node: Node, op: Pad, out: Quant) -> Fused:
        """A border of zeros, or of a repeated image, which the scale of the result has exactly."""
        name, quant = self.activation(node.inputs[0])
        self.same_scale(quant, out)
        if op.mode != "constant":
            return op, (name,)
        value = self.graph[node.inputs[1]].data
        if value is None or value.any():
            raise VdlaError("the border is not of zeros")
        border = Tensor.constant(f"{node.output}.border", out.zero_point[0].astype(np.int8))
        self.constants.append(border)
        return op, (name, border.name)

    def activation(self, name: str) -> tuple[str, Quant]:
        """The int8 tensor behind a dequantised operand."""
        node = self.producers.get(name)
        if node is None or not isinstance(node.op, Dequantize):
            raise VdlaError(f"operand {name!r} is not dequantised from int8")
        quant = node.op.quant
        if quant.dtype != "int8" or quant.axis is not None:
            raise VdlaError(f"operand {name!r} is {quant.dtype}, not int8 per tensor")
        return node.inputs[0], quant

    def weight(self, name: str, axis: int) -> tuple[Tensor, Quant]:
        """The constant weight behind an operand, less its zero point, per tensor or per channel of
        ``axis``: int8, or int16 where int8 does not hold all values.
        """
        node = self.producers.get(name)
        if node is None or not isinstance(node.op, Dequantize):
            raise VdlaError(f"weight {name!r} is not dequantised from int8")
        tensor, quant = self.graph[node.inputs[0]], node.op.quant
        if tensor.data is None or tensor.dtype not in ("int8", "uint8"):
            raise VdlaError(f"weight {name!r} is not an int8 constant")
        if quant.axis not in (None, axis):
            raise VdlaError(f"weight {name!r} is scaled along axis {quant.axis}, not along {axis}")
        zero = quant.broadcast(quant.zero_point, tensor.data.ndim)
        if not zero.any():
            return tensor, quant
        centred = Tensor.constant(f"{tensor.name}.centred", centre(tensor.data, zero))
        self.constants.append(centred)
        return centred, quant

    def bias(self, node: Node, scale: np.ndarray, channels: int) -> Tensor:
        """The bias as int32 in units of ``scale``; zeros when the node has none."""
        name = f"{node.output}.bias_int32"
        if len(node.inputs) < 3:
            bias = Tensor.constant(name, np.zeros(channels, np.int32))
            self.constants.append(bias)
            return bias
        source = self.graph[node.inputs[2]]
        dequantize = self.producers.get(source.name)
        if dequantize and isinstance(dequantize.op, Dequantize):
            stored, quant = self.graph[dequantize.inputs[0]], dequantize.op.quant
            if stored.data is None:
                raise VdlaError(f"bias {source.name!r} is not a constant")
            exact = stored.dtype == "int32" and not quant.zero_point.any()
            if exact and np.allclose(quant.scale, scale, rtol=1e-6, atol=0):
                return stored
            real = (stored.data.astype(np.float64) - quant.zero_point) * quant.scale
        elif source.data is not None:
            real = source.data.astype(np.float64)
        else:
            raise VdlaError(f"bias {source.name!r} is not a constant")
        steps = np.rint(real / scale)
        if not (np.abs(steps) < INT32_LIMIT).all():
            raise VdlaError(f"bias {source.name!r} exceeds int32 at the scale of the products")
        bias = Tensor.constant(name, steps.astype(np.int32))
        self.constants.append(bias)
        return bias

    @staticmethod
    def same_scale(before: Quant, after: Quant) -> None:
        if not before.same(after):
            raise VdlaError("input and output have different scales or zero points")


def _scale(quant: Quant) -> float:
    return float(quant.scale[0])


def _bounds(op: Bounded, out: Quant) -> tuple[int, int]:
    """int8 bounds of a clipped real result: quantisation is monotone, so clipping may follow it."""

    def stored(real: float) -> int:
        steps = min(max(real / _scale(out), -1e9), 1e9)
        return min(max(round(steps) + int(out.zero_point[0]), INT8_MIN), INT8_MAX)

    return stored(op.lo), stored(op.hi)


def _check_accumulator(weight: Tensor, bias: Tensor, x_zero_point: int, axis: int) -> None:
    """Refuse products whose sums may leave int32; output channels lie along ``axis``."""
    assert weight.data is not None and bias.data is not None
    largest = max(x_zero_point - INT8_MIN, INT8_MAX - x_zero_point)
    rest = tuple(i for i in range(weight.data.ndim) if i != axis)
    per_channel = np.abs(weight.data.astype(np.int64)).sum(axis=rest)
    worst = int((per_channel * largest + np.abs(bias.data.astype(np.int64))).max())
    if worst >= INT32_LIMIT:
        raise VdlaError(f"the sum of products may reach {worst}, beyond int32")
