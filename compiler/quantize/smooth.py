"""Channels of similar size: a factor for each channel moves from activations into weights.

One scale serves a whole activation, so a channel with large values takes the levels of all others;
a weight has a scale for each of its output channels. So each channel of an activation is divided by
a factor, where it is made, and the weights that read it are multiplied by it. What the model
computes stays the same. Sources: SmoothQuant (Xiao et al. 2022) for layer normalisations before
products; cross-layer equalisation (Nagel et al. 2019) for convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from .calibrate import Probe, Samples
from .draft import Draft, attribute, copied, label, operands
from .plan import has_weights

#: The most that a factor differs from the mean of all, either way: a channel that is nearly zero on
#: the samples need not be so elsewhere.
MOST_FACTOR = 2.0**10
#: Operators for which ``f(x * s) = f(x) * s`` with positive ``s``, and that keep channels apart.
HOMOGENEOUS = {"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool"}


@dataclass(frozen=True, eq=False)
class Pair:
    """A node that makes an activation, and the products that read it; ``readers`` are what is
    between them, or these products, as far as they read the node's result directly."""

    producer: onnx.NodeProto
    consumers: list[onnx.NodeProto]
    readers: list[onnx.NodeProto]


def smooth(
    draft: Draft, pairs: list[Pair], samples: Samples, strength: float, advance: Callable[[], None]
) -> None:
    """Move the factors of all pairs, which :func:`find_pairs` found.

    Parameters
    ----------
    strength : float
        0 to 1: how much of the difference between channels moves into weights. Depthwise
        convolutions take all of it, as they have a scale for each channel.
    """
    tensors = tuple(dict.fromkeys(c.input[0] for pair in pairs for c in pair.consumers))
    most = {name: np.zeros(1) for name in tensors}
    axes = {c.input[0]: _channel_axis(c) for pair in pairs for c in pair.consumers}
    for values in Probe(draft, samples, tensors).run(advance):
        for name, value in values.items():
            others = tuple(i for i in range(value.ndim) if i != axes[name] % value.ndim)
            most[name] = np.maximum(most[name], np.abs(value.astype(np.float64)).max(axis=others))
    for pair in pairs:
        activation = np.max([most[c.input[0]] for c in pair.consumers], axis=0)
        move(draft, pair, _factors(draft, pair.consumers, activation, strength))


def move(draft: Draft, pair: Pair, factors: np.ndarray) -> None:
    """Divide what the producer makes by the factors [C], and multiply what reads it."""
    for consumer in pair.consumers:
        _multiply(draft, consumer, factors)
    _divide(draft, _own_producer(draft, pair), factors)


# ---- what belongs together ----


def find_pairs(draft: Draft) -> list[Pair]:
    """Every node whose result only products read, so that its channels can be divided. Of a layer
    normalisation some readers may be others."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in draft.nodes:
        for name in dict.fromkeys(operands(node)):
            readers.setdefault(name, []).append(node)

    def consumers(node: onnx.NodeProto, name: str, axis: int) -> list[onnx.NodeProto] | None:
        """The products that read a tensor's channels by way of a node; None if others do, too."""
        if has_weights(draft, node):
            fits = node.input[0] == name and axis == _channel_axis(node) % _rank(draft, name)
            return [node] if fits and _is_plain(node) else None
        result = node.output[0]
        after = _axis_after(draft, node, axis) if node.input[0] == name else None
        if after is None or result in draft.outputs:
            return None
        found = [consumers(reader, result, after) for reader in readers.get(result, [])]
        return None if None in found else [c for part in found if part for c in part]

    pairs = []
    for node in draft.nodes:
        name = node.output[0]
        if not _can_be_divided(draft, node):
            continue
        axis = 1 if node.op_type == "Conv" else _rank(draft, name) - 1
        direct = readers.get(name, [])
        found = [consumers(reader, name, axis) for reader in direct]
        kept = [part or [] for part in found]
        # A layer normalisation can be computed twice, once for what else reads it.
        whole = all(kept) and name not in draft.outputs
        if any(kept) and (whole or node.op_type == "LayerNormalization"):
            users = [reader for reader, part in zip(direct, kept, strict=True) if part]
            pairs.append(Pair(node, [c for part in kept for c in part], users))
    return pairs


def _can_be_divided(draft: Draft, node: onnx.NodeProto) -> bool:
    """Whether a node has constants for each channel of its result, which can be divided."""
    if node.op_type == "LayerNormalization":
        rank = _rank(draft, node.output[0])
        last = attribute(node, "axis", -1) in (-1, rank - 1)
        constant = all(name in draft.constants for name in [*operands(node)][1:])
        return last and constant and len([name for name in node.output if name]) == 1
    return has_weights(draft, node) and _is_plain(node)


def _is_plain(node: onnx.NodeProto) -> bool:
    return node.op_type != "Gemm" or (
        attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
        and not attribute(node, "transA", 0)
    )


def _rank(draft: Draft, name: str) -> int:
    return len(draft.shapes[name])


def _channel_axis(product: onnx.NodeProto) -> int:
    """The axis of a product's operand along which its input channels lie."""
    return 1 if product.op_type == "Conv" else -1


def _axis_after(draft: Draft, node: onnx.NodeProto, axis: int) -> int | None:
    """Where the channels of a node's operand are in its result; None if they are mixed."""
    before, after = (draft.shapes.get(name) for name in (node.input[0], node.output[0]))
    if before is None or after is None:
        return None
    match node.op_type:
        case kind if kind in HOMOGENEOUS:
            return axis
        case "Transpose":
            order = attribute(node, "perm", [*reversed(range(len(before)))])
            return [*order].index(axis)
        case "Reshape" | "Flatten" if before[axis] == after[-1] and axis == len(before) - 1:
            return len(after) - 1
        case "Flatten" if axis == 1 and after == before[:2]:
            return 1
    return None


# ---- factors ----


def _factors(
    draft: Draft, consumers: list[onnx.NodeProto], activation: np.ndarray, strength: float
) -> np.ndarray:
    """What each channel is divided by, float64 [C]; 1 where nothing reads a channel."""
    weight = np.max([_largest(draft, c, len(activation)) for c in consumers], axis=0)
    if all(_is_depthwise(draft, c) for c in consumers):
        strength = 1.0
    used = (activation > 0) & (weight > 0)
    factors = np.ones_like(activation)
    if not used.any():
        return factors
    logs = strength * np.log2(activation[used]) - (1 - strength) * np.log2(weight[used])
    limit = np.log2(MOST_FACTOR)
    factors[used] = 2.0 ** np.clip(logs - logs.mean(), -limit, limit)
    # A channel that is zero needs no levels, but large weights for it would take those of others.
    usual = 2.0 ** np.log2(weight[used] * factors[used]).mean()
    idle = (activation == 0) & (weight > 0)
    factors[idle] = np.clip(usual / weight[idle], 1 / MOST_FACTOR, MOST_FACTOR)
    return factors


def _is_depthwise(draft: Draft, node: onnx.NodeProto) -> bool:
    return node.op_type == "Conv" and draft.constants[node.input[1]].shape[1] == 1


def _largest(draft: Draft, node: onnx.NodeProto, channels: int) -> np.ndarray:
    """The largest magnitude of the weights that read each channel, [C]."""
    data = np.abs(draft.constants[node.input[1]].astype(np.float64))
    if node.op_type == "Conv":
        groups = attribute(node, "group", 1)
        parts = data.reshape(groups, -1, *data.shape[1:])
        return parts.max(axis=(1, *range(3, parts.ndim))).reshape(channels)
    return data.max(axis=0 if attribute(node, "transB", 0) else 1)


def _multiply(draft: Draft, node: onnx.NodeProto, factors: np.ndarray) -> None:
    """Multiply the weights that read each channel."""
    data = draft.constants[node.input[1]].astype(np.float64)
    if node.op_type == "Conv":
        groups = attribute(node, "group", 1)
        parts = data.reshape(groups, -1, *data.shape[1:])
        column = factors.reshape(groups, 1, data.shape[1], *[1] * (data.ndim - 2))
        made = (parts * column).reshape(data.shape)
    else:
        made = data * (factors if attribute(node, "transB", 0) else factors[:, None])
    node.input[1] = draft.constant(f"{node.output[0]}.smooth", made.astype(np.float32))


def _divide(draft: Draft, node: onnx.NodeProto, factors: np.ndarray) -> None:
    """Divide the constants that make each channel."""
    for i, name in enumerate(node.input):
        if not i or not name:
            continue
        data = draft.constants[name].astype(np.float64)
        column = factors
        if i == 1 and node.op_type == "Conv":
            column = factors.reshape(-1, *[1] * (data.ndim - 1))
        elif i == 1 and attribute(node, "transB", 0):
            column = factors[:, None]
        base = f"{node.output[0]}.divided {i}"
        node.input[i] = draft.constant(base, (data / column).astype(np.float32))


def _own_producer(draft: Draft, pair: Pair) -> onnx.NodeProto:
    """The node whose result only the pair's products read: the producer, or a copy of it."""
    node = pair.producer
    name = node.output[0]
    direct = [other for other in draft.nodes if name in other.input]
    if len(direct) == len(pair.readers) and name not in draft.outputs:
        return node
    made = copied(node)
    made.name = f"{label(node)}.smooth"
    made.output[0] = draft.fresh(f"{name}.smooth")
    draft.shapes[made.output[0]] = draft.shapes[name]
    draft.dtypes[made.output[0]] = draft.dtypes[name]
    place = draft.place(node)
    draft.nodes.insert(place + 1, made)
    for reader in pair.readers:
        for i, operand in enumerate(reader.input):
            reader.input[i] = made.output[0] if operand == name else operand
    return made
