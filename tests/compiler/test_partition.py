"""Several programs with work of the host between them: where they are cut, what the report says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import vdla
from vdla.compiler.choose.space import Refusal
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor, dump
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.movement import Reshape
from vdla.compiler.graph.ops.pooling import QMaxPool
from vdla.compiler.graph.ops.quantisation import Quant, Quantize
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.partition import assign_targets, drop_small_programs, split_parts
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.vdla.rewrite.fit_layout import fit_layout
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams
from vdla.module import Module
from vdla.runtime.bundle import Settings

from .building import build_for

ACCELERATOR = Accelerator(Options(HwParams(), MemoryParams.load("vta")))
POOL = QMaxPool((1, 1), (1, 1), (0, 0, 0, 0))


def conv(groups: int = 1) -> QConv2d:
    one = Requant(np.array([2**30], np.int32), np.array([30], np.int32), 0)
    return QConv2d((1, 1), (0, 0, 0, 0), (1, 1), groups, 0, one)


def chain(*rows: tuple[str, Op], batch: int = 1) -> Graph:
    """Operators on an image of two channels, one after the other, with their places."""
    shape = (batch, 2, 3, 3)
    tensors = [Tensor("t0", shape, "int8"), Tensor.constant("bias", np.zeros(2, np.int32))]
    weights = {1: np.eye(2, dtype=np.int8), 2: np.ones((2, 1), np.int8)}
    tensors += [
        Tensor.constant(f"w{groups}", weight[:, :, None, None])
        for groups, weight in weights.items()
    ]
    nodes = []
    for i, (where, op) in enumerate(rows):
        more = (f"w{op.groups}", "bias") if isinstance(op, QConv2d) else ()
        reason = "here" if where == "cpu" else "there"
        nodes.append(Node(f"n{i}", op, (f"t{i}", *more), f"t{i + 1}", where, reason))
        tensors.append(Tensor(f"t{i + 1}", shape, "int8"))
    last = (f"t{len(rows)}",)
    return Graph("chain", ("t0",), last, tuple(nodes), {t.name: t for t in tensors})


def places(graph: Graph) -> list[tuple[str, list[str]]]:
    parts = split_parts(drop_small_programs(graph, ACCELERATOR), ACCELERATOR)
    return [(target.name, [node.name for node in part.nodes]) for target, part in parts]


def mixed(b: Any) -> onnx.ModelProto:
    """Integer operators, a grouped convolution, reshapes that move data or not, float ones."""
    b.input("x", [1, 2, 2, 2])
    weight = b.stored("w", np.ones((2, 1, 1, 1), np.int8), np.float32(0.5))
    h = b.qdq(b.node("Conv", [b.qdq("x", 0.1, 0), weight], "depthwise", group=2), 0.1, 0)
    moved = b.qdq(b.node("Flatten", [h], "moved"), 0.1, 0)
    h = b.qdq(b.node("GlobalAveragePool", [h], "mean"), 0.1, 0)
    h = b.qdq(b.node("Flatten", [h], "kept"), 0.1, 0)
    dense = b.node("MatMul", [h, b.stored("v", np.ones((2, 8), np.int8), np.float32(0.5))], "dense")
    return b.model([b.node("Add", [b.qdq(dense, 0.1, 0), moved], "y")], name="place")


def test_every_node_has_a_place_and_a_reason(
    builder: Any, golden: Callable[[str, str], None]
) -> None:
    before = run_passes(import_onnx(mixed(builder)))
    after = assign_targets(before, ACCELERATOR)
    golden("assign_targets.txt", f"# before\n{dump(before)}\n# after\n{dump(after)}")


def test_rows_alternate_where_they_must() -> None:
    graph = chain(
        ("cpu", POOL), ("accel", conv()), ("accel", POOL), ("cpu", conv(2)), ("accel", conv())
    )
    assert places(graph) == [
        ("cpu", ["n0"]), ("accel", ["n1", "n2"]), ("cpu", ["n3"]), ("accel", ["n4"])
    ]  # fmt: skip


def test_no_program_for_a_little_work_behind_the_host() -> None:
    graph = chain(("accel", conv()), ("cpu", conv(2)), ("accel", POOL), ("cpu", POOL))
    assert places(graph) == [("accel", ["n0"]), ("cpu", ["n1", "n2", "n3"])]
    assert places(chain(("accel", POOL))) == [("accel", ["n0"])]


def test_independent_branches_share_a_row() -> None:
    graph = chain(("accel", conv()), ("cpu", POOL))
    side = Node("side", conv(), ("t0", "w1", "bias"), "s", "accel", "there")
    tensors = {**graph.tensors, "s": Tensor("s", (1, 2, 3, 3), "int8")}
    graph = Graph("branches", ("t0",), ("t2", "s"), (*graph.nodes, side), tensors)
    assert places(graph) == [("accel", ["n0", "side"]), ("cpu", ["n1"])]


@pytest.mark.parametrize(
    "graph, reason",
    [
        (chain(("accel", POOL), batch=3), "3 images at a time, the configuration has batch 1"),
        (
            Graph(
                "flat", ("x",), ("y",), (Node("n0", Reshape((6,)), ("x",), "y", "accel"),),
                {"x": Tensor("x", (1, 6), "int8"), "y": Tensor("y", (6,), "int8")},
            ),
            "1 dimensions, the accelerator's layout has 2 or 4",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_goes_to_the_host(graph: Graph, reason: str) -> None:
    (node,) = fit_layout(graph, HwParams()).nodes
    assert (node.target, node.reason) == ("cpu", reason)


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> tuple[Module, Graph]:
    """A module of two programs, whose grouped convolution runs on the host between them."""
    graph = chain(("", conv()), ("", conv(2)), ("", conv()), ("", POOL))

    def takes(_: Accelerator, graph: Graph, node: Node) -> str | Refusal:
        return Refusal("chosen by this test") if node.name == "n1" else "chosen"

    monkeypatch.setattr(Accelerator, "takes", takes)
    memory = MemoryParams.load("vta")
    compiled = build_for("sim", graph, HwParams(), memory)
    return Module(compiled, Settings("sim", HwParams(), memory, 2, "")), graph


def test_several_programs_run_as_one_network(several: tuple[Module, Graph]) -> None:
    module, graph = several
    x = np.random.default_rng(0).integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    (y,) = module.run(x)
    expected = [interpret(graph, x[i : i + 1])[0] for i in range(3)]
    np.testing.assert_array_equal(y, np.concatenate(expected))
    assert len(module.compiled.programs) == 2
    rows = module.report["layers"]
    assert [row["target"] for row in rows] == ["accel", "cpu", "accel", "accel"]
    assert sum(row["cycles"] or 0 for row in rows) == module.report["cycles"]
    assert module.report["programs"] == 2 and module.report["host_s"] > 0
    assert module.report["coverage"] == {
        "macs_on_accelerator": 72, "macs_total": 90, "operators_on_host": 1, "operators_total": 4
    }  # fmt: skip
    for unit in ("load", "gemm", "vector", "store"):
        assert sum(module.report["stalls"][unit].values()) == module.report["cycles"]


def test_several_programs_are_not_one_file(several: tuple[Module, Graph]) -> None:
    with pytest.raises(VdlaError, match="got 2: node 'n1' runs on the host between them"):
        _ = several[0].program


def test_a_model_without_work_for_the_accelerator() -> None:
    quant = Quant(np.array([0.5], np.float32), np.array([0], np.int32))
    tensors = {"x": Tensor("x", (1, 4), "float32"), "y": Tensor("y", (1, 4), "int8")}
    node = Node("n0", Quantize(quant), ("x",), "y")
    graph = Graph("host", ("x",), ("y",), (node,), tensors)
    memory = MemoryParams.load("vta")
    compiled = build_for("sim", graph, HwParams(), memory)
    module = Module(compiled, Settings("sim", HwParams(), memory, 2, ""))
    (y,) = module.run(np.array([[-1, 0, 0.6, 9]], np.float32))
    np.testing.assert_array_equal(y, [[-2, 0, 1, 18]])
    assert module.report["cycles"] is None
    with pytest.raises(vdla.VdlaError, match="has none"):
        _ = module.program
