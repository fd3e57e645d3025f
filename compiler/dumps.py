"""Intermediate representations as numbered text files in a directory (``--dump-ir``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Dumps:
    """Writes files to ``directory``; without one, writes nothing."""

    directory: str | Path | None = None
    count: int = 0

    def write(self, what: str, step: str, text: Callable[[], str]) -> None:
        """Write a file: ``text`` shows ``what`` (a graph or a loop program) after a ``step``."""
        if self.directory is None:
            return
        root = Path(self.directory)
        root.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in what)
        (root / f"{self.count:03d}_{name}_{step}.txt").write_text(text())
        self.count += 1
