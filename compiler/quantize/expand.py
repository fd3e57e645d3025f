"""What the plan does not know, in terms that it knows: fused operators of ONNX Runtime's optimiser
and attention become those that they are made of, and float16 becomes float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ..frontends.onnx.decoders import HIDDEN, for_queries
from ..frontends.onnx.decoders import RULES as DECODERS
from ..frontends.onnx.narrow import widened
from ..frontends.onnx.parts import Parts

#: Types that become float32.
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def in_float32(found: Any) -> Any:
    """A node with its subgraphs, or a model's inputs and outputs, with float32 for half types;
    constants are widened as they are read."""
    if isinstance(found, onnx.ModelProto):
        for value in (*found.graph.input, *found.graph.output):
            if value.type.tensor_type.elem_type in _HALVES:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        return found
    made = onnx.NodeProto()
    made.CopyFrom(widened(found))
    for item in made.attribute:
        if item.HasField("g"):
            inner = [in_float32(node) for node in item.g.node]
            del item.g.node[:], item.g.value_info[:]
            item.g.node.extend(inner)
    return made


def taken_apart(
    node: onnx.NodeProto,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    constants: dict[str, np.ndarray],
) -> list[onnx.NodeProto]:
    """The nodes that a fused one stands for; the node itself, if it is none. Their numbers are
    added to the constants."""
    rule = _RULES.get(node.domain or "ai.onnx", {}).get(node.op_type)
    if rule is None:
        return [node]
    parts = Parts(node, shapes, constants, dtypes)
    results = rule(parts)
    return parts.named(results) if results else [node]


def _conv(parts: Parts) -> list[str]:
    own = ("activation", "activation_params")
    others = {name: v for name, v in parts.attributes.items() if name not in own}
    y = parts.add("Conv", *(name for name in parts.node.input[:3] if name), **others)
    y = parts.sum(y, parts.operand(3))
    return [parts.activated(y, parts.attributes.get("activation_params", ()))]


def _gemm(parts: Parts) -> list[str]:
    own = [f"activation_{name}" for name in ("alpha", "beta", "gamma")]
    others = {n: v for n, v in parts.attributes.items() if n not in ("activation", *own)}
    y = parts.add("Gemm", *(name for name in parts.node.input[:3] if name), **others)
    return [parts.activated(y, [parts.attributes[n] for n in own if n in parts.attributes])]


def _matmul(parts: Parts) -> list[str]:
    """The number that the product is multiplied by goes into a constant operand, if there is one:
    constants are folded."""
    names, alpha = [], parts.attributes.get("alpha", 1.0)
    for position, side in enumerate("AB"):
        name = parts.operand(position)
        order = [*range(len(parts.shapes[name]))]
        if parts.attributes.get(f"transBatch{side}", 0) and len(order) > 2:
            order.insert(len(order) - 2, order.pop(0))
        if parts.attributes.get(f"trans{side}", 0) and len(order) > 1:
            order[-2:] = order[:-3:-1]
        if order != sorted(order):
            name = parts.add("Transpose", name, perm=order)
        if alpha != 1 and parts.operand(position) in parts.constants:
            name, alpha = parts.add("Mul", name, alpha), 1.0
        names.append(name)
    y = parts.add("MatMul", *names)
    return [y if alpha == 1 else parts.add("Mul", y, alpha)]


def _gelu(parts: Parts) -> list[str]:
    x = parts.sum(parts.operand(0), parts.operand(1))
    tail = parts.add("Erf", parts.add("Div", x, math.sqrt(2)))
    return [parts.add("Mul", parts.add("Mul", x, parts.add("Add", tail, 1.0)), 0.5)]


def _fast_gelu(parts: Parts) -> list[str]:
    x = parts.sum(parts.operand(0), parts.operand(1))
    cube = parts.add("Mul", parts.add("Mul", x, x), x)
    inner = parts.add("Add", x, parts.add("Mul", cube, 0.044715))
    tail = parts.add("Tanh", parts.add("Mul", inner, math.sqrt(2 / math.pi)))
    return [parts.add("Mul", parts.add("Mul", x, parts.add("Add", tail, 1.0)), 0.5)]


def _quick_gelu(parts: Parts) -> list[str]:
    x, alpha = parts.operand(0), parts.attributes.get("alpha", 1.702)
    return [parts.add("Mul", x, parts.add("Sigmoid", parts.add("Mul", x, alpha)))]


def _skip_norm(parts: Parts) -> list[str]:
    """The fourth result is the sum that is normalised."""
    is_whole = parts.node.op_type == "SkipLayerNormalization"
    kind = "LayerNormalization" if is_whole else "SimplifiedLayerNormalization"
    total = parts.sum(*map(parts.operand, (0, 1, 4 if is_whole else 3)))
    scale = [name for name in parts.node.input[2 : 3 + is_whole] if name]
    epsilon = parts.attributes.get("epsilon", 1e-12)
    return [parts.add(kind, total, *scale, axis=-1, epsilon=epsilon), "", "", total]


#: Attributes of ONNX's Attention that are read, or that change nothing here.
_KNOWN = {
    *("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap"),
    "softmax_precision",
}


def _attention(parts: Parts) -> list[str]:
    """ONNX's own operator, but that a row which sees no place has the mean of all values, where
    ONNX has zeros. Nothing for capped scores, windows, or a mask that lacks places."""
    shapes = [parts.shapes[parts.operand(i)] for i in range(3)]
    x, heads = [parts.operand(i) for i in range(3)], [shape[1] for shape in shapes]
    past = parts.shape(4, 4)[2] if parts.operand(4) else 0
    rows, places = shapes[0][-2], past + shapes[1][-2]
    mask = parts.operand(3)
    whole = not mask or parts.shapes[mask][-1:] in ((1,), (places,))
    others = parts.attributes.keys() - _KNOWN or any(parts.node.output[3:])
    if parts.number("softcap", 0.0) or others or not whole:
        return []
    is_flat = len(shapes[0]) == 3
    if is_flat:
        heads = [parts.size("q_num_heads"), *[parts.size("kv_num_heads")] * 2]
        for i, count in enumerate(heads):
            sizes = np.array([0, 0, count, shapes[i][2] // count])
            shaped = parts.add("Reshape", x[i], sizes)
            x[i] = parts.add("Transpose", shaped, perm=[0, 2, 1, 3])
    if past:
        joined = zip((4, 5), x[1:], strict=True)
        x[1:] = (parts.add("Concat", parts.operand(i), new, axis=2) for i, new in joined)
    keys, values = (for_queries(parts, y, (heads[0], heads[1]), places) for y in x[1:])
    scores = parts.add("MatMul", x[0], parts.add("Transpose", keys, perm=[0, 1, 3, 2]))
    width = shapes[0][-1] // (heads[0] if is_flat else 1)
    scores = parts.add("Mul", scores, parts.number("scale", 0.0) or 1 / math.sqrt(width))
    for bias in _biases(parts, past, rows, places):
        scores = parts.add("Add", scores, bias)
    mixed = parts.add("MatMul", parts.add("Softmax", scores, axis=-1), values)
    if is_flat:
        mixed = parts.add("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = parts.add("Reshape", mixed, np.array([0, 0, heads[0] * shapes[2][2] // heads[2]]))
    return [mixed, *x[1:]]


def _biases(parts: Parts, past: int, rows: int, places: int) -> list[str]:
    """What is added to scores [batch, heads, rows, places] of ONNX's operator."""
    columns, row = np.arange(places), np.arange(rows)[:, None]
    seen: list[str | np.ndarray] = []
    filled = parts.operand(6)
    if filled:
        filled = parts.add("Reshape", filled, np.array([-1, 1, 1, 1]))
        seen.append(parts.add("Less", columns, filled))
    if parts.number("is_causal", 0) and filled:
        seen.append(parts.add("Less", columns - row - 1 + rows, filled))
    elif parts.number("is_causal", 0):
        seen.append((columns <= row + past)[None, None])
    mask = parts.operand(3)
    is_added = mask and parts.dtypes[mask] != "bool"
    if mask and not is_added:
        seen.append(mask)
    if not seen:
        return [mask] * bool(mask)
    condition = seen[0]
    for other in seen[1:]:
        condition = parts.add("And", condition, other)
    numbers = (np.float32(0), np.float32(HIDDEN))
    return [mask] * bool(is_added) + [parts.add("Where", condition, *map(np.array, numbers))]


#: By domain and operator, what makes its nodes and returns the names of its results.
_RULES: dict[str, dict[str, Callable[[Parts], list[str]]]] = {
    "ai.onnx": {"Attention": _attention},
    "com.microsoft": {
        "BiasGelu": _gelu,
        "FastGelu": _fast_gelu,
        "FusedConv": _conv,
        "FusedGemm": _gemm,
        "FusedMatMul": _matmul,
        "Gelu": _gelu,
        "QuickGelu": _quick_gelu,
        "SkipLayerNormalization": _skip_norm,
        "SkipSimplifiedLayerNormalization": _skip_norm,
        **DECODERS,
    },
}
