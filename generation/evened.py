"""Weights of the same decoder whose activations have channels of similar size.

An activation in int8 has one scale, and a trained decoder has channels that are hundreds of times
as large as the others. The residual stream is rotated: RMS normalisation commutes with a rotation
of all channels, so one is folded into the weights before and behind, together with the factors of
the normalisations (source: QuaRot, Ashkboos et al. 2024). The largest channels before ``ffn_down``
are divided by factors, which are folded into the weights on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .gguf import EMBEDDING, HEAD, LAST_NORM, LlamaConfig, weight_name

#: Products that read each normalisation.
READERS = {"attn_norm": ("attn_q", "attn_k", "attn_v"), "ffn_norm": ("ffn_gate", "ffn_up")}
#: Products whose results are added to the residual stream.
WRITERS = ("attn_output", "ffn_down")
#: How often the median of all channels the largest one before ``ffn_down`` may be.
MOST_OF_MEDIAN = 4.0


def rotated(config: LlamaConfig, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights of the same decoder, as :func:`.gguf.read_llama` gives them, whose normalisations
    have no factors and whose residual stream is rotated. The head is one of its own."""
    turn = rotation(config.width)
    ones = np.ones(config.width, np.float32)
    embedding = weights[EMBEDDING]
    head = (weights.get(HEAD, embedding) * weights[LAST_NORM]) @ turn
    made = {**weights, EMBEDDING: embedding @ turn, HEAD: head, LAST_NORM: ones}
    for layer in range(config.layers):
        for norm, readers in READERS.items():
            name = weight_name(layer, norm)
            for reader in (weight_name(layer, kind) for kind in readers):
                made[reader] = (weights[reader] * weights[name]) @ turn
            made[name] = ones
        for writer in (weight_name(layer, kind) for kind in WRITERS):
            made[writer] = turn.T @ weights[writer]
    return made


def evened(
    config: LlamaConfig, weights: Mapping[str, np.ndarray], gated: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Weights of the same decoder whose channels before ``ffn_down`` are at most
    :data:`MOST_OF_MEDIAN` times the median of their layer; ``gated`` has the largest magnitudes of
    each layer's channels."""
    made = {**weights}
    for layer in range(config.layers):
        most = gated[layer]
        factors = np.maximum(1, most / (MOST_OF_MEDIAN * np.median(most))).astype(np.float32)
        up, down = (weight_name(layer, kind) for kind in ("ffn_up", "ffn_down"))
        made[up] = weights[up] / factors[:, None]
        made[down] = weights[down] * factors
    return made


def rotation(width: int) -> np.ndarray:
    """An orthogonal matrix, float32 [width, width], all of whose numbers are of similar size: a
    Hadamard matrix of the largest power of two in the width times a Hartley matrix of the rest."""
    power = width & -width
    places = np.arange(width // power)
    angles = 2 * np.pi / len(places) * places[:, None] * places
    made = (np.cos(angles) + np.sin(angles)) / np.sqrt(len(places))
    while len(made) < width:
        made = np.block([[made, made], [made, -made]]) / np.sqrt(2)
    return made.astype(np.float32)
