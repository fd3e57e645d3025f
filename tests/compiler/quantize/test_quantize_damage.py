"""Damage of single nodes, and nodes that stay float for it."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla import VdlaError
from vdla.cli import run_app
from vdla.compiler.quantize.calibrate import Probe, calibrate
from vdla.compiler.quantize.damage import Damage, measured, without
from vdla.compiler.quantize.draft import Draft
from vdla.compiler.quantize.flow import _Job
from vdla.compiler.quantize.plan import MOVES, plan
from vdla.compiler.quantize.prepare import prepare

from .peers import peer
from .test_quantize_tokens import encoder, positioned

MODELS = Path(__file__).parents[3] / "examples" / "models"


def with_a_large_channel() -> onnx.ModelProto:
    """Three convolutions; between the last two, one of four channels has values a thousand times as
    large as the others, and counts as much as they do."""
    rng = np.random.default_rng(4)
    weights = {n: rng.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32) for n in "abc"}
    weights["b"][0] *= 1000
    weights["c"][:, 0] /= 1000
    nodes = [
        helper.make_node("Conv", [x, f"w{y}"], [y], y) for x, y in (("x", "a"), ("a", "b"))
    ] + [helper.make_node("Conv", ["b", "wc"], ["c"], "c")]
    stored = [numpy_helper.from_array(value, f"w{name}") for name, value in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 3, 3])
    y = helper.make_tensor_value_info("c", TensorProto.FLOAT, ["N", 4, 3, 3])
    graph = helper.make_graph(nodes, "test", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((32, 4, 3, 3)).astype(np.float32)


def sqnr_db(real: np.ndarray, made: np.ndarray) -> float:
    return 10 * float(np.log10(np.square(real).sum() / np.square(real - made).sum()))


@pytest.mark.slow
def test_the_harmful_nodes_stay_float() -> None:
    model, x = with_a_large_channel(), images()
    plain = vdla.quantize(model, x)
    made = vdla.quantize(model, x, least_sqnr=30.0)
    assert sqnr_db(peer(model, x=x), peer(plain.model, x=x)) < 10
    assert sqnr_db(peer(model, x=x), peer(made.model, x=x)) >= 29.9
    rows = {row["name"]: row for row in made.report["layers"]}
    assert {name: row["type"] for name, row in rows.items()} == {
        "a": "int8", "b": "float32", "c": "float32",
    }  # fmt: skip
    assert rows["b"]["reason"].startswith("excluded: alone on integers it leaves the answers")
    assert rows["a"]["alone_db"] > 35 > 10 > max(rows["b"]["alone_db"], rows["c"]["alone_db"])
    assert made.report["least_sqnr_db"] == 30


@pytest.mark.slow
def test_without_measured_errors() -> None:
    """The same model, and nothing in the report that takes a run of it."""
    model, x = with_a_large_channel(), images()
    plain, made = vdla.quantize(model, x), vdla.quantize(model, x, measures_error=False)
    assert made.model == plain.model
    assert made.report["outputs"] == {} and made.report["top1_agreement"] is None
    assert [row["sqnr_db"] for row in made.report["layers"]] == [None] * 3
    assert [row["scale"] for row in made.report["layers"]] == [
        row["scale"] for row in plain.report["layers"]
    ]
    with pytest.raises(vdla.VdlaError, match="measures_error: expected True with a least SQNR"):
        vdla.quantize(model, x, least_sqnr=20.0, measures_error=False)


@pytest.mark.more
def test_nothing_stays_float_without_need() -> None:
    """The same bits as without a limit, where the limit is met anyway."""
    x = np.load(MODELS / "digits_test.npz")["x"][:32]
    plain = vdla.quantize(MODELS / "digits_float.onnx", x)
    made = vdla.quantize(MODELS / "digits_float.onnx", x, least_sqnr=20.0)
    assert made.model.SerializeToString() == plain.model.SerializeToString()
    assert all(row["alone_db"] is None for row in plain.report["layers"])
    found = [row["alone_db"] for row in made.report["layers"] if row["op"] not in MOVES]
    assert min(found) > 20 and len(found) >= 5


@pytest.mark.more
@pytest.mark.parametrize(
    ("model", "bias_correction"),
    [(encoder(), False), (encoder(), True), (positioned(1, 16, 32), False)],
    ids=["encoder", "encoder, biases corrected", "positions"],
)
def test_gates_are_the_quantised_model(model: onnx.ModelProto, bias_correction: bool) -> None:
    """All gates open, and those of a plan with nodes left out: the noise of the QDQ models."""
    (_, *shape) = (d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    x = np.random.default_rng(6).standard_normal((4, *shape)).astype(np.float32)
    draft = Draft.load(model)
    prepare(draft)
    made = plan(draft)
    stored = tuple(made.groups)
    samples = {"x": x}
    probe = Probe(draft, samples, stored, tuple(draft.outputs))
    job = _Job(draft, calibrate(probe, "minmax", 99.9, set(), _nothing), probe, bias_correction)
    damage = Damage.of(draft, made, *job.numbers(made, _nothing), samples)
    assert damage.sqnr_db(set()) == float("inf")
    alone = damage.alone(_nothing)
    assert {*alone} == {*measured(draft, made)}
    for number in (0, 3):
        worst = sorted(alone, key=lambda head: alone[head])[:number]
        chosen = without(draft, made, alone, worst)
        heads = {i for i, reason in enumerate(chosen.reasons) if not reason}
        assert damage.sqnr_db(heads) == pytest.approx(job.build(chosen, _nothing).sqnr_db, abs=0.3)
    assert damage.sqnr_db({*alone}) < min(alone.values())


@pytest.mark.slow
def test_only_what_must_stays_float() -> None:
    """With any one of the chosen nodes on integers the limit is missed."""
    x = np.load(MODELS / "digits_test.npz")["x"][:8]
    draft = Draft.load(MODELS / "digits_float.onnx")
    prepare(draft)
    made, samples = plan(draft), {"image": x}
    stored = tuple(made.groups)
    probe = Probe(draft, samples, stored)
    job = _Job(draft, calibrate(probe, "minmax", 99.9, set(), _nothing), probe, False)
    damage = Damage.of(draft, made, *job.numbers(made, _nothing), samples)
    alone = damage.alone(_nothing)
    for limit in (36.0, 38.0, 41.0):
        found = damage.chosen(alone, limit)
        assert 0 < len(found) < len(alone)
        assert _open(damage, alone, found) >= limit
        assert all(_open(damage, alone, {*found} - {head}) < limit for head in found)


def _open(damage: Damage, alone: dict[int, float], heads: Collection[int]) -> float:
    kept = without(damage.draft, damage.plan, alone, heads)
    return damage.sqnr_db({i for i, reason in enumerate(kept.reasons) if not reason})


def _nothing() -> None:
    """Progress that nobody looks at."""


def test_more_is_asked_for_than_integers_have() -> None:
    with pytest.raises(VdlaError, match=r"expected a limit that some node on integers reaches, got"
                       r" 120 dB, and the best one alone has \d\d\.\d dB"):  # fmt: skip
        vdla.quantize(with_a_large_channel(), images(), least_sqnr=120.0)
    for limit in (-1.0, float("nan"), 1000.0):
        with pytest.raises(VdlaError, match="expected 0 to 150 dB"):
            vdla.quantize(with_a_large_channel(), images(), least_sqnr=limit)


@pytest.mark.slow
def test_the_command_shows_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(with_a_large_channel(), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=images())
    command = ["quantize", str(tmp_path / "model.onnx"), "--samples", str(tmp_path / "x.npz")]
    assert run_app([*command, "--least-sqnr", "30", "--json", str(tmp_path / "r.json")]) == 0
    text = capsys.readouterr().out
    assert "alone dB" in text and "1 nodes in int8, 2 in float" in text
    rows = json.loads((tmp_path / "r.json").read_text())["layers"]
    assert [row["type"] for row in rows] == ["int8", "float32", "float32"]
    assert run_app(command) == 0
    assert "alone dB" not in capsys.readouterr().out
