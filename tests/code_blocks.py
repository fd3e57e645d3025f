"""The code blocks of README and docs, and how they are run: ``python -m tests.code_blocks PAGE``.

A page's blocks run in their order, in one empty folder that has the examples and this environment:
``sh`` by bash, ``python`` in one process. A comment before a block may say otherwise::

    <!-- not run: why -->
    <!-- before: Python that runs first, such as what a fragment takes for granted -->
    <!-- saved as FILE -->    for a block that a command of the page reads

Blocks in other languages, and those without one, are no code: what commands print, diagrams.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = ("sh", "python")
#: What may stand behind a fence besides a language: tables of contents, generated text, data.
OTHERS = ("", "toml", "{toctree}", "{eval-rst}")
_MARK = re.compile(r"<!-- (not run|before|saved as):? (.*) -->")


@dataclass(frozen=True)
class Block:
    """A code block: its language, the line that it begins in, its text, and the mark before it."""

    language: str
    line: int
    text: str
    mark: str = ""
    detail: str = ""


def pages() -> list[str]:
    """README and the pages of docs, without those that are generated."""
    docs = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *(str(path) for path in docs if "_generated" not in path.parts)]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page."""
    found, lines = [], (ROOT / page).read_text().splitlines()
    begun: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begun is None:
            begun = number
            continue
        language = lines[begun].removeprefix("```").strip()
        text = "\n".join(lines[begun + 1 : number]) + "\n"
        above = _MARK.fullmatch(lines[begun - 1]) if begun else None
        mark = above.groups() if above else ("", "")
        found.append(Block(language, begun + 1, text, *mark))
        begun = None
    assert begun is None, f"{page}: the block of line {begun} has no end"
    return found


def run(page: str) -> None:
    """Run the blocks of a page in the current folder; the first that fails ends it."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language not in LANGUAGES or block.mark == "not run":
            continue
        print(f"{page}, line {block.line}", flush=True)
        if block.mark == "before":
            exec(block.detail, names)
        if block.mark == "saved as":
            Path(block.detail).write_text(block.text)
        elif block.language == "sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], check=True)
        else:
            exec(compile(block.text, f"{page}:{block.line}", "exec"), names)


if __name__ == "__main__":
    run(sys.argv[1])
