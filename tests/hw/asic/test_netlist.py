"""Netlists: what yosys makes of a small design, merged modules, buffers, area by block."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from vdla.hw.asic.estimate import Design
from vdla.hw.asic.liberty import Library, load_liberty
from vdla.hw.asic.macros import DEFAULT, MacroTable
from vdla.hw.asic.netlist import FANOUT, Instance, Netlist, block_of, parse_netlist, with_buffers
from vdla.hw.asic.synthesis import merge_modules, synthesise
from vdla.hw.asic.timing import Timing
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams

from .circuits import SMALL, small_text

LIBRARY = load_liberty(SMALL)


@pytest.fixture(scope="module")
def small() -> Netlist:
    return synthesise(small_text(), SMALL, LIBRARY)


@pytest.fixture(scope="module")
def design(small: Netlist) -> Design:
    table = MacroTable.load(DEFAULT)
    memories = [table.tiled(memory) for memory in small.memories]
    return Design(HwParams(), "", small, memories, table, Timing(small, memories))


def test_blocks_of_names() -> None:
    """yosys' own names have dots, too."""
    names = {
        "gemm.sum": "gemm", "acc.storage": "acc", "$auto$ff.cc:337:slice$1": "core",
        "$flatten\\vector.$flatten\\lane_0.$abc$7": "vector", "status": "core",
        "gemm.$buffer$9": "gemm", "$buffer$8": "core",
    }  # fmt: skip
    assert {name: block_of(name) for name in names} == names


@pytest.mark.slow
def test_area_by_block_is_the_netlists(design: Design) -> None:
    """yosys counts all that is there but for our buffers; the memories are macros."""
    rows, total = design.blocks(), design.body()["total"]
    assert {row["block"] for row in rows} == {"core", "left", "right", "words"}
    buffers = sum(one.cell.area_um2 for one in design.netlist.instances if "$buffer" in one.name)
    cells = sum(row["cells_um2"] for row in rows)
    assert cells == pytest.approx(design.netlist.synthesised_um2 + buffers, rel=1e-9)
    assert total["cells_um2"] == pytest.approx(cells) and total["macros"] == 2
    assert total["area_um2"] == pytest.approx(cells + 9864 + 9032)  # 16 x 8 and 8 x 8
    flops = {row["block"]: row["flops"] for row in rows}
    assert flops == {"core": 16, "left": 8, "right": 8, "words": 0}
    assert sum(row["cells"] for row in rows) == len(design.netlist.instances)


@pytest.mark.slow
def test_memories_keep_their_ports(small: Netlist) -> None:
    storage, table = sorted(small.memories, key=lambda memory: memory.name)
    assert (storage.name, storage.words, storage.bits) == ("words.storage", 16, 8)
    assert (table.name, table.words, table.bits) == ("words.table", 8, 8)
    assert [port.clocked for port in (*storage.reads, *table.reads)] == [True, False]
    assert [len(port.address) for port in (*storage.writes, *table.writes)] == [4, 3]
    assert set(storage.writes[0].enable) == {"1"} and len(set(table.writes[0].enable)) == 1


def test_equal_modules_are_one() -> None:
    """Of the two products one is left, which is made once and used twice."""
    text = small_text()
    merged, kept = merge_modules(text)
    assert text.count("\nmodule ") == 4 and merged.count("\nmodule ") == 3
    assert kept == ["vdla_core.left", "vdla_core.words"]
    assert all(merged.count(f"\\vdla_core.left  {name} (") == 1 for name in ("left", "right"))
    other = text.replace("\\$2  = 8'h00", "\\$2  = 8'h01", 1)
    assert other != text and merge_modules(other)[0].count("\nmodule ") == 4


def fan(readers: int) -> Netlist:
    """A flip-flop with so many inverters behind it, in three blocks."""
    flop = Instance("a.f", LIBRARY.cells["DFF"], {"CK": 0, "D": 5, "Q": 1})
    inverters = [
        Instance(f"{'abc'[n % 3]}.i{n}", LIBRARY.cells["INV"], {"A": 1, "Y": 10 + n})
        for n in range(readers)
    ]
    return Netlist(LIBRARY, [flop, *inverters], [], 0, {}, {}, 0.0)


@pytest.mark.parametrize("readers", [FANOUT, FANOUT + 1, 300])
def test_buffers_where_a_net_has_many_readers(readers: int) -> None:
    made = with_buffers(fan(readers))
    loads = made.loads()
    assert max(map(len, loads.values())) <= FANOUT
    drives = {net: one for one in made.instances for pin, net in one.nets.items() if pin in "YQ"}
    assert len(drives) == len(made.instances)  # no net has two drivers

    def origin(net) -> str:
        driver = drives[net]
        return origin(driver.nets["A"]) if driver.cell.name.startswith("BUF") else driver.name

    inverters = [one for one in made.instances if one.cell.name == "INV"]
    assert len(inverters) == readers and all(origin(one.nets["A"]) == "a.f" for one in inverters)
    kinds = Counter(one.cell.name for one in made.instances)
    # 300 readers have 19 buffers, and these have two above them.
    assert kinds["BUF8"] == {FANOUT: 0, FANOUT + 1: 2, 300: 21}[readers] and not kinds["BUF"]


def test_a_library_without_buffers_has_none() -> None:
    cells = {name: cell for name, cell in LIBRARY.cells.items() if "BUF" not in name}
    made = replace(fan(300), library=Library("", 1.0, cells))
    assert with_buffers(made) is made


@pytest.mark.slow
def test_a_library_that_yosys_cannot_use(tmp_path) -> None:
    """No gates: one line, not a traceback."""
    text = SMALL.read_text("utf-8")
    head, flop = text[: text.index("  cell (INV)")], text[text.index("  cell (DFF)") :]
    path = tmp_path / "flops.lib"
    path.write_text(head + flop)
    with pytest.raises(VdlaError, match=r"^[^\n]*yosys failed: [^\n]*$"):
        synthesise(small_text(), path, load_liberty(path))


def test_a_netlist_with_other_cells_is_refused() -> None:
    cell = {"type": "$add", "connections": {}, "parameters": {}, "attributes": {}}
    module = {"cells": {"a": cell}, "netnames": {}, "ports": {"clk": {"bits": [2]}}}
    with pytest.raises(VdlaError, match=r"expected cells of the library small, got \$add"):
        parse_netlist(module, LIBRARY, 0.0)
