"""The table of readers: by operator, and by the type of its first operand."""

from __future__ import annotations

from .audio import features, fourier, streams
from .graph import ANY, Call, Reader
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

_FAMILIES = (
    arithmetic, control, conversion, convolution, decode, detection, elementwise, features, fourier,
    indexing, linear, lstm, normalization, pooling, reduction, resize, rnn, shape, slicing, softmax,
    spectral, streams, svdf,
)  # fmt: skip


def _table() -> dict[str, dict[str, Reader]]:
    table: dict[str, dict[str, Reader]] = {}
    for family in _FAMILIES:
        for kind, row in family.READERS.items():
            for dtypes, reader in row.items():
                table.setdefault(kind, {}).update(dict.fromkeys(dtypes.split(), reader))
    return table


#: One row per operator, with a reader per type of the first operand.
TABLE = _table()


def _reader(kind: str) -> Reader:
    """The reader of an operator: the first operand's type decides."""
    typed = TABLE[kind]

    def read(call: Call) -> None:
        dtype = call.operand(0).dtype if call.operator.inputs else ANY
        found = typed.get(dtype) or typed.get(ANY)
        if found is None:
            raise call.refuse(f"supported are {', '.join(typed)}, got {dtype} of {call.operand(0)}")
        found(call)

    return read


#: One row per operator.
READERS: dict[str, Reader] = {kind: _reader(kind) for kind in sorted(TABLE)}
