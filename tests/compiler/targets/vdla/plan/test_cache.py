"""Programs in the cache folder: taken where nothing has changed, told apart, made again where
damaged, and never mixed with a user's own code.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
import vdla
from onnx import numpy_helper
from vdla import plugins
from vdla.compiler.choose.records import Record, append
from vdla.compiler.graph.ops.base import Fusion, Op
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.common import cache as kept
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla import target as accelerator
from vdla.compiler.targets.vdla.plan import planner
from vdla.compiler.targets.vdla.plan.cache import Foreign, text_of
from vdla.compiler.tune.task import find_tasks
from vdla.isa.params import NOT_IN_PROGRAMS, PRESETS

from ...damage import DAMAGE

EXAMPLES = Path(__file__).parents[5] / "examples"
DIGITS = EXAMPLES / "models" / "digits_int8.onnx"
X = np.random.default_rng(0).normal(0, 1, (1, 1, 8, 8)).astype(np.float32)


#: Before a fixture of all tests replaces them.
READ, KEEP = kept.read, kept.keep


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that keeps everything."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(kept, "read", READ)
    monkeypatch.setattr(kept, "keep", KEEP)
    monkeypatch.setenv("VDLA_CACHE", str(cache))
    monkeypatch.setenv("VDLA_RECORDS", "")  # empty is as not set
    monkeypatch.setattr(kept, "KEPT_FROM_S", 0.0)
    return cache


def programs(folder: Path) -> set[str]:
    """The kept programs, without the plans that are kept beside them."""
    found = {path.name for path in folder.glob("program_*.bin")}
    return {name for name in found if not name.startswith("program_plan_")}


def without_time(report: dict) -> dict:
    return {name: value for name, value in report.items() if name not in ("wall_s", "host_s")}


@pytest.mark.slow
def test_a_program_is_compiled_once_for_all_places(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vdla.compile(DIGITS)
    first.run(X)
    assert len(programs(folder)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(accelerator, "LinkedPart", lambda *_: pytest.fail("compiled again"))
        again, rtl = vdla.compile(DIGITS), vdla.compile(DIGITS.read_bytes(), target="rtl")
    assert again.program == first.program == rtl.program
    assert again.program.to_bytes() == first.program.to_bytes()
    assert again.compiled.layers == first.compiled.layers
    assert any(layer.knobs for layer in first.compiled.layers)
    again.run(X)
    assert json.dumps(without_time(again.report)) == json.dumps(without_time(first.report))
    assert again.trace == first.trace
    for module, name in ((first, "first"), (again, "again")):
        module.save(tmp_path / name)
    names = {path.name for path in (tmp_path / "first").iterdir()}
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("knob", NOT_IN_PROGRAMS)
def test_knobs_of_cycles_alone_share_a_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, knob: str
) -> None:
    usual = replace(vdla.HwParams(), acc_depth=1024)
    other = replace(usual, **{knob: 1})
    with monkeypatch.context() as patch:
        patch.setattr(accelerator, "NOT_IN_PROGRAMS", ())
        own = vdla.compile(DIGITS, hw=other)
    first = vdla.compile(DIGITS, hw=usual)
    before = programs(folder)
    shared = vdla.compile(DIGITS, hw=other)
    assert programs(folder) == before and len(before) == 2
    assert shared.program.params == other != first.program.params
    assert shared.program.to_bytes() == own.program.to_bytes()
    assert shared.compiled.layers == own.compiled.layers
    shared.run(X)
    own.run(X)
    assert shared.report["cycles"] == own.report["cycles"]


@pytest.mark.slow
def test_a_program_is_planned_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one configuration, and the same choices of single layers."""
    windows = vdla.HwParams(vector_window=3)
    first = vdla.compile(DIGITS, hw=windows)
    searched = Mock(wraps=planner.find_plan)
    monkeypatch.setattr(planner, "find_plan", searched)
    again = vdla.compile(DIGITS, hw=windows)
    assert not searched.called and again.program.to_bytes() == first.program.to_bytes()
    shared = [x.name for x in first.compiled.layers if "share_sixteenths" in (x.knobs or {})]
    vdla.compile(DIGITS, hw=replace(windows, tmp_depth=512))
    vdla.compile(DIGITS, hw=windows, knobs={shared[0]: {"share_sixteenths": 4}})
    assert searched.call_count == 2


@pytest.mark.slow
def test_a_program_whose_layers_have_choices_before_it(folder: Path) -> None:
    """The host packs the windows of a first convolution: a choice that is made before the part is
    compiled, and stands beside the part's own choices.
    """
    model = vdla.compile(DIGITS).compiled
    report = {layer.name: dict(layer.knobs) for layer in model.layers if layer.knobs}
    fixed = vdla.compile(DIGITS, knobs=report).compiled
    again = vdla.compile(DIGITS, knobs=report).compiled
    assert {layer.chosen_by for layer in fixed.layers if layer.knobs} == {"user"}
    assert again.layers == fixed.layers and again.programs == fixed.programs
    assert len(programs(folder)) == 2


@pytest.mark.slow
def test_wrong_knobs_are_refused_also_where_the_program_is_kept() -> None:
    for _ in range(2):
        with pytest.raises(vdla.VdlaError, match=r"expected layers with choices .*, got 'nobody'"):
            vdla.compile(DIGITS, knobs={"nobody": {"rows": 1}})


@pytest.mark.slow
def test_whatever_changes_a_program_has_a_file_of_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, names, configuration, memory, threads, knobs, records, the compiler's source."""
    model = onnx.load_model(DIGITS)
    weight = next(t for t in model.graph.initializer if len(t.dims) == 4)
    values = numpy_helper.to_array(weight).copy()
    values.flat[values.size // 2] ^= 1
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    place = [t.name for t in changed.graph.initializer].index(weight.name)
    changed.graph.initializer[place].CopyFrom(numpy_helper.from_array(values, weight.name))
    renamed = onnx.ModelProto.FromString(model.SerializeToString())
    next(n for n in renamed.graph.node if n.op_type == "Conv").name += "_renamed"

    compiled = vdla.compile(DIGITS).compiled
    layer = next(layer for layer in compiled.layers if layer.knobs.get("vthreads") == 2)
    target = find_target("sim", Options(vdla.HwParams.load("16x16"), vdla.MemoryParams.load("vta")))
    task = next(task for task in find_tasks(str(DIGITS), target) if layer.name in task.layers)
    # Other choices of a layer have records of their own.
    mine = {name: value for name, value in layer.knobs.items() if name in task.space.knobs}
    other = {**mine, "vthreads": 1}
    records = tmp_path / "records.jsonl"
    append(records, [Record(task.key, other, 5.0)])
    variants = [
        lambda: vdla.compile(changed),
        lambda: vdla.compile(renamed),
        lambda: vdla.compile(DIGITS, hw=replace(PRESETS["16x16"], acc_depth=1024)),
        lambda: vdla.compile(DIGITS, memory="slow"),
        lambda: vdla.compile(DIGITS, vthreads=1),
        lambda: vdla.compile(DIGITS, knobs={layer.name: {"vthreads": 1}}),
        lambda: vdla.compile(DIGITS, records=records),
    ]
    for count, compile_variant in enumerate(variants, 2):
        module = compile_variant()
        assert len(programs(folder)) == count
    assert "record" in {layer.chosen_by for layer in module.compiled.layers}

    # Records of other machines change nothing.
    before = programs(folder)
    append(records, [Record(task.key._replace(machine="another"), other, 1.0)])
    vdla.compile(DIGITS, records=records)
    assert programs(folder) == before
    append(records, [Record(task.key, mine, 1.0)])
    vdla.compile(DIGITS, records=records)
    assert len(programs(folder)) == len(before) + 1
    monkeypatch.setattr(kept, "source_digest", lambda *rooms: "another")
    vdla.compile(DIGITS)
    assert len(programs(folder)) == len(before) + 2


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_compiled_again(folder: Path, damage: str) -> None:
    expected = vdla.compile(DIGITS).program
    (path,) = (folder / name for name in programs(folder))
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    assert vdla.compile(DIGITS).program == expected
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_short_compilations_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_FROM_S", 1000.0)
    vdla.compile(DIGITS)
    assert not programs(folder)


@pytest.mark.slow
def test_dumps_show_the_compiler_at_work(folder: Path, tmp_path: Path) -> None:
    """They are the same whether the program is kept or not."""
    dumps = []
    for number in range(2):
        place = tmp_path / f"ir{number}"
        vdla.compile(DIGITS, dump_ir=place)
        vdla.compile(DIGITS)
        dumps.append({path.name: path.read_bytes() for path in place.iterdir()})
    assert len(programs(folder)) == 1
    assert dumps[0] == dumps[1] and any(name.endswith("_insns.txt") for name in dumps[0])


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_stays")
def test_a_plugin_keeps_nothing_and_takes_nothing(folder: Path, tmp_path: Path) -> None:
    """What a plugin depends on cannot be seen: here on a number that changes."""
    vdla.compile(DIGITS)
    before = programs(folder)
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    plugins.load(plugin)
    layers = [vdla.compile(DIGITS).compiled.layers for _ in range(2)]
    assert [{layer.reason for layer in found} >= {f"number {n}"} for n, found in enumerate(layers)]
    assert programs(folder) == before
    plugins.loaded()[0].additions.take_back()
    (path,) = (folder / name for name in before)
    read_ns = path.stat().st_mtime_ns
    os.utime(path, ns=(0, 0))
    assert "number" not in repr(vdla.compile(DIGITS).compiled.layers)
    assert path.stat().st_mtime_ns >= read_ns  # it was taken again


PLUGIN = """
from vdla.compiler.choose.space import Refusal
from vdla.compiler.targets.registry import register_template
from vdla.compiler.targets.vdla.templates.convolution import Products

numbers = iter(range(100))

class Mine(Products):
    name = "mine"

    def takes(self, graph, node):
        return f"number {next(numbers)}"

register_template(Mine)
"""


@dataclass(frozen=True)
class Mine(Op):
    """An operator that no plugin has registered."""

    fusion = Fusion.ELEMENTWISE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (0.0, -0.0), ("1", 1), (None, "None"), (("a", "b"), ("a,b",)),
        ((1, (2, 3)), ((1, 2), 3)), ({"a": 1}, {"a": 2}),
        (vdla.HwParams(), replace(vdla.HwParams(), acc_depth=64)),
        (np.zeros(2, np.int8), np.zeros(2, np.uint8)), (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))),
        (Fusion.ALIAS, Fusion.OPAQUE),
    ],
)  # fmt: skip
def test_texts_tell_values_apart(one: object, other: object) -> None:
    assert text_of(one) != text_of(other)


@pytest.mark.parametrize("value", [Mine(), [Mine], {"x": object()}, np.array([object()]), len])
def test_classes_of_others_have_no_text(value: object) -> None:
    with pytest.raises(Foreign):
        text_of(value)
