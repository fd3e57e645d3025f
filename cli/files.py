"""The files that commands read and write: a mark at the option says which; they are checked before
the work begins.

An option's type carries its mark: ``Annotated[Path, typer.Option(...), Writes(".npz")]``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

from ..isa.errors import VdlaError
from ..runtime.files import check_writable


@dataclass(frozen=True)
class Reads:
    """An existing file, whose name ends in ``suffix``; with ``or_folder`` also a folder, with
    ``or_network`` also the name of a network or a layer of ``vdla bench``.
    """

    suffix: str = ""
    or_folder: bool = False
    or_network: bool = False


@dataclass(frozen=True)
class Writes:
    """A file that is made or replaced. Its name must end in ``suffix``; with ``or_stdout``, ``-``
    means standard output.
    """

    suffix: str = ""
    or_stdout: bool = False


@dataclass(frozen=True)
class Merges:
    """A file that is read where it exists, and then replaced."""


@dataclass(frozen=True)
class Fills:
    """A folder that files are written into; it is made where there is none."""


Mark: TypeAlias = Reads | Writes | Merges | Fills


def marks(command: Callable[..., Any]) -> dict[str, Mark]:
    """The marks of a command's parameters, by the parameters' names."""
    hints = get_type_hints(command, include_extras=True)
    found = {
        name: next((extra for extra in get_args(hint)[1:] if isinstance(extra, Mark)), None)
        for name, hint in hints.items()
    }
    return {name: mark for name, mark in found.items() if mark is not None}


def checked(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with all its files and numbers checked before it begins."""
    marked = marks(command)

    @wraps(command)
    def run(**values: Any) -> Any:
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise VdlaError(f"{_option(name)}: expected a finite number, got {value}")
        check_files({name: (mark, values[name]) for name, mark in marked.items()})
        return command(**values)

    return run


def check_files(given: dict[str, tuple[Mark, Any]]) -> None:
    """Check the files of a command, by the names of its parameters; a value may be a path, text, a
    list of paths or None.

    Raises
    ------
    VdlaError
        For a file that cannot be read or written, and where a command would write over what it
        reads, or write one file twice.
    """
    read: dict[Path, str] = {}
    written: dict[Path, str] = {}
    for name, (mark, value) in given.items():
        for path in value if isinstance(value, list) else [value]:
            if path is None or (path == "-" and isinstance(mark, Writes) and mark.or_stdout):
                continue
            _check(_option(name), Path(path), mark)
            match mark:
                case Reads():
                    read[Path(path).resolve()] = _option(name)
                case Writes() | Merges() if not _is_device(Path(path)):
                    other = written.setdefault(Path(path).resolve(), _option(name))
                    if other != _option(name):
                        raise VdlaError(
                            f"{_option(name)}: expected another file than {other} writes, "
                            f"got {path}"
                        )
    for path in written:
        if path in read:
            raise VdlaError(
                f"{written[path]}: expected another file than {read[path]} reads, got {path}"
            )


def _option(name: str) -> str:
    """The option's name in messages: that of the parameter, as a person types it."""
    return name.removesuffix("_file").replace("_", "-")


def _check(option: str, path: Path, mark: Mark) -> None:
    if "\0" in str(path):
        raise VdlaError(f"{option}: expected the name of a file, got {str(path)!r}")
    try:
        match mark:
            case Reads(suffix=suffix, or_folder=or_folder, or_network=or_network):
                if or_network and not path.exists() and _is_network(path):
                    return
                _check_suffix(option, path, suffix)
                _check_read(option, path, or_folder)
            case Writes(suffix=suffix):
                _check_written(option, path, suffix)
            case Merges():
                if path.exists():
                    _check_read(option, path, False)
                _check_written(option, path, "")
            case Fills():
                _check_filled(option, path)
    except OSError as error:
        verb = "read" if isinstance(mark, Reads) else "written"
        raise VdlaError(
            f"{option}: expected a file that can be {verb}, got {path}: {error.strerror}"
        ) from None


def _check_read(option: str, path: Path, or_folder: bool) -> None:
    if path.is_dir():
        if not or_folder:
            raise VdlaError(f"{option}: expected a file, got the folder {path}")
        os.listdir(path)
    elif path.is_file():
        with path.open("rb") as file:
            file.read(1)
    else:
        path.stat()  # says what is wrong, unless it is a pipe, which cannot be read twice


def _is_network(path: Path) -> bool:
    from ..bench.networks import is_named  # takes a second

    return is_named(str(path))


def _check_written(option: str, path: Path, suffix: str) -> None:
    if path.is_dir():
        raise VdlaError(f"{option}: expected a file to write, got the folder {path}")
    _check_suffix(option, path, suffix)
    check_writable(path)


def _check_suffix(option: str, path: Path, suffix: str) -> None:
    if suffix and path.suffix != suffix:
        raise VdlaError(f"{option}: expected a file name that ends in {suffix}, got {path}")


def _check_filled(option: str, path: Path) -> None:
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise VdlaError(f"{option}: expected a folder to write into, got the file {there}")
    check_writable(there / ".vdla-probe")


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()
