"""Earlier names of knobs and of their values, as old records, reports and files have them."""

from __future__ import annotations

from collections.abc import Mapping

from .space import Knobs, KnobValue

_KNOBS = {"image_parts": "image_chunks", "places": "positions", "parts": "split_k"}
_VALUES: Mapping[tuple[str, KnobValue], KnobValue] = {
    ("addition", "joined"): "fused",
    ("expansion", "joined"): "fused",
}


def with_new_names(knobs: Knobs) -> Knobs:
    """The knobs by the names that they have today, with the values of today."""
    return {_KNOBS.get(name, name): _VALUES.get((name, v), v) for name, v in knobs.items()}
