"""The table of readers: by operator, and by the type of its first operand."""

from __future__ import annotations

from .audio import features, fourier, streams
from .graph import Reader
from .ops import (
    arithmetic,
    control,
    conversion,
    convolution,
    decode,
    detection,
    elementwise,
    indexing,
    linear,
    lstm,
    mediapipe,
    normalization,
    pooling,
    reduction,
    resize,
    rnn,
    shape,
    slicing,
    softmax,
    spectral,
    svdf,
)

Readers = dict[str, dict[str, Reader]]
_FAMILIES = (
    arithmetic, control, conversion, convolution, decode, detection, elementwise, features, fourier,
    indexing, linear, lstm, mediapipe, normalization, pooling, reduction, resize, rnn, shape,
    slicing, softmax, spectral, streams, svdf,
)  # fmt: skip


def _table() -> Readers:
    table: Readers = {}
    for family in _FAMILIES:
        for kind, row in family.READERS.items():
            for dtypes, reader in row.items():
                table.setdefault(kind, {}).update(dict.fromkeys(dtypes.split(), reader))
    return table


#: One row per operator, with a reader per type of the first operand.
READERS = _table()
