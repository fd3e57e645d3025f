"""Packed weights: exact, as the smallest scales have them, and bytes by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vdla.isa.packed import pack, scales_of, unpack
from vdla.isa.params import HwParams

from . import oracle

#: Two rows in a beat, a row, half a row and two beats of scales; wide buses.
CONFIGS = {
    f"{block}x{block}, {bits} bits": HwParams(
        block_in=block, block_out=block, bus_bits=bits, wgt_depth=64, packed_weights=1
    )
    for block, bits in ((8, 64), (16, 64), (32, 64), (8, 128), (32, 128), (16, 256), (32, 256))
}


def _smallest(row: list[int]) -> int:
    """The scale of a row by trying all; 0 for none."""
    fits = (s for s in range(1, 17) if all(w % s == 0 and -8 <= w // s <= 7 for w in row))
    return next(fits, 0)


@given(st.lists(st.integers(-8, 7), min_size=4, max_size=4), st.integers(1, 16), st.integers(-2, 2))
def test_the_scale_is_the_smallest(small: list[int], scale: int, off: int) -> None:
    row = [w * scale for w in small]
    row[0] = max(-128, min(127, row[0] + off))
    assert scales_of(np.array([row], np.int8)).tolist() == [_smallest(row)]


def test_the_scales_of_every_two_weights() -> None:
    pairs = np.stack(np.meshgrid(*[np.arange(-128, 128)] * 2), -1).reshape(-1, 2)
    scales = scales_of(pairs.astype(np.int8))
    assert scales[pairs.any(1) == 0].tolist() == [1]
    for pair, scale in zip(pairs[::7].tolist(), scales[::7].tolist(), strict=True):
        assert scale == _smallest(pair), pair


@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_any_bytes_are_tiles(params: HwParams) -> None:
    """As the oracle has them; packed again they are the same weights."""
    size = params.dram_entry_bytes("wgt", 1)
    assert size < params.entry_bytes("wgt") and size % params.bus_bytes == 0
    raw = np.random.default_rng(3).integers(0, 256, (30, 2, size), np.uint8)
    tiles = unpack(raw, params)
    assert tiles.dtype == np.int8 and (tiles.min(), tiles.max()) == (-128, 112)
    for place in np.ndindex(30, 2):
        assert tiles[place].tobytes() == oracle.unpack(raw[place].tobytes(), params)
    flat = tiles.reshape(60, params.block, params.block)
    packed = pack(flat, params)
    assert packed is not None and packed.shape == (60, size)
    assert np.array_equal(unpack(packed, params), flat)


def test_bytes_by_hand() -> None:
    """A tile of 8 x 8 whose row r is -8, -7, ... -1 times r + 1, on a bus of 64 bits."""
    params = CONFIGS["8x8, 64 bits"]
    tile = np.outer(np.arange(1, 9), np.arange(-8, 0)).astype(np.int8)
    packed = pack(tile[None], params)
    assert packed is not None
    assert packed[0].tobytes().hex() == "1032547600000000" + "98badcfe" * 8


def test_a_row_without_a_scale() -> None:
    """One weight decides, in the last tile too; and several rows of tiles at once are packed."""
    params = CONFIGS["8x8, 64 bits"]
    tiles = np.zeros((5000, 8, 8), np.int8)
    tiles[4999, 7] = [-128, 112, 16, 0, 0, 0, 0, 48]
    packed = pack(tiles, params)
    assert packed is not None and np.array_equal(unpack(packed, params), tiles)
    for wrong in (127, 113, 1, -8):
        tiles[4999, 7, 7] = wrong
        assert pack(tiles, params) is None
    assert pack(tiles[:0], params) is not None
