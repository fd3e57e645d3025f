"""What a compilation shows while it runs: intermediate representations as numbered text files in a
directory (``--dump-ir``), and how far it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Steps of each node: its choice, and its code.
STEPS_OF_NODE = 2


@dataclass
class Dumps:
    """Writes files to ``directory``, and tells ``progress`` how many of ``steps`` are done; without
    them, writes and tells nothing.
    """

    directory: str | Path | None = None
    progress: Callable[[int, int], None] | None = None
    steps: int = 0
    count: int = 0
    done: int = 0

    def step(self) -> None:
        """Tell that a step is done."""
        self.reach(self.done + 1)

    def reach(self, done: int) -> None:
        """Tell that ``done`` steps are done."""
        self.done = done
        if self.progress is not None:
            self.progress(done, self.steps)

    def write(self, what: str, step: str, text: Callable[[], str]) -> None:
        """Write a file: ``text`` shows ``what`` (a graph or a loop program) after a ``step``."""
        if self.directory is None:
            return
        root = Path(self.directory)
        root.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in what)
        (root / f"{self.count:03d}_{name}_{step}.txt").write_text(text(), "utf-8")
        self.count += 1
