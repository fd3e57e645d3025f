"""What a run of pytest writes for ``python -m tests.suite``, to files named by its environment."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

#: Counts of outcomes, and of the reasons for which tests were skipped, as JSON.
SUMMARY = "VDLA_TESTS_SUMMARY"
#: The files with tests that asked for the processor, one in a line; a file may come twice.
ASKED = "VDLA_TESTS_ASKED"


def write_summary(stats: dict[str, list[Any]]) -> None:
    """Write how many tests had each outcome, by pytest's reports."""
    place = os.environ.get(SUMMARY)
    if place is None:
        return
    skipped = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in stats.get("skipped", ())
    )
    outcomes = {kind: len(stats.get(kind, ())) for kind in ("passed", "failed", "error")}
    Path(place).write_text(json.dumps({"outcomes": outcomes, "skipped": skipped}))


def note_file(path: Path) -> None:
    """Write that a test of a file asked for the processor."""
    place = os.environ.get(ASKED)
    if place is not None:
        with open(place, "a") as file:
            file.write(f"{path}\n")
