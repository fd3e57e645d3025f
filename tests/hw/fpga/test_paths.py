"""The longest path from the delays that nextpnr writes."""

from __future__ import annotations

import pytest
from vdla.hw.fpga.paths import critical_path, longest_paths

#: As nextpnr writes it, shortened: from a through two tables to b, beside a shorter way; c has a
#: clock of its own.
SDF = r"""(DELAYFILE
  (CELL
    (CELLTYPE "top")
    (INSTANCE )
    (DELAY
      (ABSOLUTE
        (INTERCONNECT clock/CLKO core\.a/CLK (0:0:0) (0:0:0))
        (INTERCONNECT clock/CLKO core\.b/CLK (0:0:0) (0:0:0))
        (INTERCONNECT other/CLKO c/CLK (0:0:0) (0:0:0))
        (INTERCONNECT core\.a/Q near/A (800:800:800) (800:800:800))
        (INTERCONNECT core\.a/Q far/B (500:500:500) (500:500:500))
        (INTERCONNECT near/F far/A (400:400:400) (400:400:400))
        (INTERCONNECT far/F core\.b/DI (100:100:100) (100:100:100))
        (INTERCONNECT c/Q core\.b/M (9000:9000:9000) (9000:9000:9000))
        (INTERCONNECT c/Q c/DI (700:700:700) (700:700:700))
      )
    )
    )
  (CELL
    (CELLTYPE "TRELLIS_COMB")
    (INSTANCE near)
    (DELAY (ABSOLUTE
        (IOPATH A F (200:218:236) (200:218:236))
    )))
  (CELL
    (CELLTYPE "TRELLIS_COMB")
    (INSTANCE far)
    (DELAY (ABSOLUTE
        (IOPATH A F (200:218:236) (200:218:236))
        (IOPATH B F (200:218:236) (200:218:236))
    )))
  (CELL
    (CELLTYPE "TRELLIS_FF")
    (INSTANCE core\.a)
    (DELAY (ABSOLUTE
        (IOPATH CLK Q (430:477:525) (430:477:525))
    ))
    (TIMINGCHECK
      (SETUPHOLD (posedge DI) (posedge CLK) (0:0:0) (267:285:303))
    ))
  (CELL
    (CELLTYPE "TRELLIS_FF")
    (INSTANCE core\.b)
    (TIMINGCHECK
      (SETUPHOLD (posedge DI) (posedge CLK) (30:40:50) (267:285:303))
      (SETUPHOLD (posedge M) (posedge CLK) (30:40:50) (267:285:303))
    ))
  (CELL
    (CELLTYPE "TRELLIS_FF")
    (INSTANCE c)
    (DELAY (ABSOLUTE
        (IOPATH CLK Q (430:477:525) (430:477:525))
    ))
    (TIMINGCHECK
      (SETUPHOLD (posedge DI) (posedge CLK) (0:0:0) (267:285:303))
    ))
)
"""


def test_the_longest_path_of_a_clock() -> None:
    """Of the clock that is as fast as nextpnr says, and not from one clock to the other."""
    path = critical_path(SDF.splitlines(), 1000 / 2.3)
    assert [step["to"]["cell"] for step in path] == [
        "core.a", "near", "near", "far", "far", "core.b", "core.b",
    ]  # fmt: skip
    assert [step.get("net") for step in path] == [
        None, "core.a", None, "near", None, "far", None,
    ]  # fmt: skip
    ns = [0.525, 0.8, 0.236, 0.4, 0.236, 0.1, 0.05]
    assert [step["delay"] for step in path] == pytest.approx(ns)
    other = critical_path(SDF.splitlines(), 1000 / 1.3)
    assert [step["delay"] for step in other] == pytest.approx([0.525, 0.7, 0])
    assert [len(list(paths)) for paths in longest_paths(SDF.splitlines())] == [1, 1]


def test_no_registers() -> None:
    assert critical_path([], 60.0) == []
