"""Neighbours change places where the second one is needed earlier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from vdla.bench.net import Net
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.graph.verify import verify
from vdla.compiler.targets.vdla.machine import HOST
from vdla.compiler.targets.vdla.rewrite.order_by_first_use import order_by_first_use

from ....building import placed


def shortcut() -> Graph:
    """Two convolutions of one image: the second one has a reader at once, the first one at the
    end."""
    net = Net("shortcut")
    x = net.input(1, 16, 6, 6)
    late, soon = net.conv(x, 16, 1), net.conv(x, 16, 3)
    net.output(net.add(net.conv(soon, 16, 1), late))
    return placed(run_passes(import_onnx(net.model())))


def convolutions(graph: Graph) -> list[str]:
    return [node.output for node in graph.nodes if isinstance(node.op, QConv2d)]


def test_what_is_read_at_the_end_is_computed_later() -> None:
    graph = shortcut()
    late, soon, last = convolutions(graph)
    moved = order_by_first_use(graph)
    verify(moved)
    assert convolutions(moved) == [soon, late, last]
    x = np.random.default_rng(0).normal(0, 2, (1, 16, 6, 6)).astype(np.float32)
    for a, b in zip(interpret(graph, x), interpret(moved, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_then_nothing_changes() -> None:
    moved = order_by_first_use(shortcut())
    assert order_by_first_use(moved).nodes == moved.nodes


def test_operators_of_the_host_stay() -> None:
    graph = shortcut()
    first = convolutions(graph)[0]
    nodes = [replace(n, target=HOST) if n.output == first else n for n in graph.nodes]
    kept = graph.with_nodes(nodes)
    assert order_by_first_use(kept).nodes == kept.nodes
