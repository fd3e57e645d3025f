"""The size of what is kept: results that were used long ago make room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vdla.compiler.targets.common import cache as kept

#: Before a fixture of all tests replaces them.
READ, KEEP = kept.read, kept.keep


def test_those_that_were_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "MOST_BYTES", 3500)

    def keep(kind: str, name: str, seconds: float = 1.0) -> Path:
        place = kept.place_of(kind, [name])
        KEEP(place, kept.Kept(name, bytes(1000)), seconds)
        return place

    other = keep("cpu", "a")
    places = [keep("program", name) for name in "abc"]
    for age, place in enumerate([other, *places]):
        os.utime(place, ns=(age, age))
    assert READ(places[0]) == kept.Kept("a", bytes(1000))  # used now
    keep("program", "short", 0.1)
    new = keep("program", "d")
    assert set(tmp_path.iterdir()) == {other, places[0], places[2], new}

    monkeypatch.setattr(kept, "MOST_BYTES", 10)
    assert READ(keep("program", "e")) == kept.Kept("e", bytes(1000))  # the newest one stays
    assert len(list(tmp_path.glob("program_*"))) == 1 and other.exists()
