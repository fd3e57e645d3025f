"""How tensors lie in the accelerator's DRAM: activations in blocks of channels, weights in tiles,
parameters in rows of bias, multiplier and shift.

Activations NCHW become [C/block][H][W][batch][block] for one group of ``batch`` images; a vector
(N, K) counts as (N, K, 1, 1). Channels beyond C are zero, images beyond N too.
"""

from __future__ import annotations

import numpy as np

from ..isa.params import HwParams


def blocks(channels: int, params: HwParams) -> int:
    """The number of blocks that hold this many channels."""
    return -(-channels // params.block)


def activation_bytes(shape: tuple[int, ...], params: HwParams) -> int:
    """DRAM bytes of one group of images; ``shape`` is (N, C, H, W) or (N, K)."""
    _, channels, *spatial = shape
    return blocks(channels, params) * int(np.prod(spatial, dtype=int)) * params.entry_bytes("inp")


def pack_activation(x: np.ndarray, params: HwParams) -> np.ndarray:
    """(N <= batch, C, H, W) or (N, K) int8 to the bytes of one group (uint8, flat)."""
    x = x.reshape(*x.shape, *(1,) * (4 - x.ndim))
    n, channels, height, width = x.shape
    padded = np.zeros(
        (params.batch, blocks(channels, params) * params.block, height, width), np.int8
    )
    padded[:n, :channels] = x
    tiled = padded.reshape(params.batch, -1, params.block, height, width).transpose(1, 3, 4, 0, 2)
    return np.ascontiguousarray(tiled).view(np.uint8).reshape(-1)


def unpack_activation(data: np.ndarray, shape: tuple[int, ...], params: HwParams) -> np.ndarray:
    """The inverse of :func:`pack_activation`: uint8 bytes to int8 of ``shape``, N at most
    ``batch``.
    """
    n, channels, *spatial = shape
    height, width = spatial or (1, 1)
    tiled = data.view(np.int8).reshape(-1, height, width, params.batch, params.block)
    plain = tiled.transpose(3, 0, 4, 1, 2).reshape(params.batch, -1, height, width)
    return np.ascontiguousarray(plain[:n, :channels]).reshape(shape)


def pack_weight(weight: np.ndarray, params: HwParams) -> np.ndarray:
    """OIHW int8 to [O/block][I/block][H][W][block_out][block_in] int8, zero beyond O and I."""
    out_channels, in_channels, kh, kw = weight.shape
    block = params.block
    padded = np.zeros(
        (blocks(out_channels, params) * block, blocks(in_channels, params) * block, kh, kw), np.int8
    )
    padded[:out_channels, :in_channels] = weight
    return np.ascontiguousarray(
        padded.reshape(-1, block, padded.shape[1] // block, block, kh, kw).transpose(
            0, 2, 4, 5, 1, 3
        )
    )


def pack_depthwise_weight(weight: np.ndarray, params: HwParams) -> np.ndarray:
    """[C][1][H][W] int8 to [C/block][H][W][block] int8, zero beyond C."""
    channels, _, kh, kw = weight.shape
    padded = np.zeros((blocks(channels, params) * params.block, kh, kw), np.int8)
    padded[:channels] = weight[:, 0]
    return np.ascontiguousarray(padded.reshape(-1, params.block, kh, kw).transpose(0, 2, 3, 1))


def pack_parameters(
    bias: np.ndarray, multiplier: np.ndarray, shift: np.ndarray, params: HwParams
) -> np.ndarray:
    """Per-channel int32 bias, multiplier and shift to [O/block][3][block] int32; channels beyond O
    get 0, 0, 1.
    """
    channels = bias.shape[0]
    packed = np.zeros((3, blocks(channels, params) * params.block), np.int32)
    packed[2] = 1
    for row, values in enumerate((bias, multiplier, shift)):
        packed[row, :channels] = values
    return np.ascontiguousarray(packed.reshape(3, -1, params.block).transpose(1, 0, 2))
