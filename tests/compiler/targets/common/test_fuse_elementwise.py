"""Element-wise operators computed together: what is grouped, its bits, its choices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import vdla
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.sizes import Sizes
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.fused import Fused, FusedParts
from vdla.compiler.graph.ops.movement import Slice
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.graph.verify import verify
from vdla.compiler.targets.common.fuse_elementwise import fuse_elementwise
from vdla.compiler.targets.cpu import graph_code
from vdla.compiler.targets.cpu.graph_code import CpuModule, build_cpu, compile_graph, on_blocks
from vdla.compiler.targets.cpu.llvm_parallel import has_threads
from vdla.compiler.targets.cpu.lowering import new_chooser
from vdla.compiler.targets.cpu.processor import CROSS_PROCESSORS, host_processor
from vdla.compiler.topi import broadcast_shapes, merged_axes
from vdla.isa.errors import VdlaError

from ...graph.test_fuzz_graphs import Case, cases

CHAINS = 60
EXAMPLES = int(os.environ.get("VDLA_FUZZ", "60"))
UNARY = ("Relu", "Abs", "Neg", "Exp", "Sigmoid", "Tanh", "Sqrt", "Floor", "HardSwish", "Identity")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
#: Operators whose bits NumPy has, too.
CLIBRARY = {"Exp", "Sigmoid", "Tanh"}


def graph_of(builder: Any, outputs: list[str]) -> Graph:
    return run_passes(import_onnx(builder.model(outputs), Sizes(1)))


def kinds(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def build_apart(graph: Graph) -> CpuModule:
    """Every operator computed by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_code, "fuses_into_reader", lambda *args, **named: False)
        return build_cpu(graph)


def same_bits(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> None:
    assert [x.tobytes() for x in a] == [x.tobytes() for x in b]


def chain(builder: Any, r: Random) -> tuple[list[str], dict[str, np.ndarray], set[str]]:
    """Random element-wise operators on tensors of one shape, or that are broadcast to it, now and
    then converted to int8 and back; its outputs, its inputs and which operators it has."""
    rng = np.random.default_rng(r.randrange(1 << 30))
    shape = [r.choice((1, 2, 3, 8, 16, 32)) for _ in range(r.randint(1, 4))]
    values = [builder.input("x", shape)]
    feeds = {"x": rng.normal(0, 1, shape).astype(np.float32)}
    used = set[str]()
    for step in range(r.randint(2, 9)):
        kind = r.choice((*UNARY, *BINARY, *BINARY, "QDQ"))
        used.add(kind)
        first = values[-1] if r.random() < 0.7 else r.choice(values)
        if kind == "QDQ":
            values.append(builder.qdq(first, r.choice((0.05, 0.1)), r.randint(-20, 20)))
            continue
        others = []
        if kind in BINARY and r.random() < 0.5:
            others = [r.choice(values)]
        elif kind in BINARY:
            part = shape[r.randint(0, len(shape)) :]
            size = [n if r.random() < 0.6 else 1 for n in part]
            others = [builder.constant(f"c{step}", rng.uniform(0.5, 2, size).astype(np.float32))]
        values.append(builder.node(kind, [first, *others], f"t{step}"))
    made = [value for value in values[1:-1] if r.random() < 0.2]
    return [*dict.fromkeys([*made, values[-1]])], feeds, used


@pytest.mark.fast(2)
@pytest.mark.short(20)
@pytest.mark.parametrize("number", range(CHAINS))
def test_random_chains(number: int, builder: Any) -> None:
    """The bits of operators by themselves, with any number of threads; the interpreter's bits
    where no function of the C library is called."""
    r = Random(number)
    outputs, feeds, used = chain(builder, r)
    graph = graph_of(builder, outputs)
    inputs = [feeds[name] for name in graph.inputs]
    joined, alone = build_cpu(graph), build_apart(graph)
    assert not any(isinstance(node.op, Fused) for node in alone.graph.nodes)
    got = joined.run(*inputs)
    same_bits(got, alone.run(*inputs))
    if has_threads():
        same_bits(got, build_cpu(graph, threads=3).run(*inputs))
    fused = fuse_elementwise(graph)
    verify(fused)
    with np.errstate(all="ignore"):
        expected = interpret(graph, *inputs)
        same_bits(expected, interpret(fused, *inputs))
    if not used & CLIBRARY:
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_random_chains_are_fused(builder: Any) -> None:
    """Most of them, and most of their operators."""
    before = after = 0
    for number in range(CHAINS):
        fresh = type(builder)()
        outputs, _, _ = chain(fresh, Random(number))
        graph = graph_of(fresh, outputs)
        before, after = before + len(graph.nodes), after + len(fuse_elementwise(graph).nodes)
    assert after < 0.6 * before


@pytest.mark.more
@pytest.mark.slow
def test_random_graphs() -> None:
    """The same in random graphs, whatever surrounds the chains."""
    fused = []

    @settings(
        max_examples=EXAMPLES,
        derandomize="VDLA_FUZZ" not in os.environ,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.generate,),
    )
    @given(cases())
    def run(case: Case) -> None:
        graph = run_passes(import_onnx(case.model))
        inputs = [case.inputs[int(name[1:])] for name in graph.inputs]
        joined, alone = build_cpu(graph), build_apart(graph)
        same_bits(joined.run(*inputs), alone.run(*inputs))
        fused.append(any(isinstance(node.op, Fused) for node in joined.graph.nodes))

    run()
    assert sum(fused) > EXAMPLES / 5


# ---- what is grouped -----------------------------------------------------------------------------


def test_a_chain_is_one_pass_over_memory(builder: Any) -> None:
    x = builder.input("x", [1, 8, 6, 6])
    scale = builder.constant("scale", np.ones((8, 1, 1), np.float32))
    y = builder.node("Exp", [builder.node("Mul", [x, scale], "a")], "b")
    module = build_cpu(graph_of(builder, [builder.node("Abs", [y], "y")]))
    assert kinds(module.graph) == ["Map+Map+Map"]
    assert module.code.plan.planned_bytes == 0
    assert "a" not in module.code.offsets
    [kernel] = module.code.kernels
    assert [b.shape for b in kernel.params] == [(8, 36), (8, 1), (8, 36)]


def test_a_value_that_others_read_is_stored(builder: Any) -> None:
    x = builder.input("x", [4, 4])
    a = builder.node("Relu", [x], "a")
    b = builder.node("Abs", [a], "b")
    c = builder.node("Softmax", [a], "c")
    assert kinds(fuse_elementwise(graph_of(builder, [b, c])))[:2] == ["Relu", "Map"]


def test_a_value_that_is_an_output_is_stored(builder: Any) -> None:
    x = builder.input("x", [4, 4])
    a = builder.node("Relu", [x], "a")
    b = builder.node("Abs", [a], "b")
    assert kinds(fuse_elementwise(graph_of(builder, [b, a]))) == ["Relu", "Map"]


def test_readers_that_are_computed_together_count_as_one(builder: Any) -> None:
    """``a * sigmoid(a)``, where a is of the chain itself."""
    x = builder.input("x", [4, 4])
    a = builder.node("Relu", [x], "a")
    y = builder.node("Mul", [a, builder.node("Sigmoid", [a], "s")], "y")
    [node] = fuse_elementwise(graph_of(builder, [y])).nodes
    assert isinstance(node.op, Fused)
    assert (node.op.operand_count, node.op.reads) == (1, ((0,), (1,), (1, 2)))


def test_smaller_values_are_stored(builder: Any) -> None:
    """If fused, they would be computed once for every element that they are broadcast to."""
    x, row = builder.input("x", [4, 8]), builder.input("row", [8])
    a = builder.node("Exp", [row], "a")
    graph = graph_of(builder, [builder.node("Add", [x, a], "y")])
    assert kinds(fuse_elementwise(graph)) == ["Map", "Add"]


def test_scales_by_channel_are_left(builder: Any) -> None:
    """Such operators declare that they are not element-wise, because a value's position matters."""
    x = builder.input("x", [1, 3, 5])
    scales, zeros = np.float32([0.5, 0.25, 0.125]), np.int8([0, 1, 2])
    q = builder.scaled("QuantizeLinear", builder.node("Abs", [x], "a"), "q", scales, zeros, axis=1)
    d = builder.scaled("DequantizeLinear", q, "d", scales, zeros, axis=1)
    graph = graph_of(builder, [builder.node("Neg", [d], "y")])
    assert kinds(fuse_elementwise(graph)) == kinds(graph)


def test_additions_stay_in_their_convolutions(builder: Any) -> None:
    """And what follows on blocks of channels is fused there."""
    x = builder.input("x", [1, 16, 6, 6])
    rng = np.random.default_rng(0)
    w = builder.constant("w", rng.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32))
    conv = builder.node("Conv", [x, w], "conv", pads=[1, 1, 1, 1])
    total = builder.node("Add", [conv, x], "sum")
    y = builder.node("Mul", [total, builder.node("Sigmoid", [total], "s")], "y")
    graph = graph_of(builder, [y])
    found = kinds(on_blocks(graph, host_processor(), new_chooser(host_processor())))
    assert found.count("Map+Map") == 1 and "Add" not in found
    module, feed = build_cpu(graph), rng.normal(0, 1, (1, 16, 6, 6)).astype(np.float32)
    same_bits(module.run(feed), build_apart(graph).run(feed))


# ---- choices -------------------------------------------------------------------------------------


VALUES = np.random.default_rng(0).normal(size=(1, 4, 16)).astype(np.float32)


def chained(builder: Any) -> Any:
    x = builder.input("x", [1, 4, 16])
    a = builder.node("Abs", [x], "a")
    b = builder.node("Log", [a], "b")
    return builder.model([builder.node("Relu", [b], "y")])


def test_every_node_has_a_row_and_choices_replay(builder: Any) -> None:
    model = chained(builder)
    module = vdla.compile(model, "cpu")
    expected = module.run(VALUES)
    rows = {row["name"]: row for row in module.report["layers"]}
    assert list(rows) == [node.name for node in run_passes(import_onnx(model)).nodes]
    first, second, last = rows.values()
    assert first["knobs"] == second["knobs"] == {"fused": True}
    assert last["knobs"] == {"lanes": 32, "vectors": 2, "parallel": False}
    again = vdla.compile(model, "cpu", knobs=module.report)
    same_bits(again.run(VALUES), expected)
    assert [row["knobs"] for row in again.report["layers"]] == [r["knobs"] for r in rows.values()]
    assert {row["chosen_by"] for row in again.report["layers"]} == {"user"}


def test_choices_by_layer(builder: Any) -> None:
    model = chained(builder)
    graph = run_passes(import_onnx(model))
    first, second, last = [node.name for node in graph.nodes]
    given = {second: {"fused": False}}
    assert kinds(build_cpu(graph, knobs=given).graph) == ["Map+Map", "Relu"]
    module = vdla.compile(model, "cpu", knobs=given)
    expected = module.run(VALUES)
    found = {row["name"]: row["knobs"].get("fused") for row in module.report["layers"]}
    assert found == {first: True, second: False, last: None}
    for lanes, vectors in ((1, 1), (4, 4), (8, 2), (16, 1), (32, 1)):
        given = {last: {"lanes": lanes, "vectors": vectors, "parallel": True}}
        same_bits(vdla.compile(model, "cpu", knobs=given).run(VALUES), expected)
    with pytest.raises(VdlaError, match=f"layer '{first}': expected knobs fused, got 'lanes'"):
        vdla.compile(model, "cpu", knobs={first: {"lanes": 4}})


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ([64], "Neg", (32, 1)), ([64], "Log", (32, 2)), ([96], "Log", (32, 1)),
        ([6], "Neg", (1, 1)), ([5, 7], "Neg", (1, 1)), ([5, 7], "Log", (1, 35)),
        ([2, 1025], "Log", (1, 410)), ([1031], "Log", (1, 1)),
    ],
)  # fmt: skip
def test_defaults(shape: list[int], kind: str, expected: tuple[int, int], builder: Any) -> None:
    """Vectors where rows are whole ones; else strips, of which some are LLVM's vectors."""
    x = builder.input("x", shape)
    y = builder.node("Relu", [builder.node(kind, [x], "a")], "y")
    layers = vdla.compile(builder.model([y]), "cpu").compiled.layers
    assert (layers[-1].knobs["lanes"], layers[-1].knobs["vectors"]) == expected


def test_what_does_not_divide_is_refused(builder: Any) -> None:
    x = builder.input("x", [12])
    model = builder.model([builder.node("Exp", [builder.node("Abs", [x], "a")], "y")])
    name = run_passes(import_onnx(model)).nodes[-1].name
    with pytest.raises(VdlaError, match=f"layer '{name}': expected strips that divide 12, got 16"):
        vdla.compile(model, "cpu", knobs={name: {"lanes": 4, "vectors": 4, "parallel": False}})


# ---- other processors, shapes --------------------------------------------------------------------


@pytest.mark.parametrize("triple", CROSS_PROCESSORS)
def test_for_other_processors(triple: str, builder: Any) -> None:
    outputs, _, _ = chain(builder, Random(4))
    graph = graph_of(builder, outputs)
    code = compile_graph(graph, CROSS_PROCESSORS[triple])
    assert any(isinstance(node.op, Fused) for node in code.graph.nodes)
    assert code.object_file[:4] == b"\x7fELF"


def test_fused_operators_say_what_they_are(builder: Any) -> None:
    [first] = fuse_elementwise(graph_of(builder, [chain_of(builder, 0.5)])).nodes
    other = type(builder)()
    [second] = fuse_elementwise(graph_of(other, [chain_of(other, 0.25)])).nodes
    assert first.op.name == "Quantize+Dequantize+Relu" and first.op.text != second.op.text
    assert first.op.macs((4, 4)) == 0
    assert replace(first).op == first.op


def chain_of(builder: Any, scale: float) -> str:
    q = builder.input("q", [4, 4])
    stored = builder.quantize(q, scale, 0)
    d = builder.scaled("DequantizeLinear", stored, "d", np.float32(2 * scale), np.int8(3))
    return builder.node("Relu", [d], "y")


SHAPES = st.lists(st.sampled_from((1, 2, 3, 4)), max_size=5)


@given(SHAPES, st.lists(st.lists(st.booleans(), max_size=5), min_size=1, max_size=3))
def test_merged_axes_give_every_element_its_partners(
    full: list[int], masks: list[list[bool]]
) -> None:
    shapes = [
        tuple(n if keep else 1 for n, keep in zip(full[len(full) - len(mask) :], mask, strict=True))
        for mask in (mask[: len(full)] for mask in masks)
    ]
    merged = merged_axes(*shapes)
    arrays = [np.random.default_rng(i).random(shape) for i, shape in enumerate(shapes)]
    plain = np.broadcast_arrays(*arrays)
    folded = np.broadcast_arrays(*(a.reshape(s) for a, s in zip(arrays, merged, strict=True)))
    for a, b in zip(plain, folded, strict=True):
        np.testing.assert_array_equal(a.reshape(-1), b.reshape(-1))
    ranks = {len(shape) for shape in merged}
    assert len(ranks) == 1 and ranks.pop() <= len(broadcast_shapes(*shapes))


def test_merged_axes_are_few() -> None:
    assert merged_axes((8, 4, 5, 6), (4, 1, 1)) == [(8, 4, 30), (1, 4, 1)]
    assert merged_axes((8, 4, 5, 6), ()) == [(960,), (1,)]
    assert merged_axes((1, 1), (1,)) == [(), ()]


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, -2])
def test_parts_of_tensors_may_be_first(step: int, builder: Any) -> None:
    """Only where a target asks for it, and only where their readers are fused anyway."""

    def sliced(name: str, start: int, end: int, step: int) -> str:
        numbers = {"from": start, "to": end, "axis": 1, "step": step}
        given = [builder.constant(name + n, np.int64([v])) for n, v in numbers.items()]
        return builder.node("Slice", [x, *given], name)

    x = builder.input("x", [3, 12])
    part = sliced("part", 2, 6, 1) if step == 1 else sliced("part", 11, 3, step)
    y = builder.node("Mul", [builder.node("Relu", [part], "a"), part], "y")
    z = builder.node("Transpose", [sliced("other", 0, 4, 1)], "z")
    graph = graph_of(builder, [y, z])
    assert sum(isinstance(node.op, Slice) for node in fuse_elementwise(graph).nodes) == 2
    fused = fuse_elementwise(graph, parts=(Slice,))
    verify(fused)
    [found] = [node.op for node in fused.nodes if isinstance(node.op, FusedParts)]
    assert isinstance(found.ops[0], Slice) and len(found.ops) == 3
    assert sum(isinstance(node.op, Slice) for node in fused.nodes) == 1
    values = np.random.default_rng(1).normal(size=(3, 12)).astype(np.float32)
    expected = interpret(graph, values)
    same_bits(expected, interpret(fused, values))
    module = vdla.compile(builder.model([y, z]).SerializeToString(), "cuda", emulate=True)
    same_bits(expected, module.run(values))
