"""Rewrite a float model, without changing its meaning, into the form that suits integers best.

Constants are folded, batch normalisation becomes part of the convolution before it (or one of its
own), a product and the constant added to it become one node, zeros padded around an image become
the pads of its convolution, and a mean over height and width an average pool. A product of tokens
by a weight becomes one of rows, which takes over a number that scores of attention are multiplied
by. A GRU becomes products, sums and functions for each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from .draft import Draft, attribute, label, operands, set_attribute
from .recurrent import unroll_gru

#: Nodes without inputs whose result differs from run to run.
_RANDOM = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli")
#: Nodes with results of more elements are not folded here; that is left to the compiler.
_MOST_ELEMENTS = 1 << 24

Rewriting = Callable[[Draft], None]


def prepare(draft: Draft) -> None:
    """Apply every rewriting, in order."""
    for rewriting in REWRITINGS:
        rewriting(draft)


def fold_constants(draft: Draft) -> None:
    """Compute the nodes that depend on constants only."""
    kept = []
    imports = list(draft.model.opset_import)
    for node in draft.nodes:
        known = all(name in draft.constants for name in operands(node))
        small = all(np.prod(draft.shapes.get(n, ())) <= _MOST_ELEMENTS for n in node.output if n)
        if not known or not small or node.op_type.startswith(_RANDOM) or node.domain:
            kept.append(node)
            continue
        names = [name for name in node.output if name]
        graph = helper.make_graph(
            [node], "constant", [], [helper.make_empty_tensor_value_info(n) for n in names]
        )
        for name in dict.fromkeys(operands(node)):
            graph.input.append(helper.make_empty_tensor_value_info(name))
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
        values = evaluator.run(None, {n: draft.constants[n] for n in operands(node)})
        draft.constants |= {n: np.asarray(v) for n, v in zip(names, values, strict=True)}
    draft.nodes = kept


def drop_identities(draft: Draft) -> None:
    """Remove Identity, and Dropout whose mask nobody reads."""
    readers = draft.readers()
    renamed: dict[str, str] = {}
    kept = []
    for node in draft.nodes:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        masked = len(node.output) > 1 and readers[node.output[1]]
        same = node.op_type == "Identity" or (node.op_type == "Dropout" and not masked)
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
    between two Reshapes, and takes over a constant per channel that is added to it."""
    rows: dict[str, str] = {}
    sizes = draft.written_shapes()
    for node in list(draft.nodes):
        result = node.output[0]
        if node.op_type != "MatMul" or not _is_of_tokens(draft, node) or result not in sizes:
            continue
        x, weight = node.input[0], draft.constants[node.input[1]]
        back = np.array(sizes[result])
        made = []
        if x not in rows:
            rows[x] = draft.fresh(f"{x}.rows")
            flat = draft.constant(f"{rows[x]}.shape", np.array([-1, weight.shape[0]]))
            made.append(helper.make_node("Reshape", [x, flat], [rows[x]], rows[x]))
        inputs = [rows[x], node.input[1]]
        added = _added_constant(draft, node)
        if added is not None:
            sum_, bias = added
            inputs.append(draft.constant(f"{result}.bias", bias.astype(np.float32)))
            result = sum_.output[0]
            draft.nodes.remove(sum_)
            draft.fused.append(label(sum_))
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
    comes from, through products with other activations and moves, where nothing else reads what is
    between: attention's scores need no operator of their own for it."""
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
        if node.op_type not in ("MatMul", "Reshape", "Transpose"):
            return None
        is_product |= node.op_type == "MatMul"
        name = node.input[0]
    return None


REWRITINGS: tuple[Rewriting, ...] = (
    fold_constants,
    drop_identities,
    fold_batch_norms,
    add_biases,
    fold_pads,
    mean_to_pool,
    flatten_products,
    scale_weights,
    unroll_gru,
)


# ---- shared by the rewritings ----


def _is_of_tokens(draft: Draft, node: onnx.NodeProto) -> bool:
    x, weight = node.input
    known = draft.constants.get(weight)
    return known is not None and known.ndim == 2 and len(draft.shapes.get(x, ())) > 2


def _added_constant(draft: Draft, node: onnx.NodeProto) -> tuple[onnx.NodeProto, np.ndarray] | None:
    """The Add that alone reads a product and adds a constant, as one number [C] per channel."""
    result = node.output[0]
    if draft.readers()[result] != 1:
        return None
    reader = next((other for other in draft.nodes if result in other.input), None)
    if reader is None or reader.op_type != "Add":
        return None
    value = draft.constants.get(next((name for name in reader.input if name != result), ""))
    channels = None if value is None else _per_channel(draft, node, value)
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
