"""The page of ``vdla run --html`` without a browser: it loads nothing, has every section, and its
numbers are those of the report.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.isa.footprint import MicroOps, accesses
from vdla.isa.insn import Load
from vdla.isa.opcodes import Unit
from vdla.pages.measured import Run, instructions, joined, lanes, occupancy, tensors
from vdla.pages.page import write_page
from vdla.pages.parts import Facts, Page, Section, Table
from vdla.pages.run import timeline

from .reading import read

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
DIGITS = MODELS / "digits_int8.onnx"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory):
    """The page of digits, and the report of the same run."""
    folder = tmp_path_factory.mktemp("page")
    command = ["run", str(DIGITS), "--html", str(folder / "p.html"), "--clock", "50"]
    assert run_app([*command, "--json", str(folder / "r.json")]) == 0
    report = json.loads((folder / "r.json").read_text())
    return read((folder / "p.html").read_text()), report


@pytest.fixture(scope="module")
def run() -> Run:
    """A run of digits."""
    module = vdla.compile(DIGITS)
    module.run(np.zeros((1, 1, 8, 8), np.float32))
    assert module.timing is not None
    return Run(module.compiled.programs, module.timing)


def test_nothing_is_loaded(written) -> None:
    page, _ = written
    assert page.loads == []


def test_every_section_is_there(written) -> None:
    page, _ = written
    assert page.sections == [
        "Layers", "Roofline", "DRAM traffic", "Timeline", "Scratchpads", "Tensors in DRAM",
        "Memory plan", "Choices", "Placement",
    ]  # fmt: skip
    kinds = [chart["kind"] for chart in page.data]
    assert kinds == ["bars", "bars", "scatter", "bars", "timeline", "steps", "areas"]


def test_the_head_says_what_was_run(written) -> None:
    page, report = written
    assert page.facts["Model"] == report["model"]
    assert page.facts["Model SHA-256"] == report["model_sha256"][:16]
    assert page.facts["Configuration"].endswith(report["config_hash"])
    assert page.facts["Memory"] == report["memory"]
    assert page.facts["Seed"] == "0" and page.facts["VDLA"] == report["vdla"]
    assert f"{report['cycles']:,} cycles ({report['time_ms']:.3f} ms, " in page.text
    assert "images a second at 50 MHz)" in page.text


def test_layers_are_those_of_the_report(written) -> None:
    page, report = written
    layers = [layer for layer in report["layers"] if layer["cycles"] is not None]
    rows = page.rows("Layers")
    assert [row["layer"] for row in rows] == [layer["name"] for layer in layers]
    for name in ("cycles", "macs", "active_cycles"):
        column = {"macs": "MACs", "active_cycles": "active cycles"}.get(name, name)
        assert [row[column] for row in rows] == [layer[name] for layer in layers]
    cycles = page.data[0]["views"][0]["values"]
    assert sum(value for (value,) in cycles) == report["cycles"]


def test_bars_of_a_unit_have_its_stalls(written) -> None:
    """The bars of a unit sum to its counters, but for the cycles after its last instruction."""
    page, report = written
    chart = page.data[1]
    assert [view["name"] for view in chart["views"]][1:] == [unit.name.lower() for unit in Unit]
    for view in chart["views"][1:]:
        counters = report["stalls"][view["name"]]
        sums = np.sum(view["values"], axis=0)
        assert sums[0] == counters["busy"]
        assert sum(sums) - sum(counters.values()) <= 0
        working = {k: v for k, v in counters.items() if k != "empty"}
        assert sums[:-1].sum() == sum(working.values())


def test_roofline_holds_every_layer_that_multiplies(written) -> None:
    page, report = written
    chart = page.data[2]
    layers = [x for x in report["layers"] if x["cycles"] is not None and x["macs"]]
    assert [point["name"] for point in chart["points"]] == [x["name"] for x in layers]
    (roof,) = chart["lines"]
    (low, rate), (_, peak), _ = roof["points"]
    for point, layer in zip(chart["points"], layers, strict=True):
        bound = min(peak, point["x"] * rate / low)
        assert point["y"] <= bound * (1 + 1e-9)
        assert point["y"] / bound == pytest.approx(layer["roofline_fraction"])


def test_dram_bytes_sum_to_those_of_the_run(written) -> None:
    page, report = written
    rows = page.rows("DRAM bytes")
    assert sum(row["bytes read"] for row in rows) == report["dram"]["read_bytes"]
    assert sum(row["bytes written"] for row in rows) == report["dram"]["written_bytes"]
    fetched = rows[-1]["bytes read"]
    assert fetched == len(vdla.compile(DIGITS).program.insns) * 32


def test_choices_and_places_are_those_of_the_report(written) -> None:
    page, report = written
    chosen = [layer for layer in report["layers"] if layer["knobs"]]
    rows = page.rows("What was chosen")
    assert [row["chosen by"] for row in rows] == [layer["chosen_by"] for layer in chosen]
    places = page.rows("Where each node runs, and why")
    assert [row["why"] for row in places] == [layer["reason"] for layer in report["layers"]]
    plans = page.rows("Memory between operators, in bytes")
    assert [row["planned"] for row in plans] == [p["planned_bytes"] for p in report["memory_plan"]]


def test_timeline_has_every_instruction(written, run: Run) -> None:
    page, _ = written
    chart = page.data[4]
    slices, program = chart["slices"], run.programs[0]
    rows = sorted(
        (*place, start, start + cycles - 1)
        for *place, start, cycles in zip(
            slices["row"],
            (chart["labels"][label] for label in slices["label"]),
            slices["start"],
            slices["cycles"],
            strict=True,
        )
    )
    assert rows == sorted(
        (int(insn.unit), note.layer, start, end)
        for insn, note, start, end in zip(
            program.insns, program.notes, run.timing.starts, run.timing.ends, strict=True
        )
    )


def test_joined_slices_lose_no_instruction(run: Run) -> None:
    """A timeline that is too long for a page keeps the number of instructions, and the cycles in
    which one runs, of every unit and layer.
    """
    found = instructions(run)
    few = joined(found, 60)
    assert few.gap >= 0 and len(few.start) <= 60 and few.count.sum() == len(found.unit)
    for unit in range(4):
        for layer in range(len(found.layers)):
            mine = (found.unit == unit) & (found.layer == layer)
            runs = np.zeros(run.timing.cycles + 1, bool)
            for start, end in zip(found.start[mine], found.end[mine], strict=True):
                runs[start : end + 1] = True
            slices = (few.unit == unit) & (few.layer == layer)
            assert few.active[slices].sum() == runs.sum()
            assert few.count[slices].sum() == mine.sum()
    assert "too many for one page" in timeline(run, 60).note
    assert joined(found, 1).gap > few.gap  # one slice for each unit and layer, not fewer


def test_slices_of_a_lane_do_not_overlap(run: Run) -> None:
    slices = joined(instructions(run), 1000)
    lane = lanes(slices)
    for unit, number in {*zip(slices.unit.tolist(), lane.tolist(), strict=True)}:
        mine = (slices.unit == unit) & (lane == number)
        starts = slices.start[mine]
        assert (starts[1:] >= (starts + slices.cycles[mine])[:-1]).all()


def test_scratchpads_hold_what_is_still_read(run: Run) -> None:
    """Against a slow count: for every cycle and entry, whether it is written and read later."""
    (program,), timing = run.programs, run.timing
    uops = MicroOps(program.params, program.image)
    by_entry: dict[tuple[str, int], list[tuple[int, int, bool]]] = {}
    for insn, start, end in zip(program.insns, timing.starts, timing.ends, strict=True):
        for access in accesses(insn, program.params, uops):
            if access.memory == "dram":
                continue
            for entry in np.unique(access.entries).tolist():
                by_entry.setdefault((access.memory, entry), []).append((start, end, access.write))
    held = {name: np.zeros(timing.cycles + 1, int) for name in ("inp", "wgt", "acc", "tmp", "out")}
    for (memory, _), touched in by_entry.items():
        if memory not in held:
            continue
        in_use = np.zeros(timing.cycles + 1, bool)
        begun, summing = None, False
        for start, end, write in sorted(touched, key=lambda t: t[0]):
            if write:
                begun, summing = (begun if memory == "acc" and summing else start), True
            elif begun is not None:
                summing = False
                in_use[begun : end + 1] = True
        held[memory] += in_use
    counted = occupancy(run, run.timing.cycles + 2)
    for memory, expected in held.items():
        assert np.array_equal(counted[memory][: len(expected)], expected), memory
        assert expected.max() <= program.params.depth(memory)
    assert held["inp"].max() > 0
    assert occupancy(run, 10)["inp"].max() == held["inp"].max()


def test_tensors_in_dram_are_within_the_plan(run: Run) -> None:
    (program,) = run.programs
    found = tensors(run)
    plan = program.meta["memory_plan"]
    assert max(tensor.end for tensor in found) <= plan["planned_bytes"]
    read = sum(tensor.read_bytes for tensor in found)
    known = {constant["name"] for constant in program.meta["names"]["constants"]}
    others = sum(  # constants, and micro-ops, whose loads name no tensor
        insn.x_size * insn.y_size * insn.z_size * insn.dram_entry_bytes(program.params)
        for insn, note in zip(program.insns, program.notes, strict=True)
        if isinstance(insn, Load) and (note.tensor in known or not note.tensor)
    )
    fetched = len(program.insns) * program.params.insn_bytes
    total = vdla.report.bounds.dram_traffic(program)["read_bytes"]
    assert read + others + fetched == total
    for a in found:  # tensors at the same place are not needed at the same time
        for b in found:
            if a.name < b.name and a.begin < b.end and b.begin < a.end:
                assert a.last < b.first or b.last < a.first or (a.begin, a.end) == (b.begin, b.end)


def test_a_run_on_the_host_has_a_page(tmp_path: Path, capsys) -> None:
    page = tmp_path / "cpu.html"
    assert run_app(["run", str(DIGITS), "--target", "cpu", "--html", str(page)]) == 0
    found = read(page.read_text())
    assert found.sections == ["Memory plan", "Choices", "Placement"]
    assert not found.loads and not found.data


def test_names_cannot_become_code() -> None:
    """A model's names are text, whatever stands in them."""
    evil = "</script><script>alert(1)</script><img src=http://x>\u2028"
    rows = [(evil, 1)]
    parts = [Table(evil, (evil, "n"), rows)]
    text = write_page(Page(evil, [evil], Facts({evil: evil}), [Section(evil, evil, parts)]))
    page = read(text)
    assert page.loads == [] and page.sections == [evil]
    assert len(re.findall("<script", text)) == 2


def test_names_in_charts_cannot_become_code(run: Run) -> None:
    evil = "</script><img src=http://x onerror=alert(1)>"
    chart = timeline(run)
    object.__setattr__(chart, "labels", [evil] * len(chart.labels))
    text = write_page(Page("t", [], Facts({}), [Section("s", "", [chart])]))
    page = read(text)
    assert page.loads == [] and page.data[0]["labels"][0] == evil


@pytest.mark.slow
def test_the_roofline_of_a_model_is_a_picture(tmp_path: Path, capsys) -> None:
    png = tmp_path / "r.png"
    assert run_app(["run", str(DIGITS), "--vthreads", "4", "--roofline", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    png.unlink()
    capsys.readouterr()
    assert run_app(["run", str(DIGITS), "--target", "cpu", "--roofline", str(png)]) == 2
    assert "expected a model that runs on the accelerator" in capsys.readouterr().err
    assert not png.exists()
