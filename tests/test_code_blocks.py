"""Every code block of README and docs runs, or says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vdla.cli.app import COMMANDS, GROUPS

from .code_blocks import LANGUAGES, OTHERS, ROOT, blocks, pages

#: Pages that take seconds; the others are run by ``make docs-code``.
QUICK = {"docs/tutorials/run.md", "docs/tutorials/schedule.md"}


def pages_with_code() -> list[str]:
    """Pages with a block that runs."""
    return [
        page for page in pages()
        if any(b.language in LANGUAGES and b.mark != "not run" for b in blocks(page))
    ]  # fmt: skip


def test_every_block_is_known() -> None:
    """A language that nothing runs is no language of code, and what is not run says why."""
    for page in pages():
        for block in blocks(page):
            where = f"{page}, line {block.line}"
            assert block.language in (*LANGUAGES, *OTHERS), f"{where}: {block.language!r}"
            assert block.mark != "not run" or len(block.detail) > 10, f"{where}: say why"
            commands = (".venv/bin/", "make ", *(f"vdla {name} " for name in (*COMMANDS, *GROUPS)))
            if block.text.startswith(commands):
                assert block.language == "sh", f"{where}: commands are sh"
    assert {"README.md", "docs/start.md", *QUICK} <= set(pages_with_code())


@pytest.mark.more
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in QUICK else pytest.mark.sweep)
        for page in pages_with_code()
    ],
)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    path = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "code_blocks.py"), page], cwd=tmp_path,
        env=os.environ | {"PATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
