"""Tables of RAM macros: their files, and memories made of them."""

from __future__ import annotations

import re
from math import log2
from pathlib import Path

import pytest
from vdla.hw.asic.macros import DEFAULT, Macro, MacroTable
from vdla.hw.asic.netlist import Memory, Port
from vdla.isa.errors import VdlaError

TABLE = """name = "two"
origin = "a test"
voltage = 1.2
macro = [
  {words = 16, bits = 8, reads = 1, area_um2 = 10, read_pj = 1, write_pj = 2, access_ns = 1.5,
   setup_ns = 0.25, pin_pf = 0.01},
  {words = 64, bits = 32, reads = 2, area_um2 = 100, read_pj = 5, write_pj = 7, access_ns = 2,
   setup_ns = 0.25, pin_pf = 0.02},
]
""".replace(",\n   ", ", ")


def memory(words: int, bits: int, reads: int) -> Memory:
    """A memory whose nets do not matter."""
    port = Port((), (), ())
    return Memory("memory", words, bits, (port,) * reads, (port,))


def two(tmp_path: Path, text: str = TABLE) -> MacroTable:
    path = tmp_path / "two.toml"
    path.write_text(text)
    return MacroTable.load(path)


def test_the_smallest_way_is_taken(tmp_path: Path) -> None:
    table = two(tmp_path)
    small = table.tiled(memory(20, 9, 1))
    assert (small.columns, small.rows, small.copies, small.area_um2) == (2, 2, 1, 40)
    assert small.energy_pj(reads=10, writes=3) == 2 * (10 * 1 + 3 * 2)
    large = table.tiled(memory(64, 32, 2))
    assert (large.macro.words, large.count, large.area_um2) == (64, 1, 100)
    copied = table.tiled(memory(16, 8, 3))
    assert (copied.copies, copied.count) == (3, 3)
    assert copied.energy_pj(reads=1, writes=1) == 1 + 3 * 2  # each copy is written


def test_the_default_table_is_its_formula() -> None:
    """The formula in the file's first lines gives all of its rows."""
    text, table = DEFAULT.read_text("utf-8"), MacroTable.load(DEFAULT)
    formulas = dict(re.findall(r"^#   (\w+) += ([^ ].*?)(?:  +.*)?$", text, re.MULTILINE))
    assert formulas.keys() == {"area_um2", "read_pj", "write_pj", "access_ns"}
    for macro in table.macros:
        names = {"W": macro.words, "B": macro.bits, "log2": log2}
        for key, formula in formulas.items():
            code = re.sub(r"(?<=[\d.BW]) (?=[\dWBl(])", "*", formula)
            assert getattr(macro, key) == pytest.approx(eval(code, names), abs=6e-4), (key, macro)
    assert len({(macro.words, macro.bits) for macro in table.macros}) == len(table.macros) == 36


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "two"\n', "", "expected the keys name, origin, voltage, got origin, voltage"),
        ("voltage = 1.2", 'voltage = "1"', "voltage: expected a number from 0, got '1'"),
        ("words = 16", "words = 0", "macro 1: words: expected a whole number from 1, got 0"),
        ("words = 64", "words = 64.0", "macro 2: words: expected a whole number from 1, got 64.0"),
        ("read_pj = 5", "read_pj = nan", "macro 2: read_pj: expected a number from 0, got nan"),
        ("reads = 2", "ports = 2", "macro 2: expected the keys words, bits, reads"),
        ("macro = [", "wings = [", "got name, origin, voltage, wings"),
        ("macro = [\n", "macro = 3\n[a]\nb = [\n", "expected the keys name"),
    ],
)
def test_other_tables_are_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in TABLE
    with pytest.raises(VdlaError, match=rf"^[^\n]*two\.toml[^\n]*{said}[^\n]*$"):
        two(tmp_path, TABLE.replace(old, new))


@pytest.mark.parametrize("macros", ["", "macro = 3", "macro = []"])
def test_a_table_without_macros_is_refused(macros: str, tmp_path: Path) -> None:
    with pytest.raises(VdlaError, match=r"two\.toml: expected a \[\[macro\]\] for each macro"):
        two(tmp_path, TABLE.partition("macro = [")[0] + macros)


def test_equal_areas_go_to_the_fastest() -> None:
    slow = Macro(16, 8, 1, 10.0, 1.0, 1.0, 3.0, 0.1, 0.01)
    fast = Macro(16, 16, 1, 10.0, 1.0, 1.0, 2.0, 0.1, 0.01)
    table = MacroTable("", "", 1.0, (slow, fast))
    assert table.tiled(memory(16, 8, 1)).macro is fast
