"""Packed weights: 4 bits of each weight, and a scale for each row of a tile.

A LOAD of ``wgt`` with ``widen`` reads packed tiles: a header, then the weights. The header has 4
bits for each row of the tile (the weights of an output channel): its scale, 1 to 16, less one. It
is padded to whole beats of the bus. The weights are in the order of the tile, each 4 bits of two's
complement. Of two scales or weights in a byte, the first is in the lower bits. The scratchpad then
holds each weight times the scale of its row, -128 to 112. A packed tile of 16 x 16 has 8 + 128
bytes, on a bus of 64 bits 17 beats instead of 32.
"""

from __future__ import annotations

import numpy as np

from .params import HwParams

#: Scales of a row; weights before they are multiplied.
SCALES, LEAST, MOST = range(1, 17), -8, 7
#: Tiles that are packed at once: what lies between fits a cache.
_TILES = 1 << 12


def _scales_by_weight() -> np.ndarray:
    """For each byte a set of bits, one for each scale that makes it of 4 bits: uint16 [256]."""
    weights = np.arange(256).astype(np.int8).astype(np.int64)
    sets = np.zeros(256, np.uint16)
    for bit, scale in enumerate(SCALES):
        fits = (weights % scale == 0) & (weights >= LEAST * scale) & (weights <= MOST * scale)
        sets |= fits.astype(np.uint16) << np.uint16(bit)
    return sets


_SETS = _scales_by_weight()


def scales_of(weights: np.ndarray) -> np.ndarray:
    """The smallest scale of each row, uint8 [...]; 0 where no scale makes all of its weights of 4
    bits.

    Parameters
    ----------
    weights : int8 [..., block_in]
    """
    common = np.bitwise_and.reduce(_SETS[weights.view(np.uint8)], axis=-1).astype(np.int64)
    return np.where(common, np.log2(np.maximum(common & -common, 1)) + 1, 0).astype(np.uint8)


def pack(weights: np.ndarray, params: HwParams) -> np.ndarray | None:
    """Tiles as a LOAD with ``widen`` reads them; None if a row of one has no scale.

    Parameters
    ----------
    weights : int8 [tiles, block_out, block_in]
    params : with ``packed_weights``

    Returns
    -------
    uint8 [tiles, bytes]
    """
    packed = np.zeros((len(weights), params.dram_entry_bytes("wgt", 1)), np.uint8)
    for begin in range(0, len(weights), _TILES):
        part, target = weights[begin : begin + _TILES], packed[begin : begin + _TILES]
        scales = scales_of(part)
        if not scales.all():
            return None
        small = part // scales.view(np.int8)[..., None]
        target[:, : params.block_out // 2] = _pairs(scales - 1)
        target[:, params.packed_header_bytes :] = _pairs(
            small.view(np.uint8).reshape(len(part), -1)
        )
    return packed


def unpack(packed: np.ndarray, params: HwParams) -> np.ndarray:
    """The weights of packed tiles, which may be any bytes: int8 [..., block_out, block_in].

    Parameters
    ----------
    packed : uint8 [..., bytes]
    """
    scales = _apart(packed[..., : params.block_out // 2]) + 1
    small = _apart(packed[..., params.packed_header_bytes :]).astype(np.int8)
    signed = np.where(small > MOST, small - 16, small)
    tiles = signed.reshape(*packed.shape[:-1], params.block_out, params.block_in)
    return tiles * scales.view(np.int8)[..., None]


def _pairs(values: np.ndarray) -> np.ndarray:
    """The lower 4 bits of each two neighbours as a byte, uint8 [..., n] to [..., n / 2]."""
    return (values[..., ::2] & 15) | (values[..., 1::2] << 4)


def _apart(pairs: np.ndarray) -> np.ndarray:
    """The inverse of :func:`_pairs`."""
    both = np.stack([pairs & 15, pairs >> 4], axis=-1)
    return both.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
