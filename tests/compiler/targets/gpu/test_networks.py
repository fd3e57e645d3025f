"""Whole networks as kernels: CUDA text emulated, OpenCL text by pocl, against the CPU target.

Integers are equal to the bit. Floats are equal to the bit where the same loops, with the same
products fused, run as machine code; against the CPU target's own loops, which add in another order,
they are close.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.cli import run_app
from vdla.cli.arrays import model_inputs
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.dumps import Dumps
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.graph_code import GraphKernels, fuse
from vdla.compiler.targets.gpu.kernels import lower_kernels
from vdla.compiler.targets.gpu.lowering import template_of, templates_of
from vdla.compiler.te.expr import Call, walk
from vdla.compiler.te.stage import is_thread_axis
from vdla.compiler.tir.ir import For, PrimFunc, Stmt, Store, map_stmt, walk_stmt
from vdla.runtime.gpu.emulated import ORDERS, EmulatedSession
from vdla.runtime.gpu.program import KernelProgram

from ...workloads import in_main_memory
from .networks import NETWORKS

DIGITS = Path(__file__).parents[4] / "examples" / "models" / "digits_int8.onnx"
#: How far a result may be from the CPU target's, which sums in another order.
FLOAT_RTOL, FLOAT_ATOL = 1e-5, 1e-6
#: Those that end in floats made by exp or tanh, of which ours are not the C library's.
ENDS_IN_FLOAT = {"dcgan": 5e-7, "lstm": 0.0}


def outputs(model: bytes | Path, target: str) -> list[np.ndarray]:
    module = vdla.compile(model, target, emulate=target == "cuda")
    return module.run(*model_inputs(module, None, 0))


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"), [("digits", "cuda"), ("digits", "opencl"), *((n, "cuda") for n in NETWORKS)]
)
def test_int8_is_equal_to_the_cpu(name: str, target: str) -> None:
    if target == "opencl":
        pytest.importorskip("pyopencl")
    model = DIGITS if name == "digits" else NETWORKS[name](True).SerializeToString()
    for got, wanted in zip(outputs(model, target), outputs(model, "cpu"), strict=True):
        if name in ENDS_IN_FLOAT:
            np.testing.assert_allclose(got, wanted, rtol=0, atol=ENDS_IN_FLOAT[name])
        else:
            np.testing.assert_array_equal(got, wanted)
        assert np.ptp(got) > 0


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("dqn", "lstm") else pytest.mark.sweep) for n in NETWORKS],
)
def test_floats_are_the_same_in_both_languages_and_near_the_cpu(name: str) -> None:
    pytest.importorskip("pyopencl")
    model = NETWORKS[name](False).SerializeToString()
    made = {target: outputs(model, target) for target in ("cuda", "opencl", "cpu")}
    for a, b, wanted in zip(*made.values(), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, wanted, rtol=FLOAT_RTOL, atol=FLOAT_ATOL)


class Loops:
    """Runs the loop programs of a graph's kernels, as they were before they became kernels, as
    machine code of the processor."""

    def __init__(self, found: GraphKernels):
        self.found = found

    def run(self, program: KernelProgram, arrays: list[np.ndarray]) -> list[np.ndarray]:
        graph, values = self.found.graph, dict(self.found.memory.constants)
        values |= dict(zip(graph.inputs, arrays, strict=True))
        for made, names, position in self.found.calls:
            node = graph.nodes[position]
            template = template_of(graph, node, self.found.templates)
            choice = self.found.chooser.choose(template, template.workload(graph, node), node.name)
            scheduled = template.schedule(graph, node, choice.knobs)
            func = lower_kernels(scheduled.schedule, scheduled.args, node.name)
            assert not _calls(func)
            given = [values[names[b]] for b in made.lowered.func.params[:-1]]
            inputs = [
                np.ascontiguousarray(v).reshape(b.shape)
                for v, b in zip(given, func.params[:-1], strict=True)
            ]
            result = np.zeros(func.params[-1].shape, func.params[-1].dtype)
            compile_func(in_main_memory(serial(func)))(*inputs, result)
            values[node.output] = result
        return [values[name].reshape(graph[name].shape) for name in graph.outputs]


def serial(func: PrimFunc) -> PrimFunc:
    """The program with serial loops in place of threads."""

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or not is_thread_axis(stmt.kind):
            return None
        body = map_stmt(stmt.body, lambda expr: expr, on_stmt=on_stmt)
        return replace(stmt, kind="serial", body=body)

    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt))


def _calls(func: PrimFunc) -> bool:
    stores = [s for s in walk_stmt(func.body) if isinstance(s, Store)]
    return any(isinstance(n, Call) and n.name in ("exp", "tanh") for s in stores
               for n in walk(s.value))  # fmt: skip


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "mobilenet", "dqn"])
def test_floats_are_those_of_the_same_loops_on_the_cpu(name: str) -> None:
    graph = run_passes(load_graph(NETWORKS[name](False).SerializeToString()))
    chooser = Chooser("cuda", CUDA.name)
    found = GraphKernels(
        fuse(graph, templates_of(CUDA)), CUDA, templates_of(CUDA), chooser, Dumps()
    )
    program = found.program("emulated")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=t.shape).astype(t.dtype) for t in program.inputs]
    expected = Loops(found).run(program, arrays)
    for order in ORDERS:
        ordered = replace(program, open=lambda p, order=order: EmulatedSession(p, order))
        for got, wanted in zip(ordered.run(*arrays), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_step_of_an_lstm_is_four_kernels() -> None:
    """Two products, of which one adds the other; the cell and the output, which read their gates in
    place."""
    module = vdla.compile(NETWORKS["lstm"](False).SerializeToString(), "cuda", emulate=True)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    assert len(step.calls) == 2 + 4  # the token's row, and the words at the end
    ops = [layer.op for layer in module.compiled.layers]
    assert ops.count("Slice") == 4  # as the model has them
    layers = {layer.name: layer for layer in module.compiled.layers}
    assert sum(bool(layers[n].kernels) for n in layers if layers[n].op == "Slice") == 0


@pytest.mark.more
def test_knobs_are_open_and_checked() -> None:
    tiles = {"rows": 16, "columns": 16, "warp_rows": 16, "warp_columns": 8}
    knobs = {"dense": tiles | {"depth": 32, "stages": 2}}
    module = vdla.compile(DIGITS, "cuda", knobs=knobs, emulate=True)
    layers = {layer.name: layer for layer in module.compiled.layers}
    assert layers["dense"].chosen_by == "user"
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    call = next(c for c in step.calls if "dense" in c.kernel)
    assert call.block == (32, 2, 1)  # two warps side by side
    with pytest.raises(vdla.VdlaError, match="layer 'dense': knob depth: expected one of"):
        vdla.compile(DIGITS, "cuda", knobs={"dense": {"depth": 5}}, emulate=True)


@pytest.mark.slow
def test_a_saved_module_runs_and_has_its_text(tmp_path: Path) -> None:
    module = vdla.compile(DIGITS, "cuda", emulate=True)
    arrays = model_inputs(module, None, 3)
    expected = module.run(*arrays)
    module.save(tmp_path / "digits")
    text = (tmp_path / "digits" / "model.cu").read_text()
    assert "k1_stem_out" in text and "#include" not in text
    for got, wanted in zip(vdla.load(tmp_path / "digits").run(*arrays), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_only_cuda_is_emulated() -> None:
    with pytest.raises(vdla.VdlaError, match="emulate: expected target 'cuda' with it, got 'cpu'"):
        vdla.compile(DIGITS, "cpu", emulate=True)


@pytest.mark.more
def test_reports_say_what_each_kernel_moves(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", str(DIGITS), "--target", "cuda", "--emulate", "--explain", "--json", "-"]
    assert run_app(command) == 0
    layers = {row["name"]: row for row in json.loads(capsys.readouterr().out)["layers"]}
    (added,) = layers["sum"]["kernels"]
    size = 24 * 4 * 4  # of both operands and the sum
    assert (added["bytes_read"], added["bytes_written"], added["barriers"]) == (2 * size, size, 0)
    # A Reshape is another name for its input; the last Dequantize is the product's epilogue.
    without = {name for name, row in layers.items() if not row["kernels"]}
    assert without == {"features", "logits_DequantizeLinear"}
    assert all(len(row["kernels"]) <= 1 for row in layers.values())
    (product,) = layers["left"]["kernels"]
    assert product["barriers"] > 0 and max(product["sectors"].values()) > 1
    assert run_app(command[:-2]) == 0
    table = capsys.readouterr().out
    assert "what kernels move, counted without running them" in table and added["name"] in table
