"""Liberty files: what is read of them, in ns, pF, pJ and nW, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from vdla.hw.asic.liberty import FALL, RISE, Table, is_plain_flop, load_liberty
from vdla.isa.errors import VdlaError

from .circuits import OSU018, SMALL


def at(table: Table | None, slew_ns: float, load_pf: float = 0.0) -> float:
    """The value of a table that is there."""
    assert table is not None
    return table.at(slew_ns, load_pf)


def test_cells_and_units() -> None:
    """The file's units are 10 ps, fF and 10 nW."""
    library = load_liberty(SMALL)
    assert (library.name, library.voltage, len(library.cells)) == ("small", 1.2, 15)
    nand = library.cells["NAND2"]
    assert (nand.area_um2, nand.leakage_nw) == (1.4, pytest.approx(14))
    assert nand.pins["A"].direction == "input" and nand.pins["Y"].function == "!(A & B)"
    assert nand.pins["B"].capacitance_pf == pytest.approx(0.0012)
    first, second = nand.pins["Y"].arcs
    assert (first.related, second.related, first.sense) == ("A", "B", "negative_unate")
    power = nand.pins["Y"].powers[1]
    assert power.related == "B"
    assert at(power.energy[FALL], 0.2, 0.01) == pytest.approx(1e-3 * (0.75 + 0.001 * 20))


@pytest.mark.parametrize(("slew_ns", "load_pf"), [(0.02, 0.001), (0.5, 0.03), (0.0, 0.2), (3, 0)])
def test_tables_are_linear_between_and_beyond_their_points(slew_ns: float, load_pf: float) -> None:
    """NAND2: 60 ps + 11 ps/fF + slew / 5 from A; falling, the first part is four fifths."""
    arc = load_liberty(SMALL).cells["NAND2"].pins["Y"].arcs[0]
    rise, fall = arc.delay
    assert at(rise, slew_ns, load_pf) == pytest.approx(0.06 + 11 * load_pf + 0.2 * slew_ns)
    assert at(fall, slew_ns, load_pf) == pytest.approx(0.048 + 11 * load_pf + 0.2 * slew_ns)
    assert at(arc.slew[RISE], slew_ns, load_pf) == pytest.approx(0.05 + 22 * load_pf + slew_ns / 10)


def test_a_table_that_bends() -> None:
    """Of two segments, that in which the value is; the last one goes on."""
    table = Table(("load",), ((0.0, 1.0, 3.0),), (0.0, 2.0, 3.0))
    assert [table.at(0, x) for x in (0.5, 2.0, 5.0, -1.0)] == [1.0, 2.5, 4.0, -2.0]
    square = Table(("slew", "load"), ((0.0, 1.0), (0.0, 1.0, 2.0)), (0.0, 1.0, 5.0, 4.0, 4.0, 4.0))
    assert square.at(0.5, 1.5) == pytest.approx((3.0 + 4.0) / 2)
    assert Table((), (), (7.0,)).at(1, 1) == 7.0


def test_flip_flops() -> None:
    """Only one that takes D at the rising edge will do, without a reset."""
    cells = load_liberty(SMALL).cells
    assert [name for name, cell in cells.items() if is_plain_flop(cell)] == ["DFF"]
    flop = cells["DFF"]
    assert (flop.clock, flop.next, flop.state) == ("CK", "D", "IQ")
    setup = next(arc for arc in flop.pins["D"].arcs if arc.kind == "setup_rising")
    assert at(setup.delay[RISE], 0.5) == pytest.approx(0.1 + 0.02 * 0.5)  # of the first row
    assert at(setup.delay[FALL], 1.0) == pytest.approx(0.15)


@pytest.mark.skipif(not OSU018.exists(), reason="the Debian package qflow-tech-osu018")
def test_a_library_of_others() -> None:
    library = load_liberty(OSU018)
    assert len(library.cells) == 32 and library.voltage == 1.8
    arc = library.cells["AND2X1"].pins["Y"].arcs[0]
    assert at(arc.delay[RISE], 0.18, 0.025) == 0.106523


BAD = {
    "": "expected a Liberty file, with a library",
    "library (a) {": "its end",
    "library (a) { cell (b) { area 1; } }": "in line 1, got '1'",
    "library (a) {\n cell (b) { area : ; } }": "a value of area in line 2",
    "cell (a) { }": "expected a library with tables of delays, got cell",
    "library (a) { delay_model : polynomial; }": "the delay model polynomial",
    "library (a) { nom_voltage : 1; time_unit : 1lightyear; }": "expected the numbers",
    "library (a) { nom_voltage : 1; time_unit : fast; }": "the unit 'fast'",
    "library (a) { }": "no nom_voltage",
    "library (a) { nom_voltage : 1; cell (b) { area : x; } }": "'x'",
    "library (a) { nom_voltage : 1; cell (b) { area : 1; } }": "expected a flip-flop",
}


@pytest.mark.parametrize("text", BAD)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.lib"
    path.write_text(text)
    with pytest.raises(VdlaError, match=r"^[^\n]*bad\.lib: expected [^\n]*$") as caught:
        load_liberty(path)
    assert BAD[text] in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('clocked_on : "CK"', 'clocked_on : "!CK"', "expected a flip-flop"),
        ('values ("0.8, 1.0")', 'values ("0.8")', "1 values of rise_power where 2 are due"),
        ('index_2 ("0, 100")', 'index_2 ("100, 0")', "an index of rise_constraint that does not"),
        ("variable_2 : input_net_transition", "variable_2 : fanout", "the variable fanout"),
    ],
)
def test_files_with_one_fault_are_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = SMALL.read_text("utf-8")
    assert old in text
    path = tmp_path / "bad.lib"
    path.write_text(text.replace(old, new))
    with pytest.raises(VdlaError, match=said):
        load_liberty(path)


def test_a_file_that_is_cut_off_is_refused_wherever(tmp_path: Path) -> None:
    """Never a library of fewer cells, never another exception."""
    text = SMALL.read_text("utf-8").rstrip()
    for end in range(0, len(text), 97):
        path = tmp_path / "cut.lib"
        path.write_text(text[:end])
        with pytest.raises(VdlaError):
            load_liberty(path)
