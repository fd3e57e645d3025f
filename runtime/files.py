"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A path to write to. What was written there takes the place of ``path`` when the block ends,
    and goes when an error ends it; then ``path`` is as it was.

    Devices and pipes cannot be replaced, so they are written directly.

    Raises
    ------
    OSError
        Naming ``path``, where it cannot be written.
    """
    wanted = Path(path)
    is_device = wanted.exists() and not wanted.is_file()
    place = wanted.resolve()  # the file behind a link, so that the link stays
    scratch = place.with_name(f".{place.stem}.{os.getpid()}{place.suffix}")
    try:
        yield wanted if is_device else scratch
        if not is_device:
            os.replace(scratch, place)
    except OSError as error:
        if error.filename not in (None, scratch, str(scratch)):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole_file(path) as place:
        place.write_text(text, "utf-8", "surrogateescape")  # as names of files may have it


def check_writable(path: str | Path) -> None:
    """Raise OSError, naming ``path``, unless :func:`whole_file` can write there now."""
    with suppress(_Tried), whole_file(path) as place:
        if place != Path(path):
            place.touch()
        elif not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        raise _Tried


class _Tried(Exception):
    """The place can be written; what was written there goes."""
