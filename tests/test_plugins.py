"""Plugins: what they add takes part everywhere, and a wrong one is one line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla import plugins
from vdla.cli import run_app
from vdla.compiler.choose.template import Template
from vdla.compiler.graph.passes import GRAPH_PASSES, register_pass
from vdla.compiler.targets.registry import register_template, target_names
from vdla.hw.boards import find_board
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams
from vdla.isa.vector_ops import BY_NAME, VectorOp, register_vector_op, semantics

EXAMPLES = Path(__file__).parents[1] / "examples"
PLUGINS = EXAMPLES / "06_plugins"
DIGITS = EXAMPLES / "models" / "digits_int8.onnx"
TARGET = "from vdla.compiler.targets.registry import register_target\n"

pytestmark = pytest.mark.usefixtures("nothing_stays")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# ---- what a plugin adds --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_report_names_plugins_and_their_hashes(tmp_path: Path) -> None:
    plugin, report = PLUGINS / "own_target.py", tmp_path / "r.json"
    command = ["run", str(DIGITS), "--target", "products", "--plugin", str(plugin)]
    assert run_app([*command, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["plugins"] == [{"name": "own_target.py", "sha256": sha256(plugin)}]
    assert run_app(["config", "--json", str(report)]) == 0


def test_what_was_added_can_be_taken_back() -> None:
    names, passes = target_names(), list(GRAPH_PASSES)
    before = HwParams().hash, semantics()
    for file in sorted(PLUGINS.glob("own_*.py")):
        assert plugins.load(file).additions.names, file
    assert "products" in target_names() and "absdiff" in BY_NAME
    assert find_board("slow-ulx3s").freq_mhz == 12.5
    found = [p.__name__ for p in GRAPH_PASSES]
    assert found.index("drop_double_negations") == found.index("drop_identities") - 1
    assert HwParams().hash != before[0] and semantics() != before[1]
    for plugin in plugins.loaded():
        plugin.additions.take_back()
    assert (target_names(), list(GRAPH_PASSES)) == (names, passes)
    assert (HwParams().hash, semantics()) == before
    with pytest.raises(VdlaError, match="board: expected one of"):
        find_board("slow-ulx3s")


def test_a_changed_file_is_loaded_again(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", f"{TARGET}register_target('one', None)\n")
    first = plugins.load(path)
    assert plugins.load(path) is first and first.additions.names == ["target one"]
    written(path, f"{TARGET}register_target('two', None)\n")
    assert plugins.load(path).additions.names == ["target two"]
    assert "two" in target_names() and "one" not in target_names()
    assert [plugin.name for plugin in plugins.loaded()] == ["mine.py"]


@pytest.mark.slow
def test_equal_code_on_the_cpu_has_equal_results_with_another_template() -> None:
    image = np.random.default_rng(0).uniform(0, 16, (1, 1, 8, 8)).astype(np.float32)
    expected = vdla.compile(DIGITS, "cpu").run(image)
    plugins.load(PLUGINS / "own_template.py")
    module = vdla.compile(DIGITS, "cpu", knobs={"dense": {"together": 8}})
    np.testing.assert_array_equal(module.run(image), expected)
    (dense,) = (row for row in module.report["layers"] if row["name"] == "dense")
    assert dense["knobs"] == {"together": 8}
    assert module.report["plugins"][0]["name"] == "own_template.py"


def run_python(code: str, **variables: str) -> str:
    """What a Python process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=os.environ | variables,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_environment_and_entry_points_name_plugins(tmp_path: Path) -> None:
    """The plugins of VDLA_PLUGINS, and those of installed packages."""
    written(tmp_path / "their_plugin.py", f"{TARGET}register_target('theirs', None)\n")
    package = tmp_path / "their_package-1.0.dist-info"
    package.mkdir()
    written(package / "METADATA", "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    written(package / "entry_points.txt", "[vdla.plugins]\ntheirs = their_plugin\n")
    code = (
        "from vdla import plugins; plugins.load_known(); plugins.load_known()\n"
        "from vdla.compiler.targets.registry import target_names\n"
        "print([p.name for p in plugins.loaded()], target_names()[-2:])"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    found = run_python(code, PYTHONPATH=path, VDLA_PLUGINS=str(PLUGINS / "own_target.py"))
    assert found == "['theirs', 'own_target.py'] ['theirs', 'products']\n"


@pytest.mark.more
@pytest.mark.slow
def test_processes_that_a_command_starts_have_its_plugins(tmp_path: Path, capsys) -> None:
    """Trials of a tuner run in a sandbox; the simulator of cocotb is a process of its own."""
    vector_op, program = str(PLUGINS / "own_vector_op.py"), tmp_path / "absdiff.vdla"
    source = str(PLUGINS / "absdiff.asm")
    assembled = run_app(["asm", source, "--hw", "4x4", "-o", str(program), "--plugin", vector_op])
    assert assembled == 0
    command = ["cosim", str(program), "--hw", "4x4", "--plugin", vector_op]
    assert run_app(command) == 0, capsys.readouterr().err
    assert run_app(
        ["tune", str(DIGITS), "--trials", "2", "--tuner", "random", "--target", "sim",
         "--records", str(tmp_path / "r.jsonl"), "--plugin", str(PLUGINS / "own_pass.py")]
    ) == 0, capsys.readouterr().err  # fmt: skip


# ---- wrong ones ----------------------------------------------------------------------------------

WRONG = {
    "raises": ("x = 1\n1 / 0\n", "got ZeroDivisionError in line 2 of wrong.py: division by zero"),
    "is no Python": ("def (:\n", "got SyntaxError: invalid syntax (wrong.py, line 1)"),
    "ends Python": ("import sys\nsys.exit(0)\n", "got SystemExit in line 2 of wrong.py: 0"),
    "imports what is not there": ("import no_such\n", "No module named 'no_such'"),
    "is no text": ("\0", "source code string cannot contain null bytes"),
    "has a taken target": (
        f"{TARGET}register_target('mine', None)\nregister_target('cpu', None)\n",
        "target: expected a name that is not taken, got 'cpu', which is",
    ),
    "registers twice": (
        f"{TARGET}register_target('mine', None)\nregister_target('mine', None)\n",
        "target: expected a name that is not taken, got 'mine', which is",
    ),
    "has a taken operator": (
        "from vdla.compiler.frontends.onnx.importer import register_reader\n"
        "register_reader('', 'Conv', None)\n",
        "ONNX operator: expected a name that is not taken, got 'Conv', which is",
    ),
    "has a taken board": (
        "from vdla.hw.boards import find_board, register_board\n"
        "register_board(find_board('ulx3s-bram'))\n",
        "board: expected a name that is not taken, got 'ulx3s-bram', which is",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_plugin_is_one_line(kind: str, tmp_path: Path, capsys) -> None:
    text, expected = WRONG[kind]
    path, names = written(tmp_path / "wrong.py", text), target_names()
    assert run_app(["config", "--plugin", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and err.startswith(f"vdla: plugin {path}: ")
    assert expected in err
    assert target_names() == names and not plugins.loaded()


OF_PASSES = "from vdla.compiler.graph.passes import register_pass\n"
FAULTY = {
    "an operator calls what the kit lacks": (
        "from vdla.isa.vector_ops import VectorOp, register_vector_op\n"
        "register_vector_op(VectorOp('odd', 9, '', lambda k, a, b: k.sqrt(a)))\n",
        "plugin: expected code that runs, got AttributeError in line 2 of faulty.py: "
        "'LlvmKit' object has no attribute 'sqrt'",
    ),
    "a pass returns nothing": (
        f"{OF_PASSES}def forgets(graph): pass\nregister_pass(forgets)\n",
        "pass forgets: expected a Graph, got None",
    ),
    "a pass breaks the graph": (
        f"{OF_PASSES}from dataclasses import replace\n"
        "def breaks(graph): return replace(graph, nodes=graph.nodes[1:])\nregister_pass(breaks)\n",
        "pass breaks: node 'dense': input 'dense.bias' is not defined before it",
    ),
    "a pass raises": (
        f"{OF_PASSES}def raises(graph): return graph.nods\nregister_pass(raises)\n",
        "plugin: expected code that runs, got AttributeError in line 2 of faulty.py: "
        "'Graph' object has no attribute 'nods'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTY)
def test_a_fault_of_a_plugin_that_runs_is_one_line(kind: str, tmp_path: Path, capsys) -> None:
    text, expected = FAULTY[kind]
    path = written(tmp_path / "faulty.py", text)
    assert run_app(["run", str(DIGITS), "--hw", "4x4", "--plugin", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"vdla: {expected}\n")


def test_a_missing_plugin_is_one_line(tmp_path: Path, capsys) -> None:
    with pytest.raises(VdlaError, match=r"plugin .*none.py: expected a Python file: No such file"):
        plugins.load(tmp_path / "none.py")
    assert run_app(["config", "--plugin", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_cannot_be_registered() -> None:
    taken = BY_NAME["add"]
    with pytest.raises(VdlaError, match=r"vector operator: expected a name .* got 'add'"):
        register_vector_op(taken)
    for code in (2, 16, -1):
        with pytest.raises(VdlaError, match=r"expected a code that is not taken \(9, 10"):
            register_vector_op(VectorOp("mine", code, "", taken.first))
    with pytest.raises(VdlaError, match=r"graph pass: .* got 'dead_code'"):
        register_pass(GRAPH_PASSES[-2])
    with pytest.raises(VdlaError, match=r"before one of fold_constants, .* got 'nothing'"):
        register_pass(lambda graph: graph, before="nothing")
    with pytest.raises(VdlaError, match="expected a subclass of one of AcceleratorTemplate"):
        register_template(Template)
