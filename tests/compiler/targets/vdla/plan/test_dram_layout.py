"""Memory between operators: plans of whole networks against the least that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from vdla.bench.workloads import NETWORKS
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.movement import Reshape
from vdla.compiler.graph.ops.pooling import QMaxPool
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.partition import assign_targets, split_parts
from vdla.compiler.targets.base import Options, Part
from vdla.compiler.targets.cpu.graph_code import compile_graph
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.targets.vdla.plan.dram_layout import place_activations
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.compiler.targets.vdla.templates.base import AcceleratorTemplate, Track
from vdla.isa.memory import MemoryParams
from vdla.isa.params import PRESETS
from vdla.runtime.layout import activation_bytes

from ....building import build_for

HW = PRESETS["16x16"]
#: What a plan may take more than the largest live set.
SLACK = 1.05


@pytest.fixture(scope="module", params=("resnet18", "mobilenet_v1"))
def network(request: pytest.FixtureRequest) -> Graph:
    """A network after the graph passes."""
    return run_passes(load_graph(NETWORKS[request.param](1)))


@pytest.mark.fast(1)
def test_dram_of_the_networks_is_near_the_bound(network: Graph) -> None:
    target = Accelerator(Options(HW, MemoryParams.load("vta")))
    graph = assign_targets(network, target)
    for _, apply in target.graph_passes(Chooser(target.name, target.machine_key)):
        graph = apply(graph)
    (part,) = (part for where, part in split_parts(graph, target) if where is target)
    nodes = part.nodes
    tracks = {
        node.output: template.track for node in nodes
        if isinstance(template := target.template_of(graph, node), AcceleratorTemplate)
    }  # fmt: skip
    offsets, plan = place_activations(part, tracks, HW)
    live = [
        sum(activation_bytes(graph[n].shape, HW) for n in needed(graph, nodes, tracks, step))
        for step in range(len(nodes))
    ]
    assert max(live) <= plan.bound_bytes <= plan.planned_bytes <= SLACK * max(live)
    assert plan.planned_bytes < plan.sum_bytes
    assert set(offsets) >= {node.output for node in nodes}


def needed(graph: Graph, nodes: Sequence[Node], tracks: Mapping[str, Track], step: int) -> set[str]:
    """The tensors that a step, or one that runs beside it, reads or writes, and those that must be
    kept for later steps, found independently. Results of reshapes go by the name of their source.
    """
    views = {n.output: n.inputs[0] for n in nodes if isinstance(n.op, Reshape)}
    made = {node.output: index for index, node in enumerate(nodes)}
    reads = [(index, name) for index, node in enumerate(nodes) for name in node.inputs]
    for (before, _), (index, after) in pairwise(
        (i, n) for i, n in enumerate(nodes) if not isinstance(n.op, Reshape)
    ):
        if tracks[nodes[before].output] != tracks[after.output]:
            reads += [(index, name) for name in (*nodes[before].inputs, nodes[before].output)]
    reads += [(len(nodes), name) for name in made if name not in {n for _, n in reads}]
    kept = {name for index, name in reads if made.get(name, 0) <= step <= index}
    kept |= {nodes[step].output}
    return {views.get(name, name) for name in kept if not graph[name].is_constant}


@pytest.mark.more
@pytest.mark.slow
def test_arenas_of_the_networks_are_near_the_bound(network: Graph) -> None:
    plan = compile_graph(network, host_processor()).plan
    assert plan.bound_bytes <= plan.planned_bytes <= SLACK * plan.bound_bytes
    assert plan.planned_bytes < plan.sum_bytes / 2


def test_inputs_results_and_views_keep_their_places() -> None:
    """``x`` is read last; ``first`` is a result; ``flat`` is a name of ``third``."""
    pool = QMaxPool((1, 1), (1, 1), (0, 0, 0, 0))
    names = ("x", "first", "second", "third")
    tensors = {n: Tensor(n, (1, 16, 4, 4), "int8") for n in names}
    tensors["flat"] = Tensor("flat", (1, 256), "int8")
    nodes = (
        Node("a", pool, ("x",), "first"), Node("b", pool, ("first",), "second"),
        Node("c", pool, ("x",), "third"), Node("d", Reshape((1, 256)), ("third",), "flat"),
    )  # fmt: skip
    graph = Graph("kept", ("x",), ("first", "flat"), nodes, tensors)
    part = Part(graph, nodes, graph.outputs)
    tracks = dict.fromkeys(names[1:], Track.VECTOR)
    offsets, plan = place_activations(part, tracks, PRESETS["16x16"])
    assert len({offsets[n] for n in ("x", "first", "second")}) == 3
    assert offsets["flat"] == offsets["third"] != offsets["first"]
    assert (plan.values, plan.sum_bytes) == (4, 4 * 256)
    assert plan.planned_bytes == plan.bound_bytes == 3 * 256


@pytest.mark.parametrize(("on", "places"), [("000", 2), ("010", 3), ("001", 3), ("011", 3)])
def test_operators_side_by_side_do_not_share(on: str, places: int) -> None:
    """A chain of three, and which of them may run at the same time, by their tracks."""
    pool = QMaxPool((1, 1), (1, 1), (0, 0, 0, 0))
    names = ("x", "first", "second", "y")
    nodes = tuple(Node(str(i), pool, (a,), b) for i, (a, b) in enumerate(pairwise(names)))
    tensors = {n: Tensor(n, (1, 16, 4, 4), "int8") for n in names}
    graph = Graph("chain", ("x",), ("y",), nodes, tensors)
    tracks = {name: Track(int(track)) for name, track in zip(names[1:], on, strict=True)}
    offsets, plan = place_activations(Part(graph, nodes, ("y",)), tracks, HW)
    assert plan.planned_bytes == plan.bound_bytes == places * 256
    for step, (a, b) in enumerate(pairwise(on)):
        read, written = names[step], names[step + 2]
        assert a == b or offsets[read] != offsets[written]


@pytest.mark.parametrize(("reads", "places"), [("first", 5), ("second", 4)])
def test_the_next_operator_of_the_other_track_may_be_farther_away(reads: str, places: int) -> None:
    """The last of three reads the result of one of the two before it: of the first one, while that
    and then the second still read ``x``; or of the second, when the first has ended."""
    pool = QMaxPool((1, 1), (1, 1), (0, 0, 0, 0))
    names = ("x", "first", "z", "second", "y")
    tensors = {n: Tensor(n, (1, 16, 4, 4), "int8") for n in names}
    nodes = (
        Node("0", pool, ("x",), "first"), Node("1", pool, ("z",), "second"),
        Node("2", pool, (reads,), "y"),
    )  # fmt: skip
    graph = Graph("apart", ("x", "z"), ("first", "second", "y"), nodes, tensors)
    tracks = {"first": Track.TENSOR, "second": Track.TENSOR, "y": Track.VECTOR}
    _, plan = place_activations(Part(graph, nodes, graph.outputs), tracks, HW)
    assert plan.planned_bytes == plan.bound_bytes == places * 256


def test_a_classifier_beside_does_not_overwrite_what_is_classified() -> None:
    """While the last means are missing, the product before them still reads its image."""
    pool = QMaxPool((1, 1), (1, 1), (0, 0, 0, 0))
    tracks = {"image": Track.TENSOR, "sum": Track.VECTOR, "mean": Track.MEAN}
    tracks["y"] = Track.CLASSIFIER
    names = ("x", *tracks)
    tensors = {n: Tensor(n, (1, 16, 4, 4), "int8") for n in names}
    nodes = tuple(Node(b, pool, (a,), b) for a, b in pairwise(names))
    graph = Graph("classifier", ("x",), ("y",), nodes, tensors)
    offsets, _ = place_activations(Part(graph, nodes, ("y",)), tracks, HW)
    assert len(set(offsets.values())) == len(names)


def test_a_program_with_reused_memory_computes_what_the_host_does() -> None:
    """Chained pools whose tensors take turns in two places."""
    pool = QMaxPool((3, 3), (1, 1), (1, 1, 1, 1))
    names = [f"t{i}" for i in range(7)]
    tensors = {n: Tensor(n, (1, 32, 9, 9), "int8") for n in names}
    nodes = [Node(f"n{i}", pool, (a,), b, "accel", "") for i, (a, b) in enumerate(pairwise(names))]
    graph = Graph("pools", (names[0],), (names[-1],), tuple(nodes), tensors)
    x = np.random.default_rng(0).integers(-128, 128, (1, 32, 9, 9)).astype(np.int8)
    from vdla.sim.model.core import simulate

    memory = MemoryParams.load("vta")
    compiled = build_for("sim", graph, HW, memory)
    assert compiled.program is not None
    plan = compiled.program.meta["memory_plan"]
    assert plan["planned_bytes"] * 7 == plan["sum_bytes"] * 2
    (found,) = compiled.run([x], lambda program, dram: simulate(program, dram, memory))
    (expected,) = build_for("cpu", graph, HW, memory).run_cpu([x])
    np.testing.assert_array_equal(found, expected)
