"""What cannot become an integer operator stays float on the CPU, says why, and still works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.passes import run_passes

SCALE = np.float32(0.5)


def dense(b: Any, weight: str, bias: str | None = None) -> str:
    b.input("x", [1, 2])
    operands = [b.qdq("x", 0.1, 3), weight, *([bias] if bias else [])]
    return b.qdq(b.node("Gemm", operands, "y"), 0.2, 1)


def good_weight(b: Any) -> str:
    return b.stored("w", np.eye(2, dtype=np.int8), SCALE)


def float_weight(b: Any) -> str:
    return dense(b, b.constant("w", np.eye(2, dtype=np.float32)))


def wrong_axis(b: Any) -> str:
    scales = np.array([0.5, 0.25], np.float32)
    return dense(b, b.stored("w", np.eye(2, dtype=np.int8), scales, axis=0))


def overflow(b: Any) -> str:
    huge = b.stored("b", np.full(2, 2**31 - 5, np.int32), np.float32(0.1) * SCALE)
    return dense(b, good_weight(b), huge)


def bias_too_large(b: Any) -> str:
    return dense(b, good_weight(b), b.constant("b", np.full(2, 1e9, np.float32)))


def other_scale(b: Any) -> str:
    b.input("x", [1, 1, 2, 2])
    y = b.node("MaxPool", [b.qdq("x", 0.1, 3)], "y", kernel_shape=[2, 2])
    return b.qdq(y, 0.2, 3)


def broadcast_add(b: Any) -> str:
    b.input("x", [1, 2])
    b.input("z", [1, 1])
    return b.qdq(b.node("Add", [b.qdq("x", 0.1, 3), b.qdq("z", 0.1, 3)], "y"), 0.2, 1)


def float_operand(b: Any) -> str:
    b.input("x", [1, 2])
    return b.qdq(b.node("Add", [b.qdq("x", 0.1, 3), "x"], "y"), 0.2, 1)


def addends_too_coarse(b: Any) -> str:
    x, z = (b.qdq(b.input(name, [1, 2]), 0.1, 3) for name in ("x", "z"))
    return b.qdq(b.node("Add", [x, z], "y"), 1e-9, 1)


REASONS: list[tuple[Callable[[Any], str], str]] = [
    (float_weight, "not dequantised from int8"),
    (wrong_axis, "scaled along axis 0, not along 1"),
    (overflow, "beyond int32"),
    (bias_too_large, "exceeds int32"),
    (other_scale, "different scales"),
    (broadcast_add, "different shapes"),
    (float_operand, "operand 'x' is not dequantised"),
    (addends_too_coarse, "more than int32 can hold"),
]


@pytest.mark.parametrize(("make", "reason"), REASONS, ids=lambda v: getattr(v, "__name__", None))
def test_stays_float(make: Callable[[Any], str], reason: str, builder: Any) -> None:
    graph = import_onnx(builder.model([make(builder)]))
    after = run_passes(graph)
    producer = after.producers()["y"]
    assert reason in producer.reason
    assert after.result(producer).dtype == "float32"
    rng = np.random.default_rng(0)
    x = [rng.uniform(-5, 5, graph[name].shape).astype(np.float32) for name in graph.inputs]
    assert np.array_equal(interpret(graph, *x)[0], interpret(after, *x)[0])


def test_float_bias_becomes_int32(builder: Any) -> None:
    bias = builder.constant("b", np.array([0.26, -1.0], np.float32))
    y = dense(builder, good_weight(builder), bias)
    after = run_passes(import_onnx(builder.model([y])))
    (stored,) = [t for t in after.tensors.values() if t.dtype == "int32"]
    assert stored.data is not None and stored.data.tolist() == [5, -20]
