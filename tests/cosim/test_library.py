"""The library that benches are made of: each rule can fail, and mistakes are one line."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from vdla.cosim import (
    PAUSES,
    BenchFailure,
    Design,
    Scoreboard,
    StreamMonitor,
    check_burst,
    pauses,
    run_bench,
)
from vdla.cosim.words import differing_element
from vdla.hw.core.queue import Queue
from vdla.isa.errors import VdlaError

from .configs import NARROW

QUEUE_PORTS = ("i__valid", "i__payload", "o__ready")


def test_a_stream_that_keeps_its_rules() -> None:
    monitor = StreamMonitor("s")
    for sample in ((0, 1, 9), (1, 0, 5), (1, 1, 5), (1, 1, 6), (0, 0, 0)):
        monitor.sample(*sample)
    assert monitor.transfers == [(2, 5), (3, 6)] and monitor.payloads == [5, 6]


@pytest.mark.parametrize("second, message", [
    ((0, 0, 5), "s: valid fell without a transfer in cycle 1"),
    ((1, 1, 4), "s: payload changed from 0x5 to 0x4 while it waited, cycle 1"),
])  # fmt: skip
def test_a_stream_that_breaks_them(second: tuple[int, int, int], message: str) -> None:
    monitor = StreamMonitor("s")
    monitor.sample(1, 0, 5)
    with pytest.raises(AssertionError, match=message):
        monitor.sample(*second)


def test_scoreboard() -> None:
    board = Scoreboard[int]("words", hex)
    board.expect([16, 17, 18])
    board.check([16])
    with pytest.raises(AssertionError, match="words: 2 items have not come, the first is 0x11"):
        board.finish()
    with pytest.raises(AssertionError, match="words: item 1, cycle 7: expected 0x11, got 0x12"):
        board.check([18], "cycle 7")
    board.check([18])
    board.finish()
    with pytest.raises(AssertionError, match="item 2: expected nothing more, got 0x1"):
        board.check([1])


@pytest.mark.parametrize("address, beats, message", [
    (4, 1, "not aligned"), (0, 0, "burst of 0 beats"), (0, 17, "burst of 17 beats"),
    (4096 - 8, 2, "crosses a page"),
])  # fmt: skip
def test_bursts(address: int, beats: int, message: str) -> None:
    check_burst(4096 - 8, 1, NARROW)
    with pytest.raises(AssertionError, match=message):
        check_burst(address, beats, NARROW)


@pytest.mark.parametrize("level, least, most", [
    ("off", 0, 0), ("light", 500, 3000), ("heavy", 3000, 7000),
])  # fmt: skip
def test_pauses(level: str, least: int, most: int) -> None:
    assert level in PAUSES
    assert least <= sum(islice(pauses(random.Random(1), level), 10_000)) <= most


def test_a_bench_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(VdlaError, match=r"expected a Python file with cocotb tests, got 'no\.py'"):
        run_bench(Design("top", ""), "no.py", tmp_path)


@pytest.fixture(scope="module")
def queue() -> Design:
    return Design.component(Queue(24, 4), "vdla_queue")


def bench(folder: Path, *lines: str) -> Path:
    """A bench of the queue with these lines in its one test."""
    text = "import cocotb\nimport random\nfrom vdla.cosim import *\n"
    if lines:
        text += "@cocotb.test()\nasync def test(dut):\n" + "".join(f"    {x}\n" for x in lines)
    (folder / "my_bench.py").write_text(text)
    return folder / "my_bench.py"


@pytest.mark.slow
def test_a_bench_without_tests(queue: Design, tmp_path: Path) -> None:
    with pytest.raises(VdlaError, match=r"my_bench.py: expected tests, functions under"):
        run_bench(queue, bench(tmp_path), tmp_path)


@pytest.mark.slow
def test_a_bench_that_fails_shows_why(queue: Design, tmp_path: Path) -> None:
    lines = (
        f"await reset(dut, *{QUEUE_PORTS})",
        "source = StreamSource(dut, 'i', random.Random(1))",
        "await source.send([1, 2, 3])",
        "await until(dut, lambda: dut.level.value == 4, int(parameter('limit')), 'four words')",
    )
    with pytest.raises(BenchFailure, match="four words: not within 50 cycles"):
        run_bench(queue, bench(tmp_path, *lines), tmp_path, limit=50)


@pytest.mark.slow
def test_a_source_that_breaks_the_rules_is_seen(queue: Design, tmp_path: Path) -> None:
    """The queue is full, so that the fifth word waits, and is taken back."""
    lines = (
        f"await reset(dut, *{QUEUE_PORTS})",
        "source = StreamSource(dut, 'i', random.Random(1))",
        "await source.send([1, 2, 3, 4])",
        "dut.i__valid.value = 1",
        "await cocotb.triggers.ClockCycles(dut.clk, 2)",
        "dut.i__valid.value = 0",
        "await cocotb.triggers.ClockCycles(dut.clk, 3)",
    )
    with pytest.raises(BenchFailure, match="i: valid fell without a transfer in cycle"):
        run_bench(queue, bench(tmp_path, *lines), tmp_path)


@pytest.mark.parametrize("expected, got, dtype, found", [
    (0x0000_0005_FFFF_FFFE, 0x0000_0004_FFFF_FFFE, np.int32, (1, 5, 4)),
    (0x80_00, 0x7F_00, np.int8, (1, -128, 127)),
    (1, 0x8000_0000_0000_0001, np.int8, (7, 0, -128)),
])  # fmt: skip
def test_the_element_that_differs(expected: int, got: int, dtype: type, found: tuple) -> None:
    assert differing_element(expected, got, np.dtype(dtype)) == found
