"""Which keys the queries of a block see, of a mask that a softmax along places has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Span(NamedTuple):
    """The keys of a block of queries: all queries see the first ``free``, and none sees those from
    ``bound`` on. For those between, rows of a mask from ``row`` on say which queries do."""

    free: int
    bound: int
    row: int


def spans_of(kept: np.ndarray, block: int) -> tuple[tuple[Span, ...], np.ndarray]:
    """The span of each block of queries, and the rows of all masks, bool [rows, block], each once.
    ``kept`` is not 0 where a query sees a key, [queries, keys]."""
    spans, rows, first = [], [], {}
    for queries in (kept != 0).reshape(-1, block, kept.shape[-1]):
        bound = int(np.flatnonzero(queries.any(axis=0))[-1]) + 1
        free = int(np.argmin([*queries.all(axis=0), False]))
        # Parts of a row are then whole blocks, and blocks more often have the same mask.
        free = bound if free >= bound else free // block * block
        mask = queries[:, free:bound].T
        if mask.tobytes() not in first:
            first[mask.tobytes()] = len(rows)
            rows += [*mask]
        spans.append(Span(free, bound, first[mask.tobytes()]))
    return tuple(spans), np.array(rows, bool).reshape(-1, block)
