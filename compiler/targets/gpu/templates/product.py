"""Operators that are products of matrices: dense layers, and convolutions as products of implicit
matrices, which are read from the operands as they are. A transposed convolution is a product for
each phase of its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ....graph.arithmetic.requant import Requant
from ....graph.ir import Graph, Node
from ....graph.ir import Tensor as GraphTensor
from ....graph.ops.base import Op, Shape, Type
from ....graph.ops.channels_last import ChannelsLast
from ....graph.ops.convolution import Conv2d, ConvTranspose2d, QConv2d, QConvTranspose2d
from ....graph.ops.fused_pairs import ProductChain
from ....graph.ops.in_phases import InPhases
from ....graph.ops.linear import Dense, MatMul, QDense, TransposedMatMul
from ....graph.ops.narrow import Narrow, without_narrow
from ....te.expr import HALF_DTYPES, Const, Expr, Read, Var, rewrite
from ....te.tensor import Tensor, compute, placeholder
from ....topi import clip_between, window_counts
from ....topi.quantisation import clipped, rescale
from ...common.workload import OperatorWorkload

#: An image with channels last has multiples of so many, or its windows are read by rows.
LEAST_CHANNELS = 16

T = TypeVar("T")
Element = Callable[[Expr, Expr, Expr, Expr], tuple[Expr, list[Expr]]]


@dataclass(frozen=True)
class Product:
    """``result[b, i, j] = epilogue(b, i, j, sum over t and k of left(b, i, t, k) * right(b, j, t,
    k))``; t are the taps of a window whose channels lie side by side, or its rows, or 0 alone.

    Attributes
    ----------
    sizes : of b, i, j and k
    left, right : an element of a factor, and the condition on which it exists; else it is 0
    dtype : of the sums, to which the factors are converted
    args : the placeholders of all operands and attributes
    attributes : the values of attributes
    right_by_column : whether steps of k lie side by side in the right factor
    taps : how many t there are
    zero_point : of the left factor, which ``left`` subtracts; ``raw_left`` is the factor as it is
        stored, whose elements that do not exist are the zero point
    place : the index of a result in the operator's, by b, i and j
    rows_first : whether results are stored by i, b and j
    placed : the operator's result, from the product's; None: the product's, in its order
    """

    sizes: tuple[int, int, int, int]
    left: Element
    right: Element
    epilogue: Callable[[Expr, Expr, Expr, Expr], Expr]
    dtype: str
    args: list[Tensor]
    attributes: tuple[np.ndarray, ...] = ()
    right_by_column: bool = False
    taps: int = 1
    zero_point: int = 0
    raw_left: Element | None = None
    place: Callable[[Expr, Expr, Expr], tuple[Expr, ...]] = lambda b, i, j: (i, j)
    rows_first: bool = False
    placed: Callable[[Tensor], Tensor] | None = None

    def in_order(self, first: T, second: T, third: T) -> tuple[T, T, T]:
        """What belongs to b, i and j in the order in which results are stored, and back."""
        return (second, first, third) if self.rows_first else (first, second, third)

    def with_zero_point(self, sums: np.ndarray) -> Product:
        """The product whose left factor is as it is stored; what its zero point adds to each sum is
        subtracted from it: so many times ``sums[b, j]``, those of the right factor's columns."""
        less = placeholder(sums.shape, "int32", "less")

        def epilogue(b: Expr, i: Expr, j: Expr, acc: Expr) -> Expr:
            return self.epilogue(b, i, j, acc - less[b, j])

        assert self.raw_left is not None
        values = (*self.attributes, (self.zero_point * sums).astype(np.int32))
        return replace(
            self, left=self.raw_left, epilogue=epilogue, args=[*self.args, less], attributes=values
        )


def find_product_op(op: Op) -> Op:
    """The product of an operator, whatever follows it and its tensors are stored in."""
    return without_narrow(op.first if isinstance(op, ProductChain) else op)


def is_in_phases(op: Op) -> bool:
    """Whether a kernel of its own puts a product's results into their places."""
    op = find_product_op(op)
    return isinstance(op.op if isinstance(op, ChannelsLast) else op, InPhases)


def find_sizes(workload: OperatorWorkload) -> tuple[int, int, int, int]:
    """Batch, rows, columns and depth of the product of a workload."""
    (x, _), (weight, _) = workload.operands[:2]
    result, _ = workload.result
    match find_product_op(workload.op):
        case InPhases() as op:
            return _sizes_in_phases(op, False, x, weight)
        case ChannelsLast(InPhases() as op):
            return _sizes_in_phases(op, True, x, weight)
        case ChannelsLast(Conv2d() | QConv2d() as inner):
            steps = weight[2] if _is_by_rows(inner, x[-1]) else 1
            return 1, math.prod(result[:-1]), weight[0], steps * x[-1]
        case Conv2d() | QConv2d() as inner:
            groups = inner.groups
            return x[0] * groups, weight[0] // groups, math.prod(result[2:]), math.prod(weight[1:])
        case MatMul() as op if len(weight) > 2:
            (*lead, rows, depth), (*_, columns) = op.factor_shapes(x, weight)
            return math.prod(lead), rows, columns, depth
    return 1, math.prod(result[:-1]), result[-1], x[-1]


def count_taps(workload: OperatorWorkload) -> int:
    """Taps of the window of a workload whose channels lie side by side, or 1."""
    (x, _), (weight, _) = workload.operands[:2]
    match find_product_op(workload.op):
        case ChannelsLast(Conv2d() | QConv2d() as inner):
            return weight[1] if _is_by_rows(inner, x[-1]) else weight[1] * weight[2]
    return 1


def make_product(graph: Graph, node: Node) -> Product:
    """A node as a product of matrices."""
    tensors = graph.operands(node)
    match node.op:
        case ProductChain(first, last, extra):
            inputs = node.inputs[: len(node.inputs) - extra]
            product = make_product(graph, replace(node, op=first, inputs=inputs))
            return _with_chain(product, first, last, tensors, len(inputs))
        case Narrow(op, result):
            wide = make_product(graph, replace(node, op=op))
            return replace(wide, epilogue=lambda *at: wide.epilogue(*at).astype(result))
        case InPhases() as op:
            return _in_phases(op, False, *((t.shape, t.dtype) for t in tensors))
        case ChannelsLast(InPhases() as op):
            return _in_phases(op, True, *((t.shape, t.dtype) for t in tensors))
        case ChannelsLast(Conv2d() | QConv2d() as op):
            return _channels_last(op, *((t.shape, t.dtype) for t in tensors))
        case Conv2d() | QConv2d() as op:
            return _convolution(op, [t.shape for t in tensors], [t.dtype for t in tensors])
        case MatMul() as op if len(tensors[1].shape) > 2:
            return _batched(op, tensors)
        case Dense() | MatMul() as op:
            by_column = isinstance(op, TransposedMatMul) or (
                isinstance(op, Dense) and op.transposed
            )
            return _dense(op, tensors, by_column)
        case QDense() as op:
            return _dense(op, tensors, by_column=True)
    raise AssertionError(f"{node.op.name} is no product")


def _with_chain(
    product: Product, first: Op, last: Op, tensors: Sequence[GraphTensor], count: int
) -> Product:
    """The product with element-wise operators behind it, whose other operands are those from
    ``count`` on."""
    shape, dtype = first.infer(*((t.shape, t.dtype) for t in tensors[:count]))
    more = [placeholder(t.shape or (1,), t.dtype, f"y{n}") for n, t in enumerate(tensors[count:])]
    sums = placeholder(shape, dtype, "sums")
    found = last.expression([sums, *more], [shape, *(t.shape for t in tensors[count:])])

    def epilogue(b: Expr, i: Expr, j: Expr, acc: Expr) -> Expr:
        total = product.epilogue(b, i, j, acc)

        def element(tensor: Tensor, at: tuple[Expr, ...]) -> Expr:
            if tensor is sums or tensor.body is None:
                return total if tensor is sums else Read(tensor, at)
            values = {axis.var: index for axis, index in zip(tensor.axes, at, strict=True)}
            return rewrite(tensor.body, lambda node: inlined(node, values))

        def inlined(node: Expr, values: Mapping[Var, Expr]) -> Expr | None:
            if isinstance(node, Read):
                return element(node.source, node.indices)
            return values.get(node) if isinstance(node, Var) else None

        return element(found.output, product.place(b, i, j))

    args = [*product.args[:count], *more, *product.args[count:], *found.args[len(more) + 1 :]]
    values = (*product.attributes, *found.attributes)
    return replace(product, epilogue=epilogue, args=args, attributes=values)


def column_sums(op: Op, weight: np.ndarray) -> np.ndarray:
    """The sums of the right factor's columns, which are outputs, for each b."""
    match op:
        case ChannelsLast(InPhases()):
            return weight.sum((1, 2, 4), dtype=int)
    return weight.reshape(1, len(weight), -1).sum(2, dtype=int)


def _dense(op: Dense | MatMul | QDense, tensors: Sequence[GraphTensor], by_column: bool) -> Product:
    """Rows are those of all matrices of the left factor."""
    *lead, depth = tensors[0].shape
    rows, columns = math.prod(lead), tensors[1].shape[0 if by_column else 1]
    shapes = [(rows, depth), *(t.shape for t in tensors[1:])]
    x, w, *bias = (placeholder(s, t.dtype, n) for s, t, n in zip(shapes, tensors, "xwb"))  # noqa: B905
    zero, dtype = _arithmetic(op)
    dtype = x.dtype if isinstance(op, MatMul) and x.dtype not in HALF_DTYPES else dtype

    def raw_left(b: Expr, i: Expr, t: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        return x[i, k], []

    def right(b: Expr, j: Expr, t: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        return (w[j, k] if by_column else w[k, j]), []

    epilogue, more, values = _epilogue(op, bias)
    return Product(
        (1, rows, columns, depth), _less(raw_left, zero), right,
        lambda b, i, j, acc: epilogue(acc, j), dtype,
        [x, w, *bias, *more], values, by_column, zero_point=zero, raw_left=raw_left,
        place=lambda b, i, j: (*_find_index(i, lead), j),
    )  # fmt: skip


def _batched(op: MatMul, tensors: Sequence[GraphTensor]) -> Product:
    """Matrices of which b is the number; dimensions may have any order in memory."""
    (*lead, rows, depth), (*_, columns) = op.factor_shapes(*(t.shape for t in tensors))
    plain = tuple(range(len(lead) + 2))
    orders = op.orders if isinstance(op, TransposedMatMul) else (plain, plain, plain)

    def factor(number: int, name: str) -> tuple[Tensor, Callable[[Expr, Expr, Expr], Expr]]:
        order, shape = orders[number], tensors[number].shape
        kept = [d for d in plain if shape[d] > 1 or order.index(d) in plain[-2:]]
        made = placeholder(tuple(shape[d] for d in kept), tensors[number].dtype, name)

        def element(b: Expr, row: Expr, column: Expr) -> Expr:
            at = (*_find_index(b, lead), row, column)
            return made[tuple(at[order.index(d)] for d in kept)]

        return made, element

    def place(b: Expr, i: Expr, j: Expr) -> tuple[Expr, ...]:
        at = (*_find_index(b, lead), i, j)
        return tuple(at[d] for d in orders[2])

    (x, left), (w, right) = factor(0, "x"), factor(1, "w")
    batch = math.prod(lead)
    return Product(
        (batch, rows, columns, depth), lambda b, i, t, k: (left(b, i, k), []),
        lambda b, j, t, k: (right(b, k, j), []), lambda b, i, j, acc: acc,
        "float32" if x.dtype in HALF_DTYPES else x.dtype, [x, w],
        right_by_column=orders[1][-1] != plain[-1], place=place,
        rows_first=batch > 1 and orders[2] != plain,
    )  # fmt: skip


def _find_index(position: Expr, sizes: Sequence[int]) -> tuple[Expr, ...]:
    """The index of an element in an array of these sizes, from its position."""
    found = list[Expr]()
    for d, size in enumerate(sizes):
        index = position // math.prod(sizes[d + 1 :])
        found.append(index % size if size == 1 or math.prod(sizes[:d]) > 1 else index)
    return tuple(found)


def _convolution(op: Conv2d | QConv2d, shapes: list[tuple[int, ...]], dtypes: list[str]) -> Product:
    (images, _, height, width), (outputs, per_group, *kernel) = shapes[:2]
    depth, groups = per_group * math.prod(kernel), op.groups
    rows = outputs // groups
    counts = window_counts((height, width), tuple(kernel), op.strides, op.pads, op.dilations)
    x = placeholder(shapes[0], dtypes[0], "x")
    w = placeholder((outputs, depth), dtypes[1], "w")
    bias = [placeholder(s, d, "b") for s, d in zip(shapes[2:], dtypes[2:], strict=True)]
    zero, dtype = _arithmetic(op)

    def left(b: Expr, i: Expr, t: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        return w[b % groups * rows + i, k], []

    def right(b: Expr, j: Expr, t: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        taps = (k // kernel[1] % kernel[0], k % kernel[1])
        at = (j // counts[1], j % counts[1])
        places, inside = _windowed(op, (height, width), kernel, counts, at, taps)
        channel = b % groups * per_group + k // math.prod(kernel)
        return x[(b // groups, channel, *places)], inside

    epilogue, more, values = _epilogue(op, bias)
    return Product(
        (images * groups, rows, math.prod(counts), depth), left, _less(right, zero),
        lambda b, i, j, acc: epilogue(acc, b % groups * rows + i), dtype, [x, w, *bias, *more],
        values, place=lambda b, i, j: (
            b // groups, b % groups * rows + i, j // counts[1], j % counts[1]
        ),
    )  # fmt: skip


def _channels_last(op: Conv2d | QConv2d, x_type: Type, w_type: Type, *rest: Type) -> Product:
    """Images [N, H, W, C] and weights [O, KH, KW, C]: rows are places, columns are channels. Where
    each place of the result is one of the image, the image is a matrix as it is. Where windows are
    read by rows, the columns and channels of each are steps side by side."""
    (images, height, width, channels), x_dtype = x_type
    (outputs, *kernel, _), w_dtype = w_type
    counts = window_counts((height, width), tuple(kernel), op.strides, op.pads, op.dilations)
    plain = is_matrix(op, kernel)
    by_rows = not plain and _is_by_rows(op, channels)
    taps_of_all, depth = math.prod(kernel), channels
    x_shape = (images * height * width, channels) if plain else x_type[0]
    if by_rows:
        taps_of_all, depth = kernel[0], kernel[1] * channels
        x_shape = (images, height, width * channels)
    x = placeholder(x_shape, x_dtype, "x")
    w = placeholder((outputs, taps_of_all, depth), w_dtype, "w")
    bias = [placeholder(s, d, "b") for s, d in rest]
    zero, dtype = _arithmetic(op)

    def raw_left(b: Expr, i: Expr, t: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        if plain:
            return x[i, k], []
        at = (i // counts[1] % counts[0], i % counts[1])
        if by_rows:
            row = at[0] * op.strides[0] + t * op.dilations[0]
            return x[i // math.prod(counts), row, at[1] * (op.strides[1] * channels) + k], []
        taps = (t // kernel[1], t % kernel[1])
        places, inside = _windowed(op, (height, width), kernel, counts, at, taps)
        return x[(i // math.prod(counts), *places, k)], inside

    def right(b: Expr, j: Expr, t: Expr, k: Expr) -> tuple[Expr, list[Expr]]:
        return w[j, t, k], []

    epilogue, more, values = _epilogue(op, bias)
    return Product(
        (1, images * math.prod(counts), outputs, depth), _less(raw_left, zero), right,
        lambda b, i, j, acc: epilogue(acc, j), dtype, [x, w, *bias, *more], values,
        right_by_column=True, taps=taps_of_all, zero_point=zero, raw_left=raw_left,
        place=lambda b, i, j: (
            i // math.prod(counts), i // counts[1] % counts[0], i % counts[1], j
        ),
    )  # fmt: skip


def _sizes_in_phases(
    op: InPhases, is_last: bool, x: Shape, weight: Shape
) -> tuple[int, int, int, int]:
    """Batch, rows, columns and depth: b is a phase. With channels last, rows are its places in all
    images and columns are outputs; else it is the other way round, and k has taps, too."""
    phases, *taps, outputs, channels = weight
    places = x[0] * math.prod(op.counts)
    if is_last:
        return phases, places, outputs, channels
    return phases, outputs, places, math.prod(taps) * channels


def _in_phases(op: InPhases, is_last: bool, x_type: Type, w_type: Type, *rest: Type) -> Product:
    """Images [N, H, W, C] or [N, C, H, W] and weights [phase, TH, TW, O, C]; the results of each
    phase lie side by side, and are put into their places behind it."""
    (x_shape, x_dtype), (w_shape, w_dtype) = x_type, w_type
    phases, *taps, outputs, channels = w_shape
    taps_of_all = math.prod(taps)
    sides = x_shape[1:3] if is_last else x_shape[2:]
    x = placeholder(x_shape, x_dtype, "x")
    w = placeholder((phases * taps_of_all, outputs, channels), w_dtype, "w")
    bias = [placeholder(s, d, "b") for s, d in rest]
    zero, dtype = _arithmetic(op.op)

    def element(b: Expr, place: Expr, t: Expr, c: Expr) -> tuple[Expr, list[Expr]]:
        n, *at, inside = _tap_of_phase(op, sides, taps, b, place, t)
        return x[(n, *at, c) if is_last else (n, c, *at)], inside

    def factor(b: Expr, o: Expr, t: Expr, c: Expr) -> tuple[Expr, list[Expr]]:
        return w[b * taps_of_all + t, o, c], []

    def with_taps(rule: Element) -> Element:
        return lambda b, i, t, k: rule(b, i, k // channels, k % channels)

    def placed(parts: Tensor) -> Tensor:
        (rows, columns), (down, right) = op.counts, op.op.strides

        def rule(*at: Expr) -> Expr:
            n, h, w, c = at if is_last else (at[0], *at[2:], at[1])
            phase = h % down * right + w % right
            place = (n * rows + h // down) * columns + w // right
            return parts[(phase, place, c) if is_last else (phase, c, place)]

        inner = (*op.op.size, outputs) if is_last else (outputs, *op.op.size)
        return compute((x_shape[0], *inner), rule, "out")

    epilogue, more, values = _epilogue(op.op, bias)
    shifted = _less(element, zero)
    left, right = (shifted, factor) if is_last else (with_taps(factor), with_taps(shifted))
    return Product(
        _sizes_in_phases(op, is_last, x_shape, w_shape), left, right,
        lambda b, i, j, acc: epilogue(acc, j if is_last else i), dtype, [x, w, *bias, *more],
        values, right_by_column=is_last, taps=taps_of_all if is_last else 1, zero_point=zero,
        raw_left=element, placed=placed,
    )  # fmt: skip


def _tap_of_phase(
    op: InPhases, sides: Sequence[int], taps: Sequence[int], phase: Expr, place: Expr, tap: Expr
) -> tuple[Expr, Expr, Expr, list[Expr]]:
    """The image, the row and the column that a tap of a phase's place sees, and the conditions on
    which they are inside."""
    (rows, columns), strides, before = op.counts, op.op.strides, op.op.before
    of_phase = (phase // strides[1], phase % strides[1])
    starts = (place // columns % rows, place % columns)
    steps = (tap // taps[1], tap % taps[1])
    found, inside = [], []
    for d, side in enumerate(sides):
        border = taps[d] - 1
        first, last = before[d] // strides[d], (strides[d] - 1 + before[d]) // strides[d]
        reached = starts[d] + (of_phase[d] + before[d]) // strides[d] + steps[d]
        if first < border:
            inside.append(reached >= border)
        if op.counts[d] - 1 + last >= side:
            inside.append(reached < side + border)
        found.append(reached - border)
    return place // (rows * columns), found[0], found[1], inside


def is_matrix(op: Conv2d | QConv2d, kernel: Sequence[int]) -> bool:
    """Whether each place of the result is one of the image, so that the image is a matrix."""
    return math.prod(kernel) == 1 and not any((*op.pads, *(s - 1 for s in op.strides)))


def _is_by_rows(op: Conv2d | QConv2d, channels: int) -> bool:
    """Whether each row of a window in an image [N, H, W, C] is one piece that is read at once."""
    return channels < LEAST_CHANNELS and not any(op.pads) and op.dilations[1] == 1


def _windowed(
    op: Conv2d | QConv2d,
    sizes: tuple[int, int],
    kernel: Sequence[int],
    counts: Sequence[int],
    at: tuple[Expr, Expr],
    taps: tuple[Expr, Expr],
) -> tuple[list[Expr], list[Expr]]:
    """Where in the image a tap of a window is, and the conditions on which it is inside."""
    places, inside = [], []
    for d, size in enumerate(sizes):
        before = op.pads[d]
        last = (counts[d] - 1) * op.strides[d] + (kernel[d] - 1) * op.dilations[d]
        place = at[d] * op.strides[d] + taps[d] * op.dilations[d]
        if before:
            inside.append(place >= before)
        if last - before >= size:
            inside.append(place < size + before)
        places.append(place - before)
    return places, inside


def _arithmetic(op: Op) -> tuple[int, str]:
    """The zero point of an operator's image, and the dtype of its sums."""
    if isinstance(op, QConv2d | QConvTranspose2d | QDense):
        return op.x_zero_point, "int32"
    return 0, "float32"


def _less(element: Element, zero_point: int) -> Element:
    """An element less its zero point, which may need 9 bits."""
    if not zero_point:
        return element

    def shifted(*at: Expr) -> tuple[Expr, list[Expr]]:
        value, inside = element(*at)
        return value.astype("int16") - zero_point, inside

    return shifted


def _epilogue(
    op: Conv2d | QConv2d | ConvTranspose2d | QConvTranspose2d | Dense | MatMul | QDense,
    bias: Sequence[Tensor],
) -> tuple[Callable[[Expr, Expr], Expr], list[Tensor], tuple[np.ndarray, ...]]:
    """What follows a sum of a channel: a function of both, its parameters and their values."""

    def total(acc: Expr, channel: Expr) -> Expr:
        return acc + bias[0][channel] if bias else acc

    match op:
        case QConv2d() | QConvTranspose2d() | QDense():
            requant: Requant = op.requant
            multiplier = placeholder(requant.multiplier.shape, "int32", "multiplier")
            shift = placeholder(requant.shift.shape, "int32", "shift")

            def requantized(acc: Expr, channel: Expr) -> Expr:
                at = channel if requant.multiplier.shape[0] > 1 else Const(0)
                scaled = rescale(total(acc, channel), multiplier[at], shift[at], requant.rounding)
                return clipped(scaled, requant.zero_point, requant.lo, requant.hi)

            return requantized, [multiplier, shift], (requant.multiplier, requant.shift)
        case Conv2d() | ConvTranspose2d() | Dense():
            return lambda acc, channel: clip_between(total(acc, channel), op.lo, op.hi), [], ()
    return total, [], ()
