"""Attributes and arrays as text: equal values give equal texts."""

from __future__ import annotations

import hashlib

import numpy as np


def attribute_text(value: object) -> str:
    """An attribute of an operator as it stands in a graph's text."""
    match value:
        case np.ndarray():
            return array_text(value)
        case tuple():
            return "x".join(map(str, value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def array_text(data: np.ndarray) -> str:
    """Few values in full, many as a digest."""
    if data.size <= 4:
        return ",".join(f"{v:.9g}" if data.dtype.kind == "f" else str(v) for v in data.reshape(-1))
    little = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<"))
    return "#" + hashlib.sha256(little.tobytes()).hexdigest()[:8]
