"""Softmax with a mask along the places of an image, on the vector unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.compiler.build import build
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.softmax import MASKED, VISIBLE, QTableSoftmax
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.attention_mask import VisibleKeys, find_visible_keys
from vdla.compiler.targets.vdla.templates.softmax import most_mask_rows
from vdla.isa.insn import Load
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.sim.model.core import simulate

from ....building import build_for
from ..machines import RTL_TABLES
from .test_matmul import VTA, check_rtl, check_values
from .test_softmax import HW, SMALL
from .test_softmax import softmax as unmasked


def causal(heads: int, keys: int, queries: int | None = None) -> np.ndarray:
    """Queries that see no later key, the last one all of them, [heads * queries, keys]."""
    queries = queries or keys
    return np.tile(np.tri(queries, keys, keys - queries, bool), (heads, 1))


def padding(rows: int, keys: int, last: int) -> np.ndarray:
    """No query sees the last keys."""
    return np.broadcast_to(np.arange(keys) < keys - last, (rows, keys))


def scattered(rows: int, keys: int, share: float) -> np.ndarray:
    """Every query sees some keys, anywhere."""
    rng = np.random.default_rng(3)
    kept = rng.random((rows, keys)) < share
    kept[np.arange(rows), rng.integers(0, keys, rows)] = True
    return kept


def mask_of(kept: np.ndarray) -> np.ndarray:
    """As the operator takes it."""
    return np.where(kept, VISIBLE, MASKED).astype(np.int8)


def softmax(kept: np.ndarray, out_scale: float = 1 / 255, zero_point: int = -128) -> Graph:
    """Rows of random elements with a mask [rows, keys]."""
    op, shape = QTableSoftmax(2, 0.02, out_scale, zero_point), (1, *kept.shape, 1)
    tensors = (
        Tensor("x", shape, "int8"),
        Tensor.constant("mask", mask_of(kept)[None, :, :, None]),
        Tensor("y", shape, "int8"),
    )
    node = Node("node", op, ("x", "mask"), "y")
    return Graph("one", ("x",), ("y",), (node,), {t.name: t for t in tensors})


def computed(queries: int, keys: int, heads: int, out_scale: float = 1 / 255) -> Graph:
    """Rows of ``heads`` matrices with one mask, which is an input."""
    op = QTableSoftmax(2, 0.02, out_scale, -128, heads)
    tensors = (
        Tensor("x", (1, heads * queries, keys, 1), "int8"),
        Tensor("mask", (1, queries, keys, 1), "int8"),
        Tensor("y", (1, heads * queries, keys, 1), "int8"),
    )
    node = Node("node", op, ("x", "mask"), "y")
    return Graph("one", ("x", "mask"), ("y",), (node,), {t.name: t for t in tensors})


#: Matrices whose mask is computed.
COMPUTED = {
    "one block": (computed(16, 80, 4), HW),
    "several blocks": (computed(48, 33, 3), HW),
    "small probabilities": (computed(16, 50, 2, 0.1 / 255), HW),
    "the longest rows": (computed(16, 512, 2, 1 / 2000), HW),
    "blocks of 4": (computed(8, 12, 2), SMALL),
    "two passes": (computed(4, 24, 2), replace(SMALL, vector_passes=2)),
}


@pytest.mark.slow
@pytest.mark.short(4)
@pytest.mark.parametrize("case", COMPUTED)
def test_a_computed_mask_equals_the_interpreter(case: str) -> None:
    """Where every query sees some keys, and where none sees any."""
    graph, hw = COMPUTED[case]
    (_, queries, keys, _), rng = graph["mask"].shape, np.random.default_rng(1)
    compiled = build(graph, find_target("sim", Options(hw, VTA, 2, 1)))
    host = build_for("cpu", graph, hw, VTA)
    assert [layer.target for layer in compiled.layers] == ["accel"]
    x = rng.integers(-128, 128, graph["x"].shape).astype(np.int8)
    earlier = causal(1, keys, queries)
    for mask in (scattered(queries, keys, 0.5), earlier, 0 * earlier):
        inputs = [x, mask_of(mask)[None, :, :, None]]
        (expected,) = interpret(graph, *inputs)
        (found,) = compiled.run(inputs, lambda p, dram: simulate(p, dram, VTA))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(host.run(inputs, lambda p, dram: None)[0], expected)


CASES = {
    "causal": (softmax(causal(4, 64)), HW),
    "causal, blocks that are no tile": (softmax(causal(3, 48), 1 / 60, 5), HW),
    "causal, fewer queries than keys": (softmax(causal(1, 53, 32)), HW),
    "small probabilities": (softmax(causal(2, 48), 0.1 / 255), HW),
    "the longest rows": (softmax(causal(1, 512)[-16:], 1 / 2000), HW),
    "padding": (softmax(padding(64, 48, 13)), HW),
    "blocks that are no row": (
        softmax(np.concatenate([padding(16, 32, last) for last in (3, 3, 9, 3)])),
        HW,
    ),
    "keys anywhere": (softmax(scattered(16, 30, 0.5)), HW),
    "most keys": (softmax(scattered(32, 50, 0.9), 1 / 2000), HW),
    "the first keys are masked": (softmax(causal(2, 32)[:, ::-1].copy()), HW),
    "blocks of 4": (softmax(causal(2, 12)), SMALL),
    "two passes": (softmax(causal(2, 24)), replace(SMALL, vector_passes=2)),
    "batch": (softmax(causal(2, 16)), replace(SMALL, batch=2)),
}


@pytest.mark.slow
@pytest.mark.short(5)
@pytest.mark.parametrize("case", CASES)
def test_masked_softmax_equals_the_interpreter(case: str) -> None:
    check_values(*CASES[case])


@pytest.mark.slow
@pytest.mark.short(1)
@pytest.mark.parametrize("out_scale", [1 / 255, 0.2 / 255])
@pytest.mark.parametrize("knobs", [(1, 1), (3, 7), (5, 16), (9, 5)], ids=str)
def test_tiles(knobs: tuple[int, int], out_scale: float) -> None:
    """Also tiles with a remainder in both dimensions, of blocks that see different keys."""
    graph = softmax(causal(3, 48), out_scale)
    check_values(graph, HW, {"blocks": knobs[0], "positions": knobs[1]})


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("out_scale", [1 / 255, 0.1 / 255])
def test_the_rtl_takes_the_same_cycles(out_scale: float) -> None:
    check_rtl(softmax(causal(2, 12), out_scale), RTL_TABLES)


@pytest.mark.slow
def test_keys_that_no_query_sees_take_less_than_a_pass() -> None:
    """Of 64 keys, queries see at least half; without the mask, all take four passes."""
    cycles = check_values(softmax(causal(4, 64)), HW)
    (layer,) = build_for("sim", softmax(causal(4, 64)), HW, VTA).layers
    assert layer.predicted_cycles is not None
    assert 0.8 * cycles < layer.predicted_cycles < 1.2 * cycles
    assert cycles < 0.9 * check_values(unmasked(256, 64), HW)


@pytest.mark.slow
def test_only_seen_scores_are_read() -> None:
    """Of 4 heads of 64 x 64 scores, 640 of 1,024 vectors."""
    compiled = build_for("sim", softmax(causal(4, 64)), HW, VTA)
    (program,) = (step for step in compiled.steps if isinstance(step, Program))
    loads = [i for i in program.insns if isinstance(i, Load) and i.memory == "inp"]
    assert sum(i.row_entries * i.rows * i.z_size for i in loads) == 640


@pytest.mark.slow
@pytest.mark.parametrize("params", [HW, replace(SMALL, par_depth=72)], ids=["16x16", "4x4"])
def test_the_most_rows_of_a_mask_fit_and_one_more_does_not(params: HwParams) -> None:
    most = most_mask_rows(params)
    kept = np.ones((params.block, most + 1), bool)
    kept[1::2, :-1] = False
    check_values(softmax(kept[:, 1:], 1 / 2000), params)
    [layer] = build_for("sim", softmax(kept), params, VTA).layers
    assert layer.target == "cpu"
    assert layer.reason == f"masks of {most + 1} different rows; there is room for {most}"


@pytest.mark.parametrize(
    ("hw", "reason"), [(HwParams(vector_table=1), "needs vector_table = 2"), (HW, "is computed")]
)
def test_what_the_host_computes(hw: HwParams, reason: str) -> None:
    graph = softmax(causal(1, 16))
    if hw == HW:
        mask = Tensor("mask", graph["mask"].shape, "int8")
        graph = replace(graph, inputs=("x", "mask"), tensors={**graph.tensors, "mask": mask})
    [layer] = build_for("sim", graph, hw, VTA).layers
    assert layer.target == "cpu" and reason in layer.reason


def test_spans() -> None:
    """Blocks of one mask share its rows."""
    spans, rows = find_visible_keys(mask_of(causal(2, 4)), 2)
    assert spans == (VisibleKeys(0, 2, 0), VisibleKeys(2, 4, 0)) * 2
    np.testing.assert_array_equal(rows, [[True, True], [False, True]])
    spans, rows = find_visible_keys(mask_of(padding(4, 5, 2)), 2)
    assert spans == (VisibleKeys(3, 3, 0),) * 2 and rows.shape == (0, 2)
