"""Results of compilation in the cache folder, found by everything that they depend on.

A file has a digest of all that follows, a line of JSON, and bytes. What is missing or damaged is
compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....runtime.cache import cache_dir, keep_checked, read_checked, source_digest

#: What is compiled in fewer seconds is not kept.
KEPT_FROM_S = 0.5
#: Of each kind of results, those that were used last are kept, up to this size.
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Kept:
    """A result: ``head`` is what JSON can hold."""

    head: Any
    data: bytes


def place_of(kind: str, parts: Iterable[str]) -> Path:
    """The file for a result that depends on these ``parts``, on the compiler's source, and on that
    of the simulator, by which it decides. The ``kind`` is the beginning of its name.
    """
    digest = hashlib.sha256()
    for part in (source_digest("compiler", "sim", "isa", "runtime"), *parts):
        digest.update(hashlib.sha256(part.encode()).digest())
    return cache_dir() / f"{kind}_{digest.hexdigest()[:32]}.bin"


def read(place: Path) -> Kept | None:
    """A result that was kept; None where it is missing or damaged."""
    content = read_checked(place)
    if content is None:
        return None
    with suppress(OSError):
        os.utime(place)  # it was used
    head, _, data = content.partition(b"\n")
    return Kept(json.loads(head), data)


def keep(place: Path, result: Kept, seconds: float) -> None:
    """Keep a result for :func:`read`, if compiling it took long enough."""
    if seconds <= KEPT_FROM_S:
        return
    keep_checked(place, json.dumps(result.head).encode() + b"\n" + result.data)
    with suppress(OSError):  # another process may remove files, too
        _make_room(place)


def _make_room(place: Path) -> None:
    """Remove those results of a kind that were used least recently, beyond ``MOST_BYTES``."""
    kind, _, _ = place.name.partition("_")
    found = [(path, path.stat()) for path in place.parent.glob(f"{kind}_*.bin")]
    total = 0
    for path, status in sorted(found, key=lambda entry: entry[1].st_mtime_ns, reverse=True):
        total += status.st_size
        if total > MOST_BYTES and path != place:
            path.unlink()
