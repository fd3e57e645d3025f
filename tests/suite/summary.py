"""What a run of pytest writes for ``python -m tests.suite``, to a file named by its environment."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

#: Counts of outcomes, and of the reasons for which tests were skipped, as JSON.
SUMMARY = "VDLA_TESTS_SUMMARY"


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
