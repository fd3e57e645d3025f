"""Ways in which a kept file may be damaged."""

from __future__ import annotations

from collections.abc import Callable


def _changed(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "changed": _changed,
    "empty": lambda _: b"",
}
