"""What a run of pytest writes for ``python -m tests.suite``, to a file named by its environment."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

#: Counts of outcomes, and of the reasons for which tests were skipped, as JSON.
SUMMARY = "VDLA_TESTS_SUMMARY"
#: Files of tests whose results may depend on the processor, a line each.
ASKING = "VDLA_TESTS_ASKING"


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


def write_asking(file: Path) -> None:
    """Write that tests of a file ask for the processor."""
    place = os.environ.get(ASKING)
    if place is not None:
        with open(place, "a") as lines:
            lines.write(f"{file}\n")
