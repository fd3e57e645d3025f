"""Rewrite a float model, without changing its meaning, into the form that suits integers best.

Constants are folded, batch normalisation becomes part of the convolution before it (or one of its
own), a product and the constant added to it become one node, zeros padded around an image become
the pads of its convolution, and a mean over height and width an average pool. A product of tokens
by a weight becomes one of rows, which takes over a number that scores of attention are multiplied
by. A GRU becomes products, sums and functions for each step, and a convolution over three
dimensions one over two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..frontends.onnx.importer import import_onnx
from ..frontends.sizes import Sizes
from ..graph.interpret import interpret
from .caches import read_before_writing, scatter_rows
from .draft import Draft, attribute, label, names_read, operands, set_attribute
from .recurrent import unroll_gru

#: Nodes with results of more elements are not folded here; that is left to the compiler.
_MOST_ELEMENTS = 1 << 24

Rewriting = Callable[[Draft], None]


def prepare(draft: Draft) -> None:
    """Apply every rewriting, in order."""
    for rewriting in REWRITINGS:
        rewriting(draft)


def fold_constants(draft: Draft) -> None:
    """Compute the nodes that depend on constants only."""
    known, kept = {*draft.constants}, []
    for node in draft.nodes:
        small = all(math.prod(draft.shapes.get(n, ())) <= _MOST_ELEMENTS for n in node.output if n)
        nested = any(item.HasField("g") for item in node.attribute)
        if small and not nested and known.issuperset(operands(node)):
            known |= {*node.output}
        else:
            kept.append(node)
    read = {name for node in kept for name in names_read(node)} | {*draft.outputs}
    wanted = [name for node in draft.nodes for name in node.output if name in known & read]
    if wanted:
        model, large = draft.outline(wanted)
        del model.graph.input[: len(draft.inputs)]
        values = interpret(import_onnx(model, Sizes(values=large)))
        draft.constants |= zip(wanted, values, strict=True)
    draft.nodes = kept


def drop_identities(draft: Draft) -> None:
    """Remove Identity, Concat of one tensor, and Dropout whose mask nobody reads."""
    readers = draft.readers()
    renamed: dict[str, str] = {}
    kept = []
    for node in draft.nodes:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        masked = len(node.output) > 1 and readers[node.output[1]]
        alone = node.op_type == "Concat" and len(node.input) == 1
        same = node.op_type == "Identity" or (node.op_type == "Dropout" and not masked) or alone
        if same and node.output[0] not in draft.outputs:
            renamed[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    draft.nodes = kept


def fold_batch_norms(draft: Draft) -> None:
    """``BatchNormalization(Conv(x))`` becomes ``Conv(x)`` with other weights; a BatchNormalization
    after another operator becomes a depthwise 1x1 convolution."""
    for node in list(draft.nodes):
        if node.op_type != "BatchNormalization" or len([*node.output]) != 1:
            continue
        if not all(name in draft.constants for name in node.input[1:]):
            continue
        scale, shift, mean, variance = (
            draft.constants[name].astype(np.float64) for name in node.input[1:]
        )
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        offset = shift - mean * factor
        source = _only_read_here(draft, node, "Conv")
        if source is not None:
            _scale_conv(draft, source, factor, offset)
            _take_output(draft, source, node)
        elif len(draft.shapes[node.input[0]]) == 4:
            weight = factor.reshape(-1, 1, 1, 1).astype(np.float32)
            names = [
                draft.constant(f"{node.output[0]}.weight", weight),
                draft.constant(f"{node.output[0]}.bias", offset.astype(np.float32)),
            ]
            conv = helper.make_node(
                "Conv", [node.input[0], *names], node.output, node.name,
                group=len(factor), kernel_shape=[1, 1],
            )  # fmt: skip
            draft.nodes[draft.place(node)] = conv
        else:
            continue
        draft.fused.append(label(node))


def add_biases(draft: Draft) -> None:
    """``Add(Conv(x), b)`` and ``Add(MatMul(x, w), b)`` with a constant per channel become one node;
    so does ``Mul`` after Conv."""
    for node in list(draft.nodes):
        if node.op_type not in ("Add", "Sub", "Mul"):
            continue
        constant = next((i for i in (0, 1) if node.input[i] in draft.constants), None)
        if constant is None or (node.op_type == "Sub" and constant == 0):
            continue
        value = draft.constants[node.input[constant]].astype(np.float64)
        value = -value if node.op_type == "Sub" else value
        source = _only_read_here(draft, node, "Conv", "MatMul", position=1 - constant)
        channels = None if source is None else _per_channel(draft, source, value)
        if source is None or channels is None:
            continue
        if source.op_type == "Conv":
            one, zero = np.ones_like(channels), np.zeros_like(channels)
            pair = (channels, zero) if node.op_type == "Mul" else (one, channels)
            _scale_conv(draft, source, *pair)
        elif node.op_type == "Mul" or len(draft.shapes[source.input[0]]) != 2:
            continue
        else:
            source.op_type = "Gemm"
            bias = draft.constant(f"{node.output[0]}.bias", channels.astype(np.float32))
            source.input.append(bias)
        _take_output(draft, source, node)
        draft.fused.append(label(node))


def fold_pads(draft: Draft) -> None:
    """``Conv(Pad(x))`` becomes ``Conv(x)`` with larger pads, where the padding is zeros."""
    producers, readers = draft.producers(), draft.readers()
    for node in list(draft.nodes):
        source = producers.get(node.input[0]) if node.op_type == "Conv" else None
        if source is None or source.op_type != "Pad" or readers[source.output[0]] != 1:
            continue
        pads = _image_pads(draft, source)
        automatic = attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
        if pads is None or automatic:
            continue
        own = attribute(node, "pads", [0] * 4)
        set_attribute(node, "pads", [a + b for a, b in zip(own, pads, strict=True)])
        set_attribute(node, "auto_pad", "NOTSET")
        node.input[0] = source.input[0]
        draft.nodes.remove(source)
        draft.fused.append(label(source))


def mean_to_pool(draft: Draft) -> None:
    """ReduceMean over height and width becomes GlobalAveragePool, and Flatten where it drops
    these dimensions."""
    for node in list(draft.nodes):
        if node.op_type != "ReduceMean" or len(draft.shapes.get(node.input[0], ())) != 4:
            continue
        axes = attribute(node, "axes", None)
        if axes is None and len(node.input) > 1 and node.input[1] in draft.constants:
            axes = draft.constants[node.input[1]].tolist()
        if axes is None or sorted(axis % 4 for axis in axes) != [2, 3]:
            continue
        place, result = draft.place(node), node.output[0]
        keep = bool(attribute(node, "keepdims", 1))
        pooled = result if keep else draft.fresh(f"{result}.pool")
        made = [helper.make_node("GlobalAveragePool", [node.input[0]], [pooled], node.name)]
        if not keep:
            made.append(helper.make_node("Flatten", [pooled], [result], f"{label(node)}.flatten"))
            draft.shapes[pooled] = (*draft.shapes[result], 1, 1)
            draft.dtypes[pooled] = draft.dtypes[result]
        draft.nodes[place : place + 1] = made


def flatten_products(draft: Draft) -> None:
    """``MatMul(x, w)`` of more than two dimensions by a constant matrix becomes a Gemm of all rows
    between two Reshapes, and takes over constants per channel that are added to it and that it is
    multiplied by."""
    rows: dict[str, str] = {}
    sizes = draft.written_shapes()
    for node in list(draft.nodes):
        result = node.output[0]
        if node.op_type != "MatMul" or not _is_of_tokens(draft, node) or result not in sizes:
            continue
        x, weight = node.input[0], draft.constants[node.input[1]]
        back = np.array(sizes[result])
        if (back > 0).all():
            back[-2] = -1  # the step of a decoder may get other rows
        made = []
        if x not in rows:
            rows[x] = draft.fresh(f"{x}.rows")
            flat = draft.constant(f"{rows[x]}.shape", np.array([-1, weight.shape[0]]))
            made.append(helper.make_node("Reshape", [x, flat], [rows[x]], rows[x]))
        inputs, merged, bias = [rows[x], node.input[1]], [node], None
        if (added := _reader_with_constant(draft, node, "Add")) is not None:
            merged.append(added[0])
            bias = added[1]
        if (scaled := _reader_with_constant(draft, merged[-1], "Mul")) is not None:
            merged.append(scaled[0])
            inputs[1] = draft.constant(f"{result}.scaled", weight * scaled[1].astype(weight.dtype))
            bias = None if bias is None else bias * scaled[1]
        if bias is not None:
            inputs.append(draft.constant(f"{result}.bias", bias.astype(np.float32)))
        for other in merged[1:]:
            result = other.output[0]
            draft.nodes.remove(other)
            draft.fused.append(label(other))
        product = draft.fresh(f"{result}.rows")
        made.append(helper.make_node("Gemm", inputs, [product], label(node)))
        shape = draft.constant(f"{result}.shape", back)
        made.append(helper.make_node("Reshape", [product, shape], [result], f"{label(node)}.back"))
        place, count = draft.place(node), math.prod(draft.shapes[x][:-1])
        draft.nodes[place : place + 1] = made
        draft.shapes |= {rows[x]: (count, weight.shape[0]), product: (count, weight.shape[1])}
        draft.dtypes |= {rows[x]: draft.dtypes[x], product: draft.dtypes[result]}


def scale_weights(draft: Draft) -> None:
    """A number that a result is multiplied or divided by goes into the weights of the Gemm that it
    comes from, through products with other activations, rotary embeddings and moves, where nothing
    else reads what is between: attention's scores need no operator of their own for it."""
    for node in list(draft.nodes):
        if node.op_type not in ("Mul", "Div"):
            continue
        number = draft.constants.get(node.input[1])
        x = node.input[0]
        if node.op_type == "Mul" and number is None:
            number, x = draft.constants.get(node.input[0]), node.input[1]
        if number is None or number.size != 1 or draft.shapes[x] != draft.shapes[node.output[0]]:
            continue
        gemm = _gemm_of(draft, x)
        factor = float(number.reshape(()))
        if gemm is None or not np.isfinite(factor) or factor == 0:
            continue
        for i, name in list(enumerate(gemm.input))[1:]:
            old = draft.constants[name]
            wide = old.astype(np.float64)
            scaled = wide * factor if node.op_type == "Mul" else wide / factor
            gemm.input[i] = draft.constant(f"{name}.scaled", scaled.astype(old.dtype))
        _take_output(draft, draft.producers()[x], node)
        draft.fused.append(label(node))


def join_factors(draft: Draft) -> None:
    """Of two numbers that the operands of a product of activations are multiplied by, as PyTorch
    does with queries and keys, the second goes into the first: keys are no other tensor than those
    in a cache then."""
    producers, readers = draft.producers(), draft.readers()
    for node in draft.nodes:
        if node.op_type != "MatMul":
            continue
        made = [producers.get(name) for name in node.input]
        first, second = (_factor(draft, other) if other else None for other in made)
        if first is None or second is None or readers[node.input[0]] != 1:
            continue
        value = draft.constants[first[1]].astype(np.float64) * draft.constants[second[1]]
        joined = draft.constant(f"{node.output[0]}.factor", value.astype(np.float32))
        assert made[0] is not None
        made[0].input[:] = [first[0], joined]
        node.input[1] = second[0]


def _factor(draft: Draft, node: onnx.NodeProto) -> tuple[str, str] | None:
    """What a Mul multiplies, and the constant number by which, if that is all that it does."""
    if node.op_type != "Mul":
        return None
    for x, number in (node.input, [*node.input][::-1]):
        value = draft.constants.get(number)
        same = draft.shapes.get(x) == draft.shapes[node.output[0]]
        if value is not None and value.size == 1 and same:
            return x, number
    return None


def _gemm_of(draft: Draft, name: str) -> onnx.NodeProto | None:
    """The Gemm with constant weights whose factor is a tensor's, too, and which alone decides about
    it; None if there is none, or no product of activations behind it."""
    producers, readers = draft.producers(), draft.readers()
    is_product = False
    while readers[name] == 1 and (node := producers.get(name)) is not None:
        if node.op_type == "Gemm":
            known = all(other in draft.constants for other in [*operands(node)][1:])
            plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
            return node if known and plain and is_product else None
        if node.op_type not in ("MatMul", "Reshape", "RotaryEmbedding", "Transpose"):
            return None
        is_product |= node.op_type == "MatMul"
        name = node.input[0]
    return None


def stack_depths(draft: Draft) -> None:
    """A convolution over depth, height and width becomes one over height and width. What a depth of
    the result reads are channels of one image, and these images lie one below the other, with the
    padding between them; results across two of them are cut off."""
    for node in list(draft.nodes):
        if node.op_type != "Conv" or len(draft.shapes.get(node.input[0], ())) != 5:
            continue
        weight = draft.constants.get(node.input[1])
        automatic = attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
        if weight is not None and not automatic:
            place = draft.place(node)
            draft.nodes[place : place + 1] = _stacked(draft, node, weight)
            draft.infer()


def _stacked(draft: Draft, node: onnx.NodeProto, weight: np.ndarray) -> list[onnx.NodeProto]:
    """The nodes in place of a convolution with three dimensions, and of the bounds after it."""
    step, row_step, col_step = attribute(node, "strides", [1] * 3)
    apart, row_apart, col_apart = attribute(node, "dilations", [1] * 3)
    front, top, left, back, bottom, right = attribute(node, "pads", [0] * 6)
    channels, _, height, width = draft.shapes[node.input[0]][1:]
    outputs, _, taps, kernel_rows, _ = weight.shape
    _, _, depths, rows, cols = draft.shapes[node.output[0]]
    reach = (kernel_rows - 1) * row_apart + 1
    bottom += -(top + height + bottom) % row_step
    whole, last = top + height + bottom, (depths - 1) * step + 1
    made: list[onnx.NodeProto] = []

    def add(kind: str, x: str, *more: str | list[int], **attributes: Any) -> str:
        """A node; numbers become a constant."""
        y = f"{node.output[0]}.{kind} {len(made)}"
        names = [n if isinstance(n, str) else draft.constant(y, np.array(n)) for n in more]
        y = draft.fresh(f"{y}.y")
        made.append(helper.make_node(kind, [x, *names], [y], y, **attributes))
        return y

    x = node.input[0]
    if front or back or top or bottom:
        x = add("Pad", x, [0, 0, front, top, 0, 0, 0, back, bottom, 0])
    slices = [
        add("Unsqueeze", add("Slice", x, [tap], [tap + last], [2], [step]), [2])
        for tap in range(0, taps * apart, apart)
    ]
    x = add("Concat", slices[0], *slices[1:], axis=2)
    x = add("Reshape", x, [-1, channels * taps, depths * whole, width])
    flat = weight.reshape(outputs, -1, *weight.shape[3:])
    x = add(
        "Conv", x, draft.constant(f"{node.output[0]}.weight", flat), *node.input[2:],
        strides=[row_step, col_step], dilations=[row_apart, col_apart],
        pads=[0, left, max(0, reach - row_step), right], group=attribute(node, "group", 1),
    )  # fmt: skip
    made[-1].name, result = label(node), node.output[0]
    readers = [other for other in draft.nodes if result in other.input]
    if draft.readers()[result] == len(readers) == 1 and readers[0].op_type in ("Relu", "Clip"):
        [reader] = readers
        x = add(reader.op_type, x, *reader.input[1:])
        made[-1].name, result = label(reader), reader.output[0]
        draft.nodes.remove(reader)
    x = add("Reshape", x, [-1, outputs, depths, whole // row_step, cols])
    add("Slice", x, [0], [rows], [3])
    made[-1].output[0] = result
    return made


REWRITINGS: tuple[Rewriting, ...] = (
    fold_constants,
    drop_identities,
    scatter_rows,
    read_before_writing,
    fold_batch_norms,
    add_biases,
    stack_depths,
    fold_pads,
    mean_to_pool,
    flatten_products,
    scale_weights,
    join_factors,
    unroll_gru,
)


# ---- shared by the rewritings ----


def _is_of_tokens(draft: Draft, node: onnx.NodeProto) -> bool:
    x, weight = node.input
    known = draft.constants.get(weight)
    return known is not None and known.ndim == 2 and len(draft.shapes.get(x, ())) > 2


def _reader_with_constant(
    draft: Draft, node: onnx.NodeProto, kind: str
) -> tuple[onnx.NodeProto, np.ndarray] | None:
    """The Add or Mul that alone reads a result, and its constant, as one number [C] per channel.
    One number for all that a result is multiplied by is :func:`scale_weights`' matter."""
    result = node.output[0]
    if draft.readers()[result] != 1:
        return None
    reader = next((other for other in draft.nodes if result in other.input), None)
    if reader is None or reader.op_type != kind:
        return None
    value = draft.constants.get(next((name for name in reader.input if name != result), ""))
    if value is None or (kind == "Mul" and value.size == 1):
        return None
    channels = _per_channel(draft, node, value)
    return None if channels is None else (reader, channels)


def _only_read_here(
    draft: Draft, node: onnx.NodeProto, *kinds: str, position: int = 0
) -> onnx.NodeProto | None:
    """The node that computes an operand, if it is of these kinds, has constant parameters, and
    nothing else reads its result."""
    source = draft.producers().get(node.input[position])
    if source is None or source.op_type not in kinds or draft.readers()[source.output[0]] != 1:
        return None
    return source if all(name in draft.constants for name in [*operands(source)][1:]) else None


def _take_output(draft: Draft, source: onnx.NodeProto, node: onnx.NodeProto) -> None:
    """Let ``source`` compute the output of ``node``, and move it to the place of ``node``, as its
    operands may be computed late.
    """
    draft.nodes = [other for other in draft.nodes if other is not source]
    draft.nodes[draft.place(node)] = source
    source.output[0] = node.output[0]


def _scale_conv(draft: Draft, conv: onnx.NodeProto, factor: np.ndarray, offset: np.ndarray) -> None:
    """Let a convolution compute ``y * factor + offset`` per channel instead of ``y``."""
    weight = draft.constants[conv.input[1]]
    column = factor.reshape(-1, *[1] * (weight.ndim - 1))
    bias = draft.constants[conv.input[2]] if len([*operands(conv)]) > 2 else np.zeros(len(factor))
    base = conv.output[0]
    names = [
        draft.constant(f"{base}.weight", (weight * column).astype(weight.dtype)),
        draft.constant(f"{base}.bias", (bias * factor + offset).astype(weight.dtype)),
    ]
    first = conv.input[0]
    del conv.input[:]
    conv.input.extend([first, *names])


def _per_channel(draft: Draft, source: onnx.NodeProto, value: np.ndarray) -> np.ndarray | None:
    """The value as a constant [C], if broadcasting gives every channel one number of it."""
    shape = draft.shapes[source.output[0]]
    axis = 1 if source.op_type == "Conv" else len(shape) - 1
    full = (1,) * (len(shape) - value.ndim) + value.shape
    if len(full) != len(shape) or any(n != 1 for i, n in enumerate(full) if i != axis):
        return None
    if full[axis] not in (1, shape[axis]):
        return None
    return np.broadcast_to(value.reshape(-1), (shape[axis],))


def _image_pads(draft: Draft, pad: onnx.NodeProto) -> list[int] | None:
    """(top, left, bottom, right), if a Pad does nothing but add zeros around an image."""
    if attribute(pad, "mode", b"constant") != b"constant" or len(pad.input) > 3:
        return None
    if len(pad.input) > 2 and pad.input[2]:
        value = draft.constants.get(pad.input[2])
        if value is None or value.any():
            return None
    pads = draft.constants.get(pad.input[1])
    if pads is None or pads.size != 8 or pads[[0, 1, 4, 5]].any() or (pads < 0).any():
        return None
    return [int(pads[i]) for i in (2, 3, 6, 7)]
