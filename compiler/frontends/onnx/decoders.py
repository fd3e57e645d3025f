"""Operators of ONNX Runtime's domain ``com.microsoft`` of which its decoders consist, as the nodes
of ONNX that they stand for. Both the importer and the quantiser read them so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .parts import Parts

#: The operator set of the nodes.
OPSET = 24
#: What is added to the score of a place that may not be seen.
HIDDEN = -1e9
#: A place behind all others.
_NEVER = 2**31
#: The widths of weights that are read.
_BITS = (2, 4, 8)


def _rotary_embedding(parts: Parts) -> list[str]:
    """ONNX's operator, but for the order of operands and a first position for all tokens."""
    parts.only(scale=1.0, is_packed_batching=0)
    x, positions, cos, sin = map(parts.operand, range(4))
    shape, width = parts.shapes.get(x, ()), 2 * parts.shape(2, 2)[1]
    turned = int(parts.number("rotary_embedding_dim", 0))
    heads = int(parts.number("num_heads", 0))
    if len(shape) not in (3, 4):
        raise parts.refuse(f"expected 3 or 4 dimensions, got {[*shape]}")
    batch, rows = shape[0], shape[-2]
    if len(shape) == 3 and not turned:
        heads = shape[-1] // max(width, 1)
    if len(shape) == 3 and not heads:
        raise parts.refuse("expected num_heads, which rotary_embedding_dim needs")
    if parts.shapes.get(positions) == (1,):
        offsets = np.tile(np.arange(rows), (batch, 1))
        positions = parts.add("Add", parts.add("Cast", positions, to=7), offsets)
    names = {"num_heads": heads} if len(shape) == 3 else {}
    return [_turned(parts, x, cos, sin, positions, turned, **names)]


def _turned(
    parts: Parts, x: str, cos: str, sin: str, positions: str, width: int, **names: int
) -> str:
    """A rotary embedding of the first ``width`` channels of each head; of all, if it is 0."""
    key = "interleaved" if "interleaved" in parts.attributes else "rotary_interleaved"
    return parts.add(
        "RotaryEmbedding", x, cos, sin, positions, interleaved=parts.number(key, 0),
        rotary_embedding_dim=width, **names,
    )  # fmt: skip


def _product_of_groups(parts: Parts) -> list[str]:
    """A product by a matrix whose columns are groups of integers with a scale each."""
    parts.only(weight_prepacked=0)
    parts.without(4)
    matrix = _dequantised(parts, parts.size("N"), parts.size("K"), (1, 2, 3)).T
    y = parts.add("MatMul", parts.operand(0), np.ascontiguousarray(matrix))
    return [parts.sum(y, parts.operand(5))]


def _gather_of_groups(parts: Parts) -> list[str]:
    """Rows of a matrix of groups of integers, as those of a vocabulary."""
    parts.only(gather_axis=0)
    outputs, stored = parts.shape(0, 2)
    count = stored * 8 // parts.size("bits", 4)
    if parts.number("quantize_axis", 1) not in (1, -1):
        raise parts.refuse("supported is quantize_axis = 1 of a matrix, got 0")
    matrix = _dequantised(parts, outputs, count, (0, 2, 3))
    return [parts.add("Gather", matrix, parts.operand(1), axis=0)]


def _dequantised(
    parts: Parts, outputs: int, count: int, positions: tuple[int, int, int]
) -> np.ndarray:
    """The float32 matrix [outputs, count] that integers, scales and zero points in operands at
    these positions stand for."""
    size, bits = parts.size("block_size"), parts.size("bits", 4)
    groups = -(-count // size)
    stored, scales = map(parts.constant, positions, ("weights", "scales"))
    expected = outputs * groups * size * bits // 8
    if bits not in _BITS or stored.dtype != np.uint8 or stored.size != expected:
        raise parts.refuse(
            f"expected weights uint8 of {', '.join(map(str, _BITS))} bits for"
            f" [{outputs}, {groups}, {size}], got {bits} bits in {stored.dtype}{[*stored.shape]}"
        )
    zeros = np.full((outputs, groups), 1 << (bits - 1), np.float32)
    if parts.operand(positions[2]):
        zeros = parts.constant(positions[2], "zero points")
        packed = zeros.dtype == np.uint8 and zeros.size == outputs * -(-groups * bits // 8)
        zeros = _unpacked(zeros, outputs, bits)[:, :groups] if packed else zeros
    if scales.size != zeros.size or scales.size != outputs * groups:
        raise parts.refuse(
            f"expected scales and zero points of [{outputs}, {groups}], got {[*scales.shape]} and"
            f" {[*zeros.shape]}"
        )
    weight = _unpacked(stored, outputs, bits).reshape(outputs, groups, size).astype(np.float32)
    weight -= zeros.reshape(outputs, groups, 1)
    weight *= scales.reshape(outputs, groups, 1)
    return weight.reshape(outputs, -1)[:, :count]


def _unpacked(stored: np.ndarray, rows: int, bits: int) -> np.ndarray:
    """The integers [rows, ...] in bytes, of which the lowest bits come first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = stored.reshape(rows, -1, 1) >> shifts & np.uint8((1 << bits) - 1)
    return parts.reshape(rows, -1)


def _grouped_attention(parts: Parts) -> list[str]:
    """Attention whose heads share keys and values in groups. New rows see the filled part of the
    caches and each other up to themselves; that they also become part of the caches is apart from
    it, so that no product waits for the caches."""
    parts.only(
        causal=1, k_quant_type=b"NONE", v_quant_type=b"NONE", qk_output=0, sliding_window_cache=0,
        smooth_softmax=0,
    )  # fmt: skip
    parts.without(*range(10, 17))
    heads, kv_heads = parts.size("num_heads"), parts.size("kv_num_heads")
    _, rows, channels = parts.shape(0, 3)
    packed = not parts.operand(1)
    width, rest = divmod(channels, heads + 2 * kv_heads if packed else heads)
    if rest or heads % kv_heads or not width:
        raise parts.refuse(f"expected whole heads, got {channels} channels of {heads}, {kv_heads}")
    places = parts.shape(3, 4)[2] if parts.operand(3) else 0
    new, start = [*map(parts.operand, range(3))], 0
    for i, count in enumerate((heads, kv_heads, kv_heads)):
        end = start + count * width
        bounds = map(_number, (start, end, 2))
        x = parts.add("Slice", parts.operand(0), *bounds) if packed else new[i]
        shaped = parts.add("Reshape", x, np.array([0, 0, count, width]))
        new[i], start = parts.add("Transpose", shaped, perm=[0, 2, 1, 3]), end
    filled = parts.add("Add", parts.add("Cast", parts.operand(5), to=7), _number(1 - rows))
    filled = parts.add("Max", filled, _number(0))
    if parts.number("do_rotary", 0):
        positions = parts.operand(9)
        if not positions:
            first = parts.add("Reshape", filled, np.array([-1, 1]))
            positions = parts.add("Add", first, np.arange(rows)[None])
        cos, sin = parts.operand(7), parts.operand(8)
        turned = 2 * parts.shape(7, 2)[1] % width
        new[:2] = (_turned(parts, x, cos, sin, positions, turned) for x in new[:2])
    present = [_cache(parts, i, new[i - 2], filled, places) for i in (3, 4)]
    keys, values = (
        for_queries(
            parts, parts.add("Concat", parts.operand(i), x, axis=2) if places else x,
            (heads, kv_heads), places + rows,
        )
        for i, x in zip((3, 4), new[1:], strict=True)
    )  # fmt: skip
    scores = parts.add("MatMul", new[0], parts.add("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = parts.add("Mul", scores, parts.number("scale", 0.0) or 1 / math.sqrt(width))
    if cap := parts.number("softcap", 0.0):
        scores = parts.add("Mul", parts.add("Tanh", parts.add("Div", scores, cap)), cap)
    scores = parts.add("Add", scores, _mask(parts, filled, places, rows))
    mixed = parts.add("MatMul", parts.add("Softmax", scores, axis=-1), values)
    mixed = parts.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return [parts.add("Reshape", mixed, np.array([0, 0, heads * width])), *present]


def _number(value: int) -> np.ndarray:
    return np.array([value])


def _cache(parts: Parts, position: int, new: str, filled: str, places: int) -> str:
    """The cache with the new rows at their places. It becomes longer where that is known."""
    past = parts.operand(position)
    rows, total = parts.shapes[parts.operand(0)][1], parts.constants.get(parts.operand(6))
    length = max(places, rows if total is None else int(total.reshape(())))
    if not places and length == rows:
        return new
    more = np.array([0, 0, 0, 0, 0, 0, length - places, 0])
    if more.any():
        past = parts.add("Pad", past or parts.add("Mul", new, 0.0), more)
    return parts.add("TensorScatter", past, new, filled, axis=2)


def _mask(parts: Parts, filled: str, places: int, rows: int) -> str:
    """What is added to the scores [batch, 1, rows, places + rows]."""
    row, column = np.arange(rows)[:, None], np.arange(rows)
    window = int(parts.number("local_window_size", -1))
    own = (column <= row) & ((window < 1) | (row - column < window))
    numbers = (np.float32(0), np.float32(HIDDEN))
    if not places:
        return parts.add("Where", own[None, None], *map(np.array, numbers))
    columns = np.append(np.arange(places), np.full(rows, _NEVER))
    first = parts.add("Reshape", filled, np.array([-1, 1, 1, 1]))
    before = parts.add("Less", columns, first)
    if window > 0:
        oldest = parts.add("Add", first, row - window)
        before = parts.add("And", before, parts.add("Greater", columns, oldest))
    own = np.concatenate([np.zeros((rows, places), bool), own], axis=1)[None, None]
    return parts.add("Where", parts.add("Or", before, own), *map(np.array, numbers))


def for_queries(parts: Parts, keys: str, heads: tuple[int, int], places: int) -> str:
    """Keys or values [batch, heads[1], places, width], once for each of heads[0] of queries."""
    each, rest = divmod(*heads)
    if rest:
        raise parts.refuse(f"expected whole groups of heads, got {heads[0]} of {heads[1]}")
    if each == 1:
        return keys
    one = parts.add("Unsqueeze", keys, _number(2))
    repeated = parts.add("Expand", one, np.array([1, 1, each, 1, 1]))
    return parts.add("Reshape", repeated, np.array((0, heads[0], places, -1)))


#: By operator, what makes its nodes and returns the names of its results.
RULES: dict[str, Callable[[Parts], list[str]]] = {
    "GatherBlockQuantized": _gather_of_groups,
    "GroupQueryAttention": _grouped_attention,
    "MatMulNBits": _product_of_groups,
    "RotaryEmbedding": _rotary_embedding,
}
