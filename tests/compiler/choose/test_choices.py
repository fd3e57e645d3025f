"""Who chooses: a person, then a record, then the planner or the default; and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vdla
from vdla.bench.net import Net
from vdla.compiler.choose import chooser
from vdla.compiler.choose.files import load_knobs
from vdla.compiler.choose.records import Records
from vdla.compiler.choose.space import Space, Workload
from vdla.compiler.choose.template import Decision
from vdla.isa.errors import VdlaError
from vdla.runtime.executable import LayerInfo

from ...processors import on_processor

DIGITS = Path(__file__).parents[3] / "examples" / "models" / "digits_int8.onnx"
IMAGE = np.random.default_rng(0).uniform(0, 16, (1, 1, 8, 8)).astype(np.float32)


def rows(module: vdla.Module) -> dict[str, dict[str, Any]]:
    """The layers of a module's report by name."""
    return {row["name"]: row for row in module.report["layers"]}


def layers(module: vdla.Module) -> dict[str, LayerInfo]:
    """The compiled layers of a module by name."""
    return {layer.name: layer for layer in module.compiled.layers}


def record_of(layer: str, target: str, knobs: dict[str, Any], cost: float) -> dict[str, Any]:
    """A record for the choice of a tiling that a layer of the digits network asks for, with those
    of the ``knobs`` that it has."""
    asked = []

    class Asked(chooser.Chooser):
        def attempt(self, decision: Decision, workload: Workload, name: str) -> Any:
            known = decision.space(workload).knobs
            if name == layer and "rows" in known:
                asked.append((self.target, self.machine, decision.name, workload.key, known))
            return super().attempt(decision, workload, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vdla.compiler.build.Chooser", Asked)
        vdla.compile(DIGITS, target)
    *key, known = asked[0]
    own = {name: value for name, value in knobs.items() if name in known}
    names = ("target", "machine", "template", "workload")
    return dict(zip(names, key, strict=True)) | {"knobs": own, "cost": cost}


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# ---- the order -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_person_then_a_record_then_the_planner(tmp_path: Path) -> None:
    planned = vdla.compile(DIGITS)
    (expected,) = planned.run(IMAGE)
    row = rows(planned)["left"]
    assert row["chosen_by"] == "planner"
    assert abs(row["predicted_cycles"] - row["cycles"]) < row["cycles"]
    knobs = row["knobs"]
    slow = knobs | {"rows": 1}
    assert slow != knobs
    costs = ((slow, 5.0), (knobs | {"rows": 2}, 7.0))
    file = write(tmp_path / "records", *(record_of("left", "sim", *pair) for pair in costs))

    recorded = vdla.compile(DIGITS, records=file)
    np.testing.assert_array_equal(recorded.run(IMAGE)[0], expected)
    found = rows(recorded)["left"]
    assert found["chosen_by"] == "record" and found["knobs"]["rows"] == 1
    assert rows(recorded)["down"]["chosen_by"] == "planner"
    assert found["predicted_cycles"] > row["predicted_cycles"]
    assert found["cycles"] > row["cycles"]

    given = vdla.compile(DIGITS, records=file, knobs={"left": {"rows": 2}})
    np.testing.assert_array_equal(given.run(IMAGE)[0], expected)
    found = rows(given)["left"]
    assert found["chosen_by"] == "user" and found["knobs"]["rows"] == 2


@pytest.mark.slow
def test_records_of_another_machine_or_that_are_illegal_do_not_count(tmp_path: Path) -> None:
    knobs = layers(vdla.compile(DIGITS))["left"].knobs
    record = record_of("left", "sim", dict(knobs) | {"rows": 1}, 1.0)
    illegal = record | {"knobs": record["knobs"] | {"rows": 0}}
    unknown = record | {"knobs": record["knobs"] | {"windows": "packed"}}
    for other in (illegal, unknown, record | {"machine": "another"}, record | {"target": "cpu"}):
        module = vdla.compile(DIGITS, records=write(tmp_path / "records", other))
        found = layers(module)["left"]
        assert (found.chosen_by, found.knobs) == ("planner", knobs)


@pytest.mark.slow
def test_where_the_best_record_does_not_fit_the_next_one_does(tmp_path: Path) -> None:
    """A record is of a workload, whatever its neighbours leave it of the scratchpads."""
    knobs = layers(vdla.compile(DIGITS))["left"].knobs
    legal = record_of("left", "sim", knobs | {"rows": 1}, 2.0)
    file = write(tmp_path / "records", legal | {"knobs": legal["knobs"] | {"rows": 0}, "cost": 1.0})
    with file.open("a") as lines:
        lines.write(json.dumps(legal) + "\n")
    found = layers(vdla.compile(DIGITS, records=file))["left"]
    assert found.chosen_by == "record" and found.knobs["rows"] == 1


# ---- the same choices again ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_report_makes_the_same_program(tmp_path: Path) -> None:
    first = vdla.compile(DIGITS, knobs={"left": {"rows": 1}, "down": {"order": "stream"}})
    first.run(IMAGE)
    report, text = tmp_path / "report.json", json.dumps(first.report)
    for names in text, text.replace("image_chunks", "image_parts").replace('"fused"', '"joined"'):
        report.write_text(names)
        again = vdla.compile(DIGITS, knobs=report)
        a, b = first.program, again.program
        assert a.insns == b.insns and a.dram_image().tobytes() == b.dram_image().tobytes()
    assert {layer.chosen_by for layer in again.compiled.layers if layer.knobs} == {"user"}
    plain = vdla.compile(DIGITS).program
    assert plain.insns != a.insns


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_a_report_makes_the_same_files(target: str, tmp_path: Path) -> None:
    first = vdla.compile(convolution(), target)
    first.run(*(np.zeros(t.shape, t.dtype) for t in first.compiled.inputs))
    again = vdla.compile(convolution(), target, knobs=first.report)
    folders = []
    for module in (first, again):
        folders.append(tmp_path / str(len(folders)))
        module.save(folders[-1])
    names = [sorted(p.name for p in folder.iterdir()) for folder in folders]
    assert names[0] == names[1] and any("." in name for name in names[0])
    code = [name for name in names[0] if not name.endswith(".json")]
    assert code
    for name in code:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def convolution() -> Any:
    net = Net("convolution")
    net.output(net.conv(net.input(1, 32, 16, 16), 32, 3))
    return net.model()


# ---- the processor -------------------------------------------------------------------------------


def float_convolution(builder: Any) -> Any:
    rng = np.random.default_rng(0)
    x = builder.input("x", [1, 32, 12, 12])
    weight = builder.constant("w", rng.normal(0, 0.1, (32, 32, 3, 3)).astype(np.float32))
    made = builder.model([builder.node("Conv", [x, weight], "y", pads=[1, 1, 1, 1])])
    made.graph.node[0].name = "y"
    return made


@pytest.mark.slow
def test_winograd_or_not(builder: Any) -> None:
    model = float_convolution(builder)
    x = np.random.default_rng(1).normal(0, 1, (1, 32, 12, 12)).astype(np.float32)
    results = {}
    for algorithm in ("direct", "winograd2", "winograd4"):
        module = vdla.compile(model, "cpu", knobs={"y": {"algorithm": algorithm}})
        (results[algorithm],) = module.run(x)
        row = rows(module)["y"]
        assert row["knobs"]["algorithm"] == algorithm and row["chosen_by"] == "user"
        assert ("ahead" in row["knobs"]) == (algorithm != "direct")  # of Winograd's template
    assert results["winograd2"].tobytes() != results["direct"].tobytes()
    np.testing.assert_allclose(results["winograd2"], results["direct"], atol=1e-5)
    np.testing.assert_allclose(results["winograd4"], results["direct"], atol=1e-4)


@pytest.mark.slow
def test_tiles_of_the_processor_keep_the_bits(builder: Any) -> None:
    model = float_convolution(builder)
    x = np.random.default_rng(1).normal(0, 1, (1, 32, 12, 12)).astype(np.float32)
    outputs = set()
    for knobs in ({"width": 1}, {"width": 3}, {"blocks": 1, "width": 5, "outer": "rows"}):
        module = vdla.compile(model, "cpu", knobs={"y": {"algorithm": "direct", **knobs}})
        outputs.add(module.run(x)[0].tobytes())
        assert knobs.items() <= rows(module)["y"]["knobs"].items()
    assert len(outputs) == 1


# ---- what is not legal ---------------------------------------------------------------------------


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"left": {"rows": 3}}, "layer 'left': knob rows: expected one of 1, 2, 4, got 3"),
        ({"left": {"rows": True}}, "layer 'left': knob rows: expected one of 1, 2, 4, got True"),
        ({"left": {"order": "up"}}, "layer 'left': knob order: expected one of .*, got 'up'"),
        ({"left": {"vthreads": 4096}}, "layer 'left': knob vthreads: expected 1 to .*, got 4096"),
        ({"left": {"colour": 1}}, "layer 'left': expected knobs .*, oc_blocks, .*, got 'colour'"),
        ({"links": {"rows": 1}}, r"expected layers with choices \(.*left.*\), got 'links'"),
        ({"stem": {"windows": "odd"}}, "layer 'stem': knob windows: expected one of "),
    ],
)
def test_illegal_knobs_on_the_accelerator(knobs: dict, message: str) -> None:
    with pytest.raises(VdlaError, match=message) as caught:
        vdla.compile(DIGITS, knobs=knobs)
    assert "\n" not in str(caught.value)


def test_knobs_that_do_not_fit_together() -> None:
    """Each knob by itself is legal, but together they need more than the scratchpad has."""
    small = vdla.HwParams(out_depth=32)
    with pytest.raises(VdlaError, match=r"layer 'stem': .*out needs 64 entries of 32"):
        knobs = {"rows": 8, "cols": 8, "vthreads": 1}
        vdla.compile(DIGITS, hw=small, memory="vta", knobs={"stem": knobs})


def test_illegal_knobs_on_the_processor(builder: Any) -> None:
    model = float_convolution(builder)
    with pytest.raises(VdlaError, match="layer 'y': knob algorithm: expected one of \"direct\", "):
        vdla.compile(model, "cpu", knobs={"y": {"algorithm": "fft"}})
    knobs = {"algorithm": "direct", "blocks": 2, "width": 12, "outer": "rows"}
    refused = pytest.raises(VdlaError, match=r"layer 'y': .*2 x 12 sums need 24 registers of 12")
    with on_processor("avx2"), refused:
        vdla.compile(model, "cpu", knobs={"y": knobs})


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "knobs.json: expected JSON"),
        ("[1]", "expected a report of vdla run, or knobs by layer, got list"),
        ('{"left": 3}', "expected a report of vdla run, or knobs by layer, got dict"),
        ('{"left": {"rows": 1.5}}', "layer 'left': knob rows: expected an integer, .*, got 1.5"),
    ],
)
def test_bad_files_of_knobs(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "knobs.json"
    file.write_text(text)
    with pytest.raises(VdlaError, match=message):
        load_knobs(file)


@pytest.mark.parametrize("line", ["{", "[]", '{"target": "cpu"}', '{"target": 1, "cost": "x"}'])
def test_bad_files_of_records(line: str, tmp_path: Path) -> None:
    file = tmp_path / "records"
    file.write_text(f"\n{line}\n")
    with pytest.raises(VdlaError, match="records, line 2: expected a record"):
        Records.load(file)


def test_missing_files(tmp_path: Path) -> None:
    for option in ("knobs", "records"):
        with pytest.raises(FileNotFoundError, match="absent"):
            vdla.compile(DIGITS, **{option: tmp_path / "absent"})


def test_points_are_legal_and_all() -> None:
    space = Space({"a": (1, 2, 3), "b": ("x", "y")}, lambda k: "no" if k["a"] == 2 else "")
    points = list(space.points())
    assert points == [{"a": a, "b": b} for a in (1, 3) for b in ("x", "y")]
    assert all(not space.refuse(point) for point in points)
    assert space.refuse({"a": 2, "b": "x"}) == "no"
    assert space.refuse({"a": 1}) == 'knob b: expected one of "x", "y", got nothing'
