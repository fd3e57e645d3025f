"""Plans are compared with a few of the layers that a network repeats."""

from __future__ import annotations

import pytest
from vdla.bench.net import Net
from vdla.compiler.build import build
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.elementwise import Add
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.plan.planner import Planner
from vdla.compiler.targets.vdla.plan.repeats import LEFT, without_repeats
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams


def chain(layers: int) -> Graph:
    """Layers of two nodes: ``a`` adds the tensor before it to itself, ``b`` adds the two tensors
    before it. The first layer reads the input of the graph."""
    tensors = [Tensor("x", (4,), "int8")]
    nodes: list[Node] = []
    for index in range(2 * layers):
        inputs = tensors[-1].name, tensors[-1 - index % 2].name
        name = f"{'ab'[index % 2]}{index // 2}"
        nodes.append(Node(name, Add(), inputs, name))
        tensors.append(Tensor(name, (4,), "int8"))
    named = {tensor.name: tensor for tensor in tensors}
    return Graph("chain", ("x",), (nodes[-1].output,), tuple(nodes), named)


def kinds_of(graph: Graph) -> list[str]:
    return [node.name[0] for node in graph.nodes]


@pytest.mark.parametrize("layers", [LEFT - 1, LEFT, LEFT + 1, 5 * LEFT])
def test_repeated_layers_are_removed_but_for_six(layers: int) -> None:
    graph = chain(layers)
    found = without_repeats(graph, kinds_of(graph))
    assert [node.name for node in found.nodes] == [
        node.name for node in graph.nodes[: 2 * min(layers, LEFT + 1)]
    ]
    assert found.outputs == (found.nodes[-1].output,)


def test_what_comes_behind_reads_the_last_layer() -> None:
    graph = chain(LEFT + 4)
    end = Node("end", Add(), (graph.outputs[0], f"a{LEFT + 1}"), "end")
    graph = graph.with_nodes([*graph.nodes, end], Tensor("end", (4,), "int8"))
    found = without_repeats(graph, [*kinds_of(graph)[:-1], "end"])
    assert found.nodes[-1].inputs == (f"b{LEFT}", f"a{LEFT}")
    defined = {"x"}
    for node in found.nodes:
        assert defined.issuperset(node.inputs)
        defined.add(node.output)


def test_other_kinds_are_no_repetition() -> None:
    graph = chain(3 * LEFT)
    numbered = [f"{kind}{index // 2}" for index, kind in enumerate(kinds_of(graph))]
    assert without_repeats(graph, numbered) is graph


def test_tensors_at_other_distances_are_no_repetition() -> None:
    """``b`` reads the ``a`` of another layer, at a distance that changes from layer to layer."""
    graph = chain(3 * LEFT)
    nodes = list(graph.nodes)
    for layer in range(3 * LEFT):
        a, b = nodes[2 * layer : 2 * layer + 2]
        nodes[2 * layer + 1] = Node(b.name, b.op, (a.output, f"a{2 * layer % 7}"), b.output)
    graph = graph.with_nodes(nodes)
    assert without_repeats(graph, kinds_of(graph)) is graph


def test_a_network_is_planned_with_a_few_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its layers are in the program. One with knobs of its own is not taken for others."""
    net = Net("deep")
    image = net.input(1, 16, 4, 4)
    for _ in range(2 * LEFT):
        image = net.conv(image, 16, 1)
    net.output(image)
    seen: set[int] = set()

    def cycles(_: Planner, graph: Graph, __: Chooser) -> float:
        seen.add(sum("conv" in node.name for node in graph.nodes))
        return 1000.0

    monkeypatch.setattr(Planner, "_simulated", cycles)
    target = find_target("sim", Options(HwParams(), MEMORY_PRESETS["vta"]))
    found = build(net.model(), target)
    convolutions = [layer.name for layer in found.layers if "conv" in layer.name]
    assert seen == {LEFT} and len(convolutions) == 2 * LEFT
    seen.clear()
    build(net.model(), target, knobs={convolutions[LEFT]: {"wgt_eighths": 4}})
    assert seen == {2 * LEFT}
