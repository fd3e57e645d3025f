"""The verifier's findings and the printer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vdla.compiler.graph.ir import Graph, Node, Tensor, dump
from vdla.compiler.graph.ops.elementwise import Relu
from vdla.compiler.graph.ops.linear import Dense
from vdla.compiler.graph.ops.pooling import QMaxPool
from vdla.compiler.graph.verify import verify
from vdla.isa.errors import VdlaError


@pytest.fixture
def graph() -> Graph:
    """relu(x @ w)."""
    tensors = [
        Tensor("x", (1, 3), "float32"),
        Tensor.constant("w", np.arange(6, dtype=np.float32).reshape(3, 2)),
        Tensor("h", (1, 2), "float32"),
        Tensor("y", (1, 2), "float32"),
    ]
    nodes = (Node("dense", Dense(False), ("x", "w"), "h"), Node("relu", Relu(), ("h",), "y"))
    return Graph("tiny", ("x",), ("y",), nodes, {t.name: t for t in tensors})


def test_dump(graph: Graph) -> None:
    verify(graph)
    assert dump(graph).splitlines() == [
        "graph tiny",
        "  input  x: float32[1,3]",
        "  const  w: float32[3,2] #e2c0a715",
        "  h: float32[1,2] = Dense 'dense'(x, w) {transposed=False, lo=-inf, hi=inf}",
        "  y: float32[1,2] = Relu 'relu'(h)",
        "  output y",
    ]


def changed(graph: Graph, **tensor: Any) -> Graph:
    """The graph with attributes of the tensor ``h`` replaced."""
    return graph.with_nodes(list(graph.nodes), replace(graph["h"], **tensor))


def test_verify_finds(graph: Graph) -> None:
    dense, relu = graph.nodes
    w = Tensor("w", (2, 3), "float32", graph["w"].data)
    broken: list[tuple[Graph, str]] = [
        (graph.with_nodes([relu, dense]), "node 'relu': input 'h' is not defined before it"),
        (graph.with_nodes([dense, dense, relu]), "its output 'h' is defined before"),
        (graph.with_nodes([dense]), "output 'y' is not computed"),
        (
            changed(graph, shape=(1, 4)),
            r"Dense gives float32\[1, 2\], but 'h' is declared float32\[1,4\]",
        ),
        (changed(graph, dtype="int8"), "but 'h' is declared int8"),
        (graph.with_nodes([dense, relu], w), "constant 'w' is declared"),
        (replace(graph, tensors={**graph.tensors, "z": graph["x"]}), "filed under 'z'"),
        (
            graph.with_nodes([dense, replace(relu, op=QMaxPool((1, 1), (1, 1), (0, 0, 0, 0)))]),
            "node 'relu': QMaxPool expects",
        ),
    ]
    for wrong, message in broken:
        with pytest.raises(VdlaError, match=message):
            verify(wrong)
