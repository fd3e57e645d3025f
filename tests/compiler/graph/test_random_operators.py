"""Families of operators behind operators of other families: the machine code computes what ONNX
Runtime does, the accelerator what the machine code does.

Two cases of each, or as many as ``VDLA_FUZZ`` says (``make operators`` runs 300). Every case has a
number, and is the same each time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.passes import GRAPH_PASSES, run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu

from .random_graphs import RandomGraph, Skip, Value
from .random_operators import (
    MAKERS,
    Maker,
    again,
    arg,
    cast,
    compare,
    dynamic,
    integer_product,
    integers,
    logic,
    one_hot,
    quantized_operator,
    undone,
    where,
    window,
)
from .test_fuzz_graphs import Case, agree, same_on_the_accelerator, takes_some

CASES = int(os.environ.get("VDLA_FUZZ", "2"))
#: How often a family is tried on other values.
TRIES = 500
#: After so many tries all late values may be of a kind that does not fit: they are made anew.
AFRESH = 25


class NumberedGraph(RandomGraph):
    """A random graph that is the same for the same number."""

    def __init__(self, number: int):
        super().__init__(lambda strategy: None, np.random.default_rng(number))
        self.random = Random(number)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Skip
        return self.random.choice(list(options))


# ---- images of whole blocks of channels ----


def image(g: RandomGraph) -> Value:
    g.input(g.integer(1, 2), 16, g.integer(1, 6), g.integer(1, 6))
    return g.values[-1]


def blocked_conv(g: RandomGraph) -> None:
    x = image(g)
    where, out = window(g, x), g.choice((16, 16, 5, 32))
    groups = g.choice((1, 1, 16))
    if groups == 16:
        out = 16
    weight = g.constant(g.floats(out, 16 // groups, *where["kernel_shape"]))
    bias = [g.constant(g.floats(out))][: g.integer(0, 1)]
    y = g.apply("Conv", [x, weight, *bias], group=groups, **where)
    if g.integer(0, 1):
        y = g.apply("Add", [y, g.constant(g.floats(1, out, 1, 1))])
    if g.integer(0, 1):
        g.apply("Relu", [y])


def blocked_transpose(g: RandomGraph) -> None:
    x = image(g)
    where, out = window(g, x), g.choice((16, 3))
    weight = g.constant(g.floats(16, out, *where["kernel_shape"]))
    g.apply("ConvTranspose", [x, weight], **where)


def blocked_pool(g: RandomGraph) -> None:
    x = image(g)
    weight = g.constant(g.floats(16, 16, 1, 1))
    y = g.apply("Conv", [x, weight])
    kind = g.choice(("MaxPool", "AveragePool", "GlobalAveragePool"))
    g.apply(kind, [y], **({} if kind.startswith("Global") else window(g, y)))


def packed_dense(g: RandomGraph) -> None:
    turned, size, features = g.integer(0, 1), g.integer(1, 70), g.choice((1, 16, 20, 48, 90))
    g.input(g.integer(1, 4), size)
    x, weight = g.values[-1], g.floats(*((features, size) if turned else (size, features)))
    g.apply("Gemm", [x, g.constant(weight), g.constant(g.floats(features))], transB=turned)


#: Those that need other operators before them, or whose results nobody may compare.
NOT_ALONE = (again, undone, dynamic)
OTHERS = (blocked_conv, blocked_transpose, blocked_pool, packed_dense)
FAMILIES: dict[str, Maker] = {
    maker.__name__: maker for maker in (*MAKERS, *OTHERS) if maker not in NOT_ALONE
}


#: Where the values come from that a family reads.
SOURCES: dict[Maker, Maker] = {
    logic: compare, where: compare, integers: cast, one_hot: arg, integer_product: cast,
}  # fmt: skip


def made(family: Maker, number: int) -> Case:
    """A graph whose results are those of one maker, on values that others may have made."""
    g = NumberedGraph(number)
    g.input(1, 4, g.integer(2, 6), g.integer(2, 6))
    g.input(g.integer(1, 3), g.integer(1, 6))
    g.input(g.integer(1, 3), g.integer(1, 3), g.integer(1, 4))
    for attempt in range(TRIES):
        if attempt % AFRESH == 0:
            g.nodes, g.values = [], list(g.inputs)
        nodes, values, inputs = len(g.nodes), list(g.values), list(g.inputs)
        maker = g.choice((family, family, SOURCES.get(family, family), g.choice(MAKERS)))
        try:
            maker(g)
        except Skip:
            del g.nodes[nodes:]
            g.values, g.inputs = values, inputs
            continue
        results = [v for v in g.values if v not in values and v not in g.inputs]
        if maker is family and results:
            return Case(g.model(results), [v.array for v in g.inputs], results, ())
    raise AssertionError(f"{family.__name__} fits none of {TRIES} random values")


def check(family: Maker, number: int) -> bool:
    """One case; whether some of it ran on the accelerator."""
    case = made(family, number)
    graph = run_passes(import_onnx(case.model), GRAPH_PASSES)
    got = build_cpu(graph).run(*(case.inputs[int(name[1:])] for name in graph.inputs))
    for value, array in zip(case.expected, got, strict=True):
        agree(value, array, ["all"])
    on_accelerator = takes_some(graph)
    if on_accelerator:
        same_on_the_accelerator(graph, case, got)
    return on_accelerator


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_operator(name: str) -> None:
    for number in range(CASES):
        try:
            check(FAMILIES[name], number)
        except Exception as error:
            error.add_note(f"case {number}")
            raise


@pytest.mark.slow
def test_quantised_operators_on_the_accelerator() -> None:
    """The family that the accelerator takes; of others, few cases have such operators."""
    assert sum(check(quantized_operator, number) for number in range(12)) >= 4
