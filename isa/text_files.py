"""Text files of users: read, or refused in one line that names the file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from .errors import VdlaError


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises VdlaError for a file that is not in UTF-8, and OSError for one that cannot be read.
    """
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise VdlaError(
            f"{path}: expected text in UTF-8, got other bytes ({error.reason} at byte"
            f" {error.start})"
        ) from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """The table of a TOML file. Raises VdlaError for something else."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise VdlaError(f"{path}: expected TOML, {error}") from None
