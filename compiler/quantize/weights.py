"""Scales, weights and biases as integers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from ..graph.arithmetic.requant import INT8_MAX, INT8_MIN
from .calibrate import Probe, Range, Samples
from .draft import Draft, attribute, operands
from .four_bits import GROUP, Moments, four_bits
from .plan import Plan, has_weights

#: The least scale: products of two scales must stay normal numbers in float32.
LEAST_SCALE = 2.0**-60
#: The most steps, in units of the sum of products, that a bias may have: the sum needs room in
#: int32, too.
MOST_BIAS_STEPS = 2**30


@dataclass(frozen=True)
class Scale:
    """``real = (stored - zero_point) * scale``, a float32 number and an int8 one."""

    scale: float
    zero_point: int

    @staticmethod
    def of(span: Range) -> Scale:
        """256 levels over the range and zero, which is one of them exactly."""
        lo, hi = min(span.lo, 0.0), max(span.hi, 0.0)
        step = float(np.float32(max((hi - lo) / (INT8_MAX - INT8_MIN), LEAST_SCALE)))
        return Scale(step, min(max(round(INT8_MIN - lo / step), INT8_MIN), INT8_MAX))

    def stored(self, real: np.ndarray) -> np.ndarray:
        """Real values float32 as int8, as QuantizeLinear rounds them."""
        steps = np.rint(real / np.float32(self.scale)) + self.zero_point
        return np.clip(steps, INT8_MIN, INT8_MAX).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight int8, symmetric, with a scale float32 per output channel along ``axis``; the bias
    float64 [channels], None without one."""

    stored: np.ndarray
    scale: np.ndarray
    axis: int
    bias: np.ndarray | None

    @property
    def real(self) -> np.ndarray:
        """The real values of the stored weight, float32."""
        shape = [1] * self.stored.ndim
        shape[self.axis] = -1
        return self.stored.astype(np.float32) * self.scale.reshape(shape)


@dataclass(frozen=True, eq=False)
class FourBits:
    """Which products have weights of 4 bits, and what these are rounded by.

    Attributes
    ----------
    nodes : their names
    group : input channels that share a scale
    moments : by operand, those of its channels on the samples
    """

    nodes: Collection[str] = ()
    group: int = GROUP
    moments: Mapping[str, Moments] = field(default_factory=dict)


def quantize_weight(draft: Draft, node: onnx.NodeProto, x: Scale, four: FourBits) -> Weight:
    """The weight of a product whose operand has scale ``x``."""
    names = [*operands(node)]
    data = draft.constants[names[1]].astype(np.float64)
    axis = 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1
    bias = draft.constants[names[2]].astype(np.float64) if len(names) > 2 else None
    if node.name in four.nodes:
        stored, scale = _of_four_bits(node, data, axis, four)
        return Weight(stored, scale, axis, bias)
    limit = np.abs(data).max(axis=tuple(i for i in range(data.ndim) if i != axis))
    scale = limit / INT8_MAX
    if bias is not None:
        scale = np.maximum(scale, np.abs(bias) / (x.scale * MOST_BIAS_STEPS))
    scale = np.maximum(np.where(scale > 0, scale, 1.0), LEAST_SCALE).astype(np.float32)
    shape = [1] * data.ndim
    shape[axis] = -1
    stored = np.clip(np.rint(data / scale.reshape(shape)), -INT8_MAX, INT8_MAX).astype(np.int8)
    return Weight(stored, scale, axis, bias)


def _of_four_bits(
    node: onnx.NodeProto, data: np.ndarray, axis: int, four: FourBits
) -> tuple[np.ndarray, np.ndarray]:
    """A weight int8 and its scales. Of a convolution, input channels of one place make groups."""
    if node.op_type != "Conv":
        rows = data if axis == 0 else data.T
        stored, scale = four_bits(rows, four.group, four.moments.get(node.input[0]))
        return (stored if axis == 0 else np.ascontiguousarray(stored.T)), scale
    outputs, channels = data.shape[:2]
    places = np.moveaxis(data, 1, -1)
    filled = np.zeros((*places.shape[:-1], -(-channels // four.group) * four.group))
    filled[..., :channels] = places
    stored, scale = four_bits(filled.reshape(outputs, -1), four.group, None)
    stored = np.moveaxis(stored.reshape(filled.shape), -1, 1)
    return np.ascontiguousarray(stored[:, :channels]), scale


def quantize_weights(
    draft: Draft, made: Plan, scales: Mapping[str, Scale], four: FourBits
) -> dict[str, Weight]:
    """The weights of all products on integers, by the names of their results. Products of one
    weight and bias by operands of one scale have one of them."""
    found: dict[str, Weight] = {}
    known: dict[tuple, Weight] = {}
    for node, reason in zip(draft.nodes, made.reasons, strict=True):
        if reason or not has_weights(draft, node):
            continue
        x = scales[node.input[0]]
        key = (x, node.op_type, node.name in four.nodes, *node.input[1:])
        if key not in known:
            known[key] = quantize_weight(draft, node, x, four)
        found[node.output[0]] = known[key]
    return found


def corrected(
    draft: Draft, weights: Mapping[str, Weight], samples: Samples, advance: Callable[[], None]
) -> dict[str, Weight]:
    """The weights with corrected biases: less what rounding the weights adds to a channel's mean.

    That is the mean, over the samples and all places, of the product in the float model with the
    rounding errors of the weights in the place of the weights.
    """
    probed = draft.without_nodes()
    names: dict[str, str] = {}
    for node in draft.nodes:
        probed.nodes.append(node)
        weight = weights.get(node.output[0])
        if weight is None:
            continue
        error = weight.real - draft.constants[node.input[1]]
        names[node.output[0]] = name = f"{node.output[0]}.error"
        operand = probed.constant(f"{name}.weight", error.astype(np.float32))
        twin = helper.make_node(node.op_type, [node.input[0], operand], [name])
        twin.attribute.extend(node.attribute)
        probed.nodes.append(twin)
    wanted = [*names.values()]
    totals = {name: np.zeros(1) for name in wanted}
    count = 0
    for values in Probe(probed, samples, tuple(wanted)).run(advance):
        count += 1
        for name, value in values.items():
            others = tuple(axis for axis in range(value.ndim) if axis != 1)
            totals[name] = totals[name] + value.astype(np.float64).mean(axis=others)
    return {
        output: Weight(w.stored, w.scale, w.axis, (0 if w.bias is None else w.bias)
                       - totals[names[output]] / count)
        for output, w in weights.items()
    }  # fmt: skip
