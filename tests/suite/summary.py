"""What a run of pytest writes for the sentence at the end of ``make test``."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

#: The file that it writes.
VARIABLE = "VDLA_TESTS_SUMMARY"


def write_summary(stats: dict[str, list[Any]]) -> None:
    """Counts of outcomes, and of the reasons for which tests were skipped, for each reason once."""
    place = os.environ.get(VARIABLE)
    if place is None:
        return
    reasons = Counter(str(report.longrepr[2]) for report in stats.get("skipped", ()))
    skipped = {reason.removeprefix("Skipped: "): count for reason, count in reasons.items()}
    kinds = ("passed", "failed", "error")
    outcomes = {kind: len(stats.get(kind, ())) for kind in kinds}
    Path(place).write_text(json.dumps({"outcomes": outcomes, "skipped": skipped}))
