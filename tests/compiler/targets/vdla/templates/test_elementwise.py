"""Additions whose operands have scales so far apart that one adds nothing, or are one tensor; sums
of more than two, and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.integer import QAdd
from vdla.isa.memory import MemoryParams
from vdla.isa.params import HwParams
from vdla.sim.model.core import simulate

from ....building import build_for
from ....quantize.peers import peer

MEMORY = MemoryParams()
#: Of an operand that adds nothing to a sum with a scale of about 0.1.
TINY = 1e-12


@pytest.mark.fast(1)
@pytest.mark.parametrize("zeros", [(0, 0, 0), (7, -9, 3)])
@pytest.mark.parametrize("scales", [(0.05, TINY), (TINY, 0.05), (TINY, TINY), (0.05, 0.07)])
def test_operands_of_any_scale(
    scales: tuple[float, float], zeros: tuple[int, int, int], builder: Any
) -> None:
    shape = [1, 16, 5, 7]
    operands = [
        builder.qdq(builder.input(name, shape), scale, zero)
        for name, scale, zero in zip("ab", scales, zeros, strict=False)
    ]
    total = builder.node("Add", operands, "sum")
    model = builder.model([builder.qdq(total, 0.1, zeros[2])])
    arrays = [np.random.default_rng(i).normal(0, 5 * s, shape) for i, s in enumerate(scales)]
    check(model, [array.astype(np.float32) for array in arrays])


@pytest.mark.parametrize("scale", [0.05, TINY])
def test_a_tensor_added_to_itself(scale: float, builder: Any) -> None:
    shape = [1, 16, 5, 7]
    x = builder.qdq(builder.input("a", shape), scale, 3)
    model = builder.model([builder.qdq(builder.node("Add", [x, x], "sum"), 0.1, -5)])
    check(model, [np.random.default_rng(0).normal(0, 5 * scale, shape).astype(np.float32)])


#: Operators between operands a, b, .., whose results are named by digits.
SUMS = {
    "three": ["Add a b", "Add 0 c"],
    "three, the first one last": ["Add b c", "Add a 0"],
    "five": ["Add a b", "Add c d", "Add 0 1", "Add 2 e"],
    "a difference": ["Sub a b"],
    "less a difference": ["Sub a b", "Sub c 0"],
    "less a sum": ["Add a b", "Sub c 0", "Sub 1 a"],
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_and_differences(case: str, builder: Any) -> None:
    """One operator. ONNX Runtime, which adds floats, is within a step."""
    shape, rng = [1, 16, 5, 7], np.random.default_rng(0)
    names = sorted({name for step in SUMS[case] for name in step.split()[1:] if name.isalpha()})
    known, arrays = {}, []
    for i, name in enumerate(names):
        known[name] = builder.qdq(builder.input(name, shape), 0.0213 * 3.7**-i, 3 - i)
        arrays.append(rng.normal(0, 3.7**-i, shape).astype(np.float32))
    for i, step in enumerate(SUMS[case]):
        kind, *operands = step.split()
        known[str(i)] = builder.node(kind, [known[x] for x in operands], f"step{i}")
    model = builder.model([builder.qdq(known[str(len(SUMS[case]) - 1)], 0.0317, -7)])
    check(model, arrays)
    [got] = build_for("cpu", model, HwParams(), MEMORY).run(arrays, lambda program, dram: None)
    far = np.abs(got - peer(model, **dict(zip(names, arrays, strict=True)))) / 0.0317
    assert far.max() < 1.01 and (far < 0.01).mean() > 0.99


def test_a_constant_among_three_addends(builder: Any) -> None:
    """Is added in float."""
    shape = [1, 16, 5, 7]
    a, b = (builder.qdq(builder.input(name, shape), 0.02, 3) for name in "ab")
    c = builder.qdq(builder.constant("c", np.ones(shape, np.float32)), 0.02, 3)
    total = builder.node("Add", [builder.node("Add", [a, c], "first"), b], "sum")
    model = builder.model([builder.qdq(total, 0.05, -5)])
    arrays = [np.random.default_rng(i).normal(0, 1, shape).astype(np.float32) for i in range(2)]
    [y] = build_for("sim", model, HwParams(), MEMORY).run(arrays, lambda program, dram: None)
    np.testing.assert_allclose(y, peer(model, a=arrays[0], b=arrays[1]), atol=1e-6)


def check(model: Any, inputs: list[np.ndarray]) -> None:
    """The addition runs on the accelerator, and gives the values that the graph means."""
    compiled = build_for("sim", model, HwParams(), MEMORY)
    assert any(isinstance(node.op, QAdd) for node in compiled.graph.nodes)
    assert [layer.target for layer in compiled.layers if layer.op == "QAdd"] == ["accel"]
    found = compiled.run(inputs, lambda program, dram: simulate(program, dram, MEMORY))
    for mine, wanted in zip(found, interpret(compiled.graph, *inputs), strict=True):
        np.testing.assert_array_equal(mine, wanted)
