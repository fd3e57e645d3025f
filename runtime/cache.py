"""Files that are made once for a machine, and checked when they are read."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

#: The folder, in the cache folder, of the files that :func:`one_process` locks.
LOCKS = "locks"
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_dir() -> Path:
    """The folder of built files: $VDLA_CACHE, or vdla in the user's cache folder."""
    root = os.environ.get("VDLA_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vdla"


@cache
def source_digest(*rooms: str) -> str:
    """A digest of the source files of some of the package's folders."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def one_process(path: Path) -> Iterator[None]:
    """Let one process at a time make a file of the cache. The others wait, and look for the file
    again when they are inside. Without locks, as on Windows, nobody waits."""
    with ExitStack() as stack:
        if fcntl is not None:
            with suppress(OSError):
                locks = path.parent / LOCKS
                locks.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((locks / path.name).open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def keep(path: Path, data: bytes) -> None:
    """Write a file of the cache, whole or not at all; safe when several processes do so at once."""
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)


def keep_checked(path: Path, data: bytes) -> None:
    """As :func:`keep`, with a digest for :func:`read_checked`."""
    keep(path, hashlib.sha256(data).digest() + data)


def read_checked(path: Path) -> bytes | None:
    """What :func:`keep_checked` wrote; None where it is missing or damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == digest else None
