"""The custom operator that unpacks compressed constants: a look-up table, or what is not zero.

Each operand of bits has a second one behind it, which begins with 16 bytes. Byte 0 is the kind of
packing, byte 4 its version; of tables, the lower bits of byte 5 are the width of places, and byte 6
is how many elements a channel's table has.
"""

from __future__ import annotations

import math

import numpy as np

from ..file import FlatTensor
from ..graph import ANY, Call, Rows

_HEADER = 16
_TYPES = ("float32", "int8", "int16", "int32", "int64", "bool")


def _decode(call: Call) -> None:
    """One result for each two operands; results are constants, as the operands are."""
    for number, result in enumerate(call.results):
        packed, header = (call.constant(2 * number + i, "packed tensor").tobytes() for i in (0, 1))
        if result.dtype not in _TYPES:
            raise call.refuse(f"supported are {', '.join(_TYPES)}, got {result.dtype} of {result}")
        if len(header) < _HEADER or header[4] != 1:
            raise call.refuse(f"expected a header of version 1, got {header[:_HEADER].hex()!r}")
        match header[0]:
            case 0:
                data = _from_table(call, packed, header, result)
            case 2:
                data = _pruned(call, packed, header, result)
            case 1:
                raise call.refuse("Huffman codes are not supported; tables and pruning are")
            case kind:
                raise call.refuse(f"expected a packing of kind 0 or 2, got {kind}")
        call.define(call.value(data.reshape(result.shape)), result=result)


def _bits(call: Call, packed: bytes, count: int, width: int) -> np.ndarray:
    """``count`` numbers of ``width`` bits, the highest bit first; int64."""
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    if bits.size < count * width:
        raise call.refuse(f"expected {count} numbers of {width} bits, got {len(packed)} bytes")
    return bits[: count * width].reshape(count, width) @ (1 << np.arange(width)[::-1])


def _channels(call: Call, result: FlatTensor) -> np.ndarray:
    """Each element's channel, flat: its place on the axis along which the result has scales."""
    shape = result.shape
    if result.scale.size < 2:
        return np.zeros(math.prod(shape), np.int64)
    if result.scaled_axis not in (0, len(shape) - 1):
        raise call.refuse(
            f"expected scales along an end of {list(shape)}, got axis {result.scaled_axis}"
        )
    return np.indices(shape)[result.scaled_axis].reshape(-1)


def _from_table(call: Call, packed: bytes, header: bytes, result: FlatTensor) -> np.ndarray:
    width, stride = header[5] & 7, header[6]
    if not width:
        raise call.refuse("expected places of 1 to 7 bits, got 0")
    values = np.frombuffer(header[_HEADER:], result.dtype)
    channels = _channels(call, result)
    place = _bits(call, packed, channels.size, width) + stride * channels
    if place.max(initial=0) >= len(values):
        raise call.refuse(f"place {place.max()} is not in a table of {len(values)} elements")
    return values[place]


def _pruned(call: Call, packed: bytes, header: bytes, result: FlatTensor) -> np.ndarray:
    """What is left out is the zero point of its channel."""
    zeros = result.zero_point if result.zero_point.size else np.zeros(1, np.int64)
    if result.dtype != "int8" and zeros.any():
        raise call.refuse(f"expected zero points of 0 of {result}, got {zeros.tolist()}")
    data = zeros[_channels(call, result)].astype(result.dtype)
    kept = _bits(call, packed, data.size, 1) > 0
    values = np.frombuffer(header[_HEADER:], result.dtype)
    if kept.sum() > len(values):
        raise call.refuse(f"expected {kept.sum()} values, got {len(values)}")
    data[kept] = values[: kept.sum()]
    return data


#: Readers by operator and by the first operand's types.
READERS: Rows = {"TFLM_DECODE": {ANY: _decode}}
