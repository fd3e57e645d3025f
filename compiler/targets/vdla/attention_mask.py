"""The attention mask of a softmax along positions: the keys that each block of queries sees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graph.ops.softmax import VISIBLE


class VisibleKeys(NamedTuple):
    """The keys that a block of queries sees. All queries see the first ``free`` keys, no query sees
    a key from ``bound`` on. For the keys between, rows of the mask from ``row`` on decide."""

    free: int
    bound: int
    row: int


def find_visible_keys(mask: np.ndarray, block: int) -> tuple[tuple[VisibleKeys, ...], np.ndarray]:
    """The visible keys of each block of queries, and the distinct rows of all masks, bool [rows,
    block]. ``mask`` is that of the operator, [queries, keys]."""
    spans, rows, first = [], [], {}
    for queries in (mask == VISIBLE).reshape(-1, block, mask.shape[-1]):
        bound = int(np.flatnonzero(queries.any(axis=0))[-1]) + 1
        free = int(np.argmin([*queries.all(axis=0), False]))
        # Chunks of a row are then whole blocks, and blocks more often have the same mask.
        free = bound if free >= bound else free // block * block
        rows_of_mask = queries[:, free:bound].T
        if rows_of_mask.tobytes() not in first:
            first[rows_of_mask.tobytes()] = len(rows)
            rows += [*rows_of_mask]
        spans.append(VisibleKeys(free, bound, first[rows_of_mask.tobytes()]))
    return tuple(spans), np.array(rows, bool).reshape(-1, block)
