"""The records of the package: choices for well-known networks that beat the planner's."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

from .records import Record, Records

#: The file. ``vdla bench tuned`` makes its lines.
SHIPPED = Path(__file__).with_name("shipped.jsonl")
#: The virtual threads of the planner that they beat. A user who asks for others gets others.
SHIPPED_VTHREADS = 2


@cache
def shipped() -> Records:
    """The records of the package. They are choices of the whole network that they were made for:
    there, each of them saves cycles.
    """
    return Records.load(SHIPPED)


def find_records(path: str | Path | None, vthreads: int) -> Records | None:
    """The records that a compilation with so many virtual threads uses: of a file, by default the
    one that the environment variable ``VDLA_RECORDS`` names, else those of the package, if these
    were made for as many.
    """
    path = path or os.environ.get("VDLA_RECORDS") or None  # empty is as not set
    if path is not None:
        return Records.load(path)
    return shipped() if vthreads == SHIPPED_VTHREADS else None


def slim(record: Record) -> Record:
    """A record without who made it and when."""
    return replace(record, who="", when="", seconds=None)
