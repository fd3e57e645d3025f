"""The table of configurations, and the run over it."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

import pytest
from vdla.isa.params import MEMORIES

from . import verify as command
from .configurations import PLATFORMS


def test_the_table_covers_the_knobs() -> None:
    params = [platform.params for platform in PLATFORMS]
    assert len({(p.params, p.memory) for p in PLATFORMS}) == len(PLATFORMS) == 19
    assert {p.block for p in params} == {4, 8, 16, 32}
    assert {1, 2} <= {p.batch for p in params if p.block == 32}
    assert {1, 2} <= {p.batch for p in params if p.block == 16}
    assert {p.bus_bits for p in params} == {64, 128, 256}
    odd = [p for p in params if all(p.depth(m) & (p.depth(m) - 1) for m in MEMORIES)]
    assert {p.block for p in odd} == {4, 8, 16, 32}
    for platform in PLATFORMS:
        platform.memory.check_bus(platform.params)
    for knob in ("queue_depth", "fetch_depth", "loads_in_flight", "stores_in_flight"):
        assert len({getattr(p, knob) for p in params}) >= 3, knob
    assert {p.vector_passes for p in params} == {1, 2, 4}
    assert {p.vector_table for p in params} == {0, 1, 2}
    assert {p.vector_window for p in params} == {0, 3, 4}
    assert {p.block for p in params if p.packed_weights} == {8, 16, 32}
    for knob in ("read_latency_cycles", "write_latency_cycles", "outstanding", "cycles_per_beat"):
        assert len({getattr(p.memory, knob) for p in PLATFORMS}) >= 3, knob


@pytest.mark.parametrize(
    ("first", "wrong", "covered"),
    [
        (None, [], 0.99),
        ({"program": 3, "what": "end cycle"}, [], 0.99),
        (None, ["cycles: sim 1, rtl 2"], 0.99),
        (None, [], 0.97),
    ],
)
def test_the_run_says_where_it_failed(
    first: dict | None,
    wrong: list[str],
    covered: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"programs": 2, "instructions": 80, "cycles": 900, "byte_mismatches": 0,
             "cycle_mismatches": 0, "first_divergence": first}  # fmt: skip
    monkeypatch.setattr(command, "Workers", lambda *_: nullcontext())
    monkeypatch.setattr(command, "closing", nullcontext)
    monkeypatch.setattr(command, "verify_on", lambda *_: found)
    monkeypatch.setattr(command.Coverage, "fraction", lambda _: covered)
    monkeypatch.setattr(command, "differences", lambda _: (700, wrong))
    monkeypatch.setattr(sys, "argv", ["verify", "4x4", "--programs", "2", "--json", "-"])
    assert command.main() == (1 if first or wrong or covered < 0.98 else 0)
    said = capsys.readouterr()
    names = [report["name"] for report in json.loads(said.out)["configurations"]]
    assert names == [platform.name for platform in PLATFORMS if "4x4" in platform.name]
    assert len(said.err.splitlines()) >= len(names) + 1
    assert ("first difference: program 3, what end cycle" in said.err) is bool(first)
    assert ("network: cycles: sim 1, rtl 2" in said.err) is bool(wrong)
