"""``vdla run --explain``: of every node where it runs, and why not on the accelerator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from vdla.cli import run_app
from vdla.report.report import covered


def _dense(b: Any, x: str, name: str, dtype: type = np.int8) -> str:
    """A dense layer, quantised if its weights are int8; its output."""
    w = b.constant(f"{name}_w", np.eye(4, dtype=dtype))
    if dtype is np.int8:
        w = b.scaled("DequantizeLinear", w, f"{name}_weight", np.float32(0.5), np.array(0, dtype))
    return b.qdq(b.node("Gemm", [x, w], name), 0.2, 1)


@pytest.fixture
def model(builder: Any, tmp_path: Path) -> str:
    """Dense on the accelerator, dense in float, dense on the accelerator again; behind more float
    an addition that could be there too."""
    x = builder.qdq(builder.input("x", [1, 4]), 0.1, 3)
    middle = _dense(builder, _dense(builder, x, "first"), "float[/b]", np.float32)
    path = tmp_path / "m.onnx"
    last = _dense(builder, _dense(builder, middle, "last"), "again[/b]", np.float32)
    onnx.save(builder.model([builder.qdq(builder.node("Add", [last, last], "sum"), 0.2, 1)]), path)
    return str(path)


def _reasons(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    assert run_app(["run", *arguments, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert covered(report["coverage"]) == 0.5
    return {row["name"]: [row["target"], row["reason"]] for row in report["layers"]}


def test_why_not_on_the_accelerator(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    reasons = _reasons([model], capsys)
    assert reasons["first_node"] == ["accel", "matrix product on the tensor core"]
    assert reasons["float[/b]_node"][0] == "cpu"
    assert "not dequantised from int8" in reasons["float[/b]_node"][1]
    assert reasons["last_node"] == reasons["first_node"]
    target, reason = reasons["sum_node"]
    assert target == "cpu" and reason == (
        "too little for a program of its own behind the host; the accelerator could run it:"
        " on the vector unit"
    )
    assert all(reason for _, reason in reasons.values())


def test_the_cpu_takes_every_node(model: str) -> None:
    layers = vdla.compile(model, "cpu").compiled.layers
    assert {layer.target for layer in layers} == {"cpu"}
    reasons = {layer.name: layer.reason for layer in layers}
    assert reasons["first_node"] == "machine code"
    assert "not dequantised from int8" in reasons["float[/b]_node"]


@pytest.mark.slow
def test_the_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line per node; names with brackets come through whole."""
    reasons = _reasons([model], capsys)
    assert run_app(["run", model, "--explain"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("where each node runs") : shown.index("what was chosen")]
    for name, (target, reason) in reasons.items():
        (line,) = (row for row in table.splitlines() if row.startswith(f"│ {name} "))
        assert f" {target} " in line and reason in line
    assert run_app(["run", model]) == 0
    shown = capsys.readouterr().out
    host = sum(target == "cpu" for target, _ in reasons.values())
    assert "where each node runs" not in shown
    assert f"{host} of {len(reasons)} operators (81.8 %) run on the host, with 50.0 % of" in shown


def test_memory_of_every_step(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["run", model, "--explain"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("memory between operators") :]
    assert "step 1, DRAM" in table and "step 2, host" in table


@pytest.mark.slow
def test_what_the_planner_chose_from(capsys: pytest.CaptureFixture[str]) -> None:
    """The choice is one of the legal ones, and the best come in order."""
    digits = Path(__file__).parents[2] / "examples" / "models" / "digits_int8.onnx"
    assert run_app(["run", str(digits), "--explain", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    chosen = {layer["name"]: layer for layer in report["layers"]}
    assert {found["name"] for found in report["alternatives"]} == {
        name for name, layer in chosen.items() if layer["target"] == "accel" and layer["knobs"]
    }
    for found in report["alternatives"]:
        assert 0 < found["legal"] <= found["choices"]
        cycles = [one["cycles"] for one in found["best"]]
        assert cycles == sorted(cycles)
        (choice,) = (one for one in found["best"] if one["chosen"])
        layer = chosen[found["name"]]
        assert choice["knobs"].items() <= layer["knobs"].items()
        assert choice["cycles"] == layer["predicted_cycles"]
