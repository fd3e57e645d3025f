"""Weights of 4 bits, with a scale for each group of input channels.

A weight is ``step * scale * q``: a step for each output channel, a scale of 1 to 16 for each group,
and q of -8 to 7. ``scale * q`` is an int8, so that the model stays one of int8; an accelerator with
packed weights stores the scale and q (``isa/packed.py``).

Where samples are known, a weight is not rounded by itself: what rounding the weights of one input
adds to the product, the weights of the inputs behind it take back; and then each is rounded again,
for the least error beside all others. Sources: GPTQ (Frantar et al. 2022), QuantEase (Behdin et al.
2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...isa.packed import LEAST, MOST, SCALES

#: Bits that weights may have.
WEIGHT_BITS = (4, 8)
#: Input channels of a group: a row of a tile of 16 x 16, or two of 8 x 8.
GROUP = 16
#: Scales that are tried for a group: the one above that with which 4 bits just hold its largest
#: weight, that one, and the next smaller ones.
_TRIED = 5
#: What is added to the moments of each input, in shares of their mean, where there are as many
#: samples as inputs, and less where there are more: few say little about what depends on what.
DAMPING = 0.4
#: Inputs whose errors are taken back together.
_BLOCK = 64


@dataclass(frozen=True, eq=False)
class Moments:
    """The sums of products of any two inputs, float64 [inputs, inputs], on so many samples."""

    sums: np.ndarray
    samples: int

    @property
    def damped(self) -> np.ndarray:
        """The sums with :data:`DAMPING`."""
        more = max(DAMPING * np.trace(self.sums) / self.samples, 1e-12)
        return self.sums + np.eye(len(self.sums)) * more


def four_bits(
    weight: np.ndarray, group: int, moments: Moments | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights as scales times 4 bits, and the steps of output channels.

    Parameters
    ----------
    weight : float64 [outputs, inputs]
    group : inputs of a group; the last one may have fewer
    moments : of the inputs; None where each weight is rounded by itself

    Returns
    -------
    int8 [outputs, inputs], float32 [outputs]
    """
    outputs, inputs = weight.shape
    filled = np.zeros((outputs, -(-inputs // group) * group))
    filled[:, :inputs] = weight
    damped = np.eye(inputs) if moments is None else moments.damped
    counts = np.zeros(filled.shape[1])
    counts[:inputs] = damped.diagonal()
    steps, scales = _scales(filled.reshape(outputs, -1, group), counts.reshape(-1, group))
    scales = np.repeat(scales, group, 1)[:, :inputs]
    step = steps[:, None] * scales
    found = _rounded(weight, step)
    if moments is not None:
        found = _again(weight, step, damped, _compensated(weight, step, damped))
    return (found * scales).astype(np.int8), steps


def _rounded(weight: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(weight / step), LEAST, MOST)


def _scales(groups: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The step of each channel, float32, and the scale of each group of it that leaves the least
    error, for weights [outputs, groups, inputs of a group]; each input's error counts as ``counts``
    [groups, inputs of a group] says."""
    wanted = np.abs(groups).max(-1) / (MOST + 0.5)
    steps = wanted.max(1) / SCALES[-1]
    steps = np.where(steps > 0, steps, 1.0).astype(np.float32)
    first = np.rint(wanted / steps[:, None])
    best, least = np.ones_like(first), np.full_like(first, np.inf)
    for less in range(-1, _TRIED - 1):
        scales = np.clip(first - less, SCALES[0], SCALES[-1])
        step = (steps[:, None] * scales)[..., None]
        off = np.square(_rounded(groups, step) * step - groups)
        error = np.einsum("ogi,gi->og", off, counts)
        best, least = np.where(error < least, scales, best), np.minimum(error, least)
    return steps, best


def _compensated(weight: np.ndarray, step: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """What is rounded input by input, with the weights behind it changed for its error."""
    weight, inputs = weight.copy(), weight.shape[1]
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


def _again(
    weight: np.ndarray, step: np.ndarray, moments: np.ndarray, found: np.ndarray
) -> np.ndarray:
    """What is rounded input by input once more, each for the least error beside all others."""
    found, error, inputs = found.copy(), weight - found * step, weight.shape[1]
    for begin in range(0, inputs, _BLOCK):
        end = min(begin + _BLOCK, inputs)
        slopes = error @ moments[:, begin:end]
        for i in range(begin, end):
            best = weight[:, i] - error[:, i] + slopes[:, i - begin] / moments[i, i]
            found[:, i] = _rounded(best, step[:, i])
            new = weight[:, i] - found[:, i] * step[:, i]
            slopes += np.outer(new - error[:, i], moments[i, begin:end])
            error[:, i] = new
    return found
