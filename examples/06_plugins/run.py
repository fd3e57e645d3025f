"""Every kind of plugin: a file that adds to VDLA what it lacks, without a change to VDLA.

    python examples/06_plugins/run.py [--no-rtl]

Each command line is one that a user would type. The exit code is 1 if a result is not what NumPy
gives.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from vdla.cli import run_app

HERE = Path(__file__).parent
DIGITS = HERE.parent / "models" / "digits_int8.onnx"


def command(*words: object) -> dict:
    """Run ``vdla`` in this process with a plugin, show the command line, return its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = [*map(str, words), "--json", str(report)]
        print("\n> vdla", *map(str, words), flush=True)
        if run_app(arguments):
            sys.exit("the command failed")
        return json.loads(report.read_text())


def larger_model(path: Path) -> Path:
    """``y = Larger(a, b)`` of int8 images of 32 channels, an operator that VDLA does not have."""
    types = [helper.make_tensor_value_info(n, TensorProto.INT8, [1, 32, 24, 24]) for n in "aby"]
    node = helper.make_node("Larger", ["a", "b"], ["y"], "larger", domain="example")
    graph = helper.make_graph([node], "larger", types[:2], types[2:])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), path)
    return path


def negations_model(path: Path) -> Path:
    """``y = -(-x)``."""
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in "xy"]
    nodes = [helper.make_node("Neg", [a], [b], b) for a, b in ("xm", "my")]
    graph = helper.make_graph(nodes, "negations", types[:1], types[1:])
    domains = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), path)
    return path


def operator(work: Path, targets: tuple[str, ...]) -> None:
    """An operator of one's own on every target."""
    model, plugin = larger_model(work / "larger.onnx"), HERE / "own_operator.py"
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (1, 32, 24, 24)).astype(np.int8) for _ in "ab")
    np.savez(work / "inputs.npz", a=a, b=b)
    (work / "knobs.json").write_text(json.dumps({"larger": {"size": 64}}))
    for target in targets:
        words = ["run", model, "--target", target, "--input", work / "inputs.npz"]
        knobs = ["--knobs", work / "knobs.json"] if target != "cpu" else []
        command(*words, *knobs, "--output", work / "y.npz", "--plugin", plugin)
        found = np.load(work / "y.npz")["y"]
        print(f"{target}: equal to NumPy: {np.array_equal(found, np.maximum(a, b))}")


def main() -> int:
    """Run a command for each kind of plugin."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-rtl", action="store_true", help="leave out the RTL (no Verilator)")
    rtl = not parser.parse_args().no_rtl
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        operator(work, ("cpu", "sim", *(["rtl"] if rtl else [])))
        negations = negations_model(work / "negations.onnx")
        found = command("run", negations, "--target", "cpu", "--plugin", HERE / "own_pass.py")
        print("operators after the pass:", [row["op"] for row in found["layers"]])
        template = HERE / "own_template.py"
        found = command("run", DIGITS, "--target", "cpu", "--explain", "--plugin", template)
        (dense,) = (row for row in found["layers"] if row["op"] == "QDense")
        print("chosen by the template:", dense["knobs"])
        found = command("run", DIGITS, "--target", "products", "--plugin", HERE / "own_target.py")
        print("on the accelerator:", {r["op"] for r in found["layers"] if r["target"] == "accel"})
        vector_op, program = HERE / "own_vector_op.py", work / "absdiff.vdla"
        command("asm", HERE / "absdiff.asm", "--hw", "4x4", "-o", program, "--plugin", vector_op)
        command("disasm", program, "--plugin", vector_op)
        if rtl:
            words = ("verify", "--hw", "4x4", "--programs", 10, "--plugin", vector_op)
            found = command(*words)
            differ = found["byte_mismatches"], found["cycle_mismatches"]
            print(f"{found['programs']} programs differ in bytes, cycles: {differ}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
