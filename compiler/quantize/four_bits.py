"""Weights of 4 bits, with a scale for each group of input channels.

A weight is ``step * scale * q``: a step for each output channel, a scale of 1 to 16 for each group,
and q of -8 to 7. ``scale * q`` is an int8, so that the model stays one of int8; an accelerator with
packed weights stores the scale and q (``isa/packed.py``).

Where samples are known, a weight is not rounded by itself: what rounding the weights of one input
adds to the product, the weights of the inputs behind it take back. Source: GPTQ (Frantar et al.
2022).
"""

from __future__ import annotations

import numpy as np

from ...isa.packed import LEAST, MOST, SCALES

#: Bits that weights may have.
WEIGHT_BITS = (4, 8)
#: Input channels of a group: a row of a tile of 16 x 16, or two of 8 x 8.
GROUP = 16
#: Scales that are tried for a group: that with which 4 bits just hold its largest weight, and the
#: next smaller ones.
_TRIED = 4
#: What is added to the moments of each input, in shares of their mean: samples are few.
DAMPING = 0.1
#: Inputs whose errors are taken back together.
_BLOCK = 64


def four_bits(
    weight: np.ndarray, group: int, moments: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights as scales times 4 bits, and the steps of output channels.

    Parameters
    ----------
    weight : float64 [outputs, inputs]
    group : inputs of a group; the last one may have fewer
    moments : float64 [inputs, inputs], the sums of products of any two inputs on the samples; None
        where each weight is rounded by itself

    Returns
    -------
    int8 [outputs, inputs], float32 [outputs]
    """
    outputs, inputs = weight.shape
    filled = np.zeros((outputs, -(-inputs // group) * group))
    filled[:, :inputs] = weight
    steps, scales = _scales(filled.reshape(outputs, -1, group))
    scales = np.repeat(scales, group, 1)[:, :inputs]
    if moments is None:
        found = _rounded(weight, steps[:, None] * scales)
    else:
        found = _compensated(weight, steps[:, None] * scales, moments)
    return (found * scales).astype(np.int8), steps


def _rounded(weight: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(weight / step), LEAST, MOST)


def _scales(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The step of each channel, float32, and the scale of each group of it that leaves the least
    error, for weights [outputs, groups, inputs of a group]."""
    wanted = np.abs(groups).max(-1) / (MOST + 0.5)
    steps = wanted.max(1) / SCALES[-1]
    steps = np.where(steps > 0, steps, 1.0).astype(np.float32)
    first = np.rint(wanted / steps[:, None])
    best, least = np.ones_like(first), np.full_like(first, np.inf)
    for less in range(_TRIED):
        scales = np.clip(first - less, SCALES[0], SCALES[-1])
        step = (steps[:, None] * scales)[..., None]
        error = np.square(_rounded(groups, step) * step - groups).sum(-1)
        best, least = np.where(error < least, scales, best), np.minimum(error, least)
    return steps, best


def _compensated(weight: np.ndarray, step: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """What is rounded input by input, with the weights behind it changed for its error."""
    weight, inputs = weight.copy(), weight.shape[1]
    moments = moments + np.eye(inputs) * max(DAMPING * np.trace(moments) / inputs, 1e-12)
    factor = np.linalg.cholesky(np.linalg.inv(moments)).T
    found = np.empty_like(weight)
    for begin in range(0, inputs, _BLOCK):
        end = min(begin + _BLOCK, inputs)
        errors = np.empty((len(weight), end - begin))
        for i in range(begin, end):
            found[:, i] = _rounded(weight[:, i], step[:, i])
            error = (weight[:, i] - found[:, i] * step[:, i]) / factor[i, i]
            weight[:, i + 1 : end] -= np.outer(error, factor[i, i + 1 : end])
            errors[:, i - begin] = error
        weight[:, end:] -= errors @ factor[begin:end, end:]
    return found
