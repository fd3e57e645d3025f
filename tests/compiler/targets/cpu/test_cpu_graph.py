"""Whole graphs as one native call: the digits network, memory plans, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vdla.bench.modern import FloatNet
from vdla.compiler.arena import Lifetime, plan_arena
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.elementwise import Map, Relu
from vdla.compiler.graph.ops.movement import Concat, Reshape, Slice
from vdla.compiler.graph.ops.pooling import QMaxPool
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.compiler.te.expr import Var
from vdla.isa.errors import VdlaError
from vdla.runtime.native import ALIGN_BYTES, MemoryPlan, align

MODELS = Path(__file__).parents[4] / "examples" / "models"


def digits(batch: int) -> tuple[Graph, np.ndarray, np.ndarray]:
    """The integer graph, all test images, their labels."""
    graph = run_passes(import_onnx(MODELS / "digits_int8.onnx", Sizes(batch)))
    data = np.load(MODELS / "digits_test.npz")
    return graph, data["x"], data["y"]


@pytest.mark.slow
def test_all_test_images_equal_the_interpreter() -> None:
    graph, images, labels = digits(batch=len(np.load(MODELS / "digits_test.npz")["y"]))
    (logits,) = build_cpu(graph).run(images)
    np.testing.assert_array_equal(logits, interpret(graph, images)[0])
    assert (logits.argmax(1) == labels).mean() > 0.97


def test_image_by_image() -> None:
    graph, images, _ = digits(batch=1)
    module = build_cpu(graph)
    for image in images[:50, None]:
        (logits,) = module.run(image)
        np.testing.assert_array_equal(logits, interpret(graph, image)[0])


@pytest.mark.slow
def test_batches_of_three() -> None:
    graph, images, _ = digits(batch=3)
    module = build_cpu(graph)
    (logits,) = module.run(images[3:6])
    np.testing.assert_array_equal(logits, interpret(graph, images[3:6])[0])


def test_activations_share_memory() -> None:
    graph, _, _ = digits(batch=1)
    module = build_cpu(graph)
    assert module.code.plan.planned_bytes < module.code.plan.sum_bytes
    assert len(module.code.offsets) > 5
    assert all(offset % ALIGN_BYTES == 0 for offset in module.code.offsets.values())


def test_results_do_not_share_memory_with_each_other() -> None:
    graph, images, _ = digits(batch=1)
    module = build_cpu(graph)
    first, kept = module.run(images[:1])[0], module.run(images[:1])[0].copy()
    module.run(images[1:2])
    np.testing.assert_array_equal(first, kept)


# ---- interfaces ----


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, "int8")


def pooled(outputs: tuple[str, ...], nodes: tuple[Node, ...] | None = None) -> Graph:
    """x -> reshape -> pool -> reshape."""
    pool = QMaxPool((2, 2), (2, 2), (0, 0, 0, 0))
    nodes = nodes or (
        Node("to_image", Reshape((1, 1, 4, 4)), ("x",), "image"),
        Node("pool", pool, ("image",), "small"),
        Node("flatten", Reshape((1, 4)), ("small",), "flat"),
    )
    tensors = (
        tensor("x", 16), tensor("image", 1, 1, 4, 4), tensor("small", 1, 1, 2, 2),
        tensor("flat", 1, 4), Tensor.constant("one", np.full((1, 4), 7, np.int8)),
    )  # fmt: skip
    return Graph("pooled", ("x",), outputs, nodes, {t.name: t for t in tensors})


@pytest.mark.parametrize(
    "outputs", [("flat",), ("flat", "small"), ("image",), ("x", "flat", "flat"), ("one", "flat")]
)
def test_outputs_of_every_kind(outputs: tuple[str, ...]) -> None:
    """Computed, renamed, given, constant, twice."""
    graph = pooled(outputs)
    x = np.random.default_rng(0).integers(-128, 128, 16).astype(np.int8)
    got, expected = build_cpu(graph).run(x), interpret(graph, x)
    assert len(got) == len(outputs)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_inputs_need_not_be_contiguous() -> None:
    x = np.arange(32, dtype=np.int8)
    graph = pooled(("flat",))
    np.testing.assert_array_equal(build_cpu(graph).run(x[::2])[0], interpret(graph, x[::2])[0])


def test_inputs_are_checked() -> None:
    module = build_cpu(pooled(("flat",)))
    with pytest.raises(VdlaError, match="graph pooled: expected 1 inputs, got 2"):
        module.run(np.zeros(16, np.int8), np.zeros(16, np.int8))
    with pytest.raises(VdlaError, match=r"input 'x' expects int8\[16\], got int32\[16\]"):
        module.run(np.zeros(16, np.int32))


# ---- memory plans ----

LIFETIMES = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(0, 9), st.integers(0, 5)).map(
        lambda t: Lifetime(t[0], t[1], t[1] + t[2])
    ),
    max_size=20,
)


@given(LIFETIMES)
def test_values_that_live_together_do_not_overlap(lives: list[Lifetime]) -> None:
    named = {f"v{i}": life for i, life in enumerate(lives)}
    offsets, plan = plan_arena(named)
    assert set(offsets) == set(named)
    for a, life in named.items():
        assert offsets[a] % ALIGN_BYTES == 0
        assert offsets[a] + life.size_bytes <= plan.planned_bytes
        for b, other in named.items():
            if a != b and life.first <= other.last and other.first <= life.last:
                a_before_b = offsets[a] + life.size_bytes <= offsets[b]
                assert a_before_b or offsets[b] + other.size_bytes <= offsets[a]


@given(LIFETIMES)
def test_no_more_memory_than_for_all_values_at_once(lives: list[Lifetime]) -> None:
    _, plan = plan_arena({f"v{i}": life for i, life in enumerate(lives)})
    assert plan.planned_bytes <= plan.sum_bytes == sum(align(v.size_bytes) for v in lives)
    steps = range(15)
    live = [sum(align(v.size_bytes) for v in lives if v.first <= s <= v.last) for s in steps]
    assert plan.bound_bytes == max(live) <= plan.planned_bytes


def test_a_chain_needs_two_places() -> None:
    chain = {f"v{i}": Lifetime(64, i, i + 1) for i in range(10)}
    assert plan_arena(chain)[1] == MemoryPlan(10, 640, 128, 128)


def test_threads_run_one_module_at_once() -> None:
    """Each call has an arena of its own."""
    graph, images, _ = digits(batch=1)
    module = build_cpu(graph)
    expected = [module.run(image[None])[0] for image in images[:40]]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            got = pool.map(lambda image: module.run(image[None])[0], images[:40])
            np.testing.assert_array_equal(list(got), expected)


def test_arenas_are_used_again() -> None:
    graph, images, _ = digits(batch=1)
    function = build_cpu(graph).function
    for image in images[:3]:
        function.run(image[None])
    assert len(function._free_arenas) == 1
    assert function._free_arenas[0].ctypes.data % ALIGN_BYTES == 0


def test_an_arena_that_another_call_has_just_taken() -> None:
    """It was there when asked for, and is gone when taken."""

    class Taken(list):
        def __len__(self) -> int:
            return 1

    graph, images, _ = digits(batch=1)
    function = build_cpu(graph).function
    (expected,) = function.run(images[:1])
    object.__setattr__(function, "_free_arenas", Taken())
    np.testing.assert_array_equal(function.run(images[:1])[0], expected)


# ---- parts of tensors ----


def relu_of_parts(
    *slices: tuple[int, int, int], outputs: tuple[str, ...], twice: bool = False
) -> Graph:
    """Rectified rows of the negated x [4, 6], which are put together along ``axis`` 0: slices of
    (first row, number of rows, step). The last one may be there twice."""
    x, y = Var("x", "float32"), Tensor("negated", (4, 6), "float32")
    nodes = [Node("negate", Map("Neg", (x,), -1.0 * x), ("x",), y.name)]
    tensors, parts = [Tensor("x", (4, 6), "float32"), y], []
    for number, (first, count, step) in enumerate(slices):
        cut, rectified = (Tensor(f"{n}{number}", (count, 6), "float32") for n in ("cut", "part"))
        slicing = Slice((first, 0), (step, 1), (count, 6))
        nodes.append(Node(cut.name, slicing, ("negated",), cut.name))
        nodes.append(Node(rectified.name, Relu(), (cut.name,), rectified.name))
        tensors += [cut, rectified]
        parts.append(rectified.name)
    parts += parts[-1:] if twice else []
    rows = sum(count for _, count, _ in slices) + (slices[-1][1] if twice else 0)
    nodes.append(Node("together", Concat(0), tuple(parts), "y"))
    tensors.append(Tensor("y", (rows, 6), "float32"))
    return Graph("parts", ("x",), outputs, tuple(nodes), {t.name: t for t in tensors})


@pytest.mark.parametrize(
    ("slices", "outputs", "twice", "copies"),
    [
        ([(0, 1, 1), (2, 2, 1)], ("y",), False, 0),
        ([(0, 1, 1), (2, 2, 1)], ("part1", "y", "cut1", "negated"), False, 0),
        ([(1, 3, 1), (0, 2, 2)], ("y",), False, 1),  # every second row lies apart
        ([(0, 2, 1), (3, 1, 1)], ("y", "part0"), True, 1),  # a part cannot lie in two places
    ],
    ids=["parts", "parts are outputs", "steps", "twice"],
)
def test_parts_that_lie_together_need_no_copies(
    slices: list[tuple[int, int, int]], outputs: tuple[str, ...], twice: bool, copies: int
) -> None:
    graph = relu_of_parts(*slices, outputs=outputs, twice=twice)
    module = build_cpu(graph)
    x = np.random.default_rng(0).normal(0, 1, (4, 6)).astype(np.float32)
    for a, b in zip(module.run(x), interpret(graph, x), strict=True):
        np.testing.assert_array_equal(a, b)
    names = [kernel.name for kernel in module.code.kernels]
    assert sum("cut" in name or "together" in name for name in names) == copies


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_steps_share_their_code(kind: str) -> None:
    """However many there are."""
    found = set()
    for steps in (4, 7):
        net = FloatNet(kind)
        x = net.input(steps, 1, 16)
        model = net.model(net.lstm(x) if kind == "LSTM" else net.gru(x))
        found.add(len(build_cpu(run_passes(import_onnx(model))).code.kernels))
    assert len(found) == 1
