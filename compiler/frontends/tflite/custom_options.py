"""Options of custom operators: flexbuffers with names and values."""

from __future__ import annotations

from typing import Any

from flatbuffers import flexbuffers

from .file import DAMAGE
from .graph import Call

#: Bounds of a number that TensorFlow Lite reads as int32.
INT32 = (-(1 << 31), (1 << 31) - 1)


def own_options(call: Call) -> dict[str, Any]:
    """The options of a custom operator by name."""
    try:
        found = flexbuffers.GetRoot(call.operator.options).AsMap.Value
    except (*DAMAGE, AttributeError, LookupError, AssertionError, RecursionError):
        raise call.refuse("its options are damaged") from None
    return found


def integers(call: Call, **bounds: tuple[int, int]) -> list[int]:
    """Options that are integers or flags, each in its bounds."""
    found = own_options(call)
    for name, (low, high) in bounds.items():
        if not isinstance(found.get(name), int) or not low <= found[name] <= high:
            raise call.refuse(
                f"expected an option {name!r} from {low} to {high}, got {found.get(name)!r:.40}"
            )
    return [int(found[name]) for name in bounds]
