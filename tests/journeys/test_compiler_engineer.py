"""A compiler engineer adds an operator of an ONNX model of theirs, and its schedule, in a plugin:
nothing of the package is changed, and CPU, SimPy and RTL give NumPy's bits.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from vdla.cli import run_app

PLUGIN = Path(__file__).parents[2] / "examples" / "06_plugins" / "own_operator.py"
SHAPE = (1, 16, 12, 12)

pytestmark = pytest.mark.usefixtures("nothing_stays")


def model(path: Path) -> None:
    """``y = Larger(Larger(a, b), b)`` in a domain of the engineer's."""
    types = [helper.make_tensor_value_info(n, TensorProto.INT8, SHAPE) for n in "aby"]
    nodes = [
        helper.make_node("Larger", ["a", "b"], ["m"], "first", domain="example"),
        helper.make_node("Larger", ["m", "b"], ["y"], "second", domain="example"),
    ]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    graph = helper.make_graph(nodes, "larger", types[:2], types[2:])
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), path)


@pytest.mark.more
@pytest.mark.slow
def test_an_operator_and_a_schedule_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "larger.onnx")
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, SHAPE).astype(np.int8) for _ in "ab")
    np.savez("inputs.npz", a=a, b=b)
    # Without the plugin the operator is unknown, and the message names it and its domain.
    assert run_app(["run", "larger.onnx"]) == 2
    assert "operator 'example.Larger' is not supported" in capsys.readouterr().err
    reports = {}
    for target in ("cpu", "sim", "rtl"):
        words = ["run", "larger.onnx", "--target", target, "--input", "inputs.npz", "--explain"]
        files = ["--output", "y.npz", "--json", f"{target}.json", "--plugin", str(PLUGIN)]
        assert run_app([*words, *files]) == 0, capsys.readouterr().err
        np.testing.assert_array_equal(np.load("y.npz")["y"], np.maximum(a, b))
        reports[target] = json.loads(Path(f"{target}.json").read_text())
        assert [row["op"] for row in reports[target]["layers"]] == ["Larger", "Larger"]
        assert reports[target]["plugins"][0]["name"] == "own_operator.py"
    assert reports["sim"]["cycles"] == reports["rtl"]["cycles"] > 0
    assert {row["target"] for row in reports["sim"]["layers"]} == {"accel"}
    # The schedule has knobs, which a file sets, and which cost cycles.
    Path("knobs.json").write_text(json.dumps({"first": {"size": 8, "vthreads": 1}}))
    words = ["run", "larger.onnx", "--knobs", "knobs.json", "--json", "slow.json"]
    assert run_app([*words, "--plugin", str(PLUGIN)]) == 0
    slow = json.loads(Path("slow.json").read_text())
    knobs = slow["layers"][0]["knobs"]
    assert knobs == {"size": 8, "vthreads": 1, "share_sixteenths": knobs["share_sixteenths"]}
    assert slow["layers"][0]["chosen_by"] == "user" and slow["cycles"] > reports["sim"]["cycles"]
    # And a tuner searches them, in a process of its own that has the plugin, too.
    words = ["tune", "larger.onnx", "--trials", "4", "--tuner", "random", "--records", "r.jsonl"]
    assert run_app([*words, "--plugin", str(PLUGIN)]) == 0, capsys.readouterr().err
    assert "larger" in Path("r.jsonl").read_text()
