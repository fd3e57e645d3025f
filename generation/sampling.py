"""The next token from logits, on the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.errors import VdlaError

#: Takes logits float32 [words], and returns a token.
Sample = Callable[[np.ndarray], int]


def sampler(temperature: float = 0.0, top_k: int = 0, seed: int = 0) -> Sample:
    """What chooses tokens: at temperature 0 the likeliest one, the first of equals; else by chance,
    among the ``top_k`` likeliest unless that is 0. The same seed draws the same tokens.

    Raises
    ------
    VdlaError
        For a number out of range.
    """
    if not 0 <= temperature < float("inf"):
        raise VdlaError(f"temperature: expected a number of at least 0, got {temperature!r}")
    if top_k < 0:
        raise VdlaError(f"top k: expected a number of at least 0, got {top_k!r}")
    random = np.random.default_rng(seed)

    def sample(logits: np.ndarray) -> int:
        if temperature == 0:
            return int(np.argmax(logits))
        ranked = np.argsort(-logits, kind="stable")[: top_k or None]
        scaled = (logits[ranked].astype(np.float64) - logits[ranked[0]]) / temperature
        shares = np.exp(scaled)
        return int(random.choice(ranked, p=shares / shares.sum()))

    return sample
