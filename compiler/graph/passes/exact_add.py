"""Turn TensorFlow Lite's addition into the accelerator's, where the two agree everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arithmetic.fixed_point import ADD_SHIFT
from ..arithmetic.requant import INT8_MAX, INT8_MIN
from ..ir import Graph
from ..ops.integer import QAdd, QAddFixed

INT32_LIMIT = 2**31
#: How far a multiplier may be from the nearest one.
REACH = 3


def exact_add(graph: Graph) -> Graph:
    """Replace each QAddFixed of equal shapes by a QAdd with the same result for all 65,536 pairs of
    operands, where there is one.

    QAdd rounds once where QAddFixed rounds three times; both are within 2**-17 of the real sum, and
    the multipliers and the constant of QAdd are chosen such that no pair falls between them.
    """
    nodes = []
    for node in graph.nodes:
        a, *rest = graph.operands(node)
        if isinstance(node.op, QAddFixed) and a.shape == rest[0].shape:
            node = replace(node, op=equal_add(node.op) or node.op)
        nodes.append(node)
    return graph.with_nodes(nodes)


def equal_add(op: QAddFixed) -> QAdd | None:
    """The QAdd that equals ``op`` for every pair of int8 operands, or None."""
    a, b = np.meshgrid(*[np.arange(INT8_MIN, INT8_MAX + 1)] * 2, indexing="ij")
    requant = op.requant
    y = op.evaluate(a.astype(np.int8), b.astype(np.int8)).astype(np.int64)
    steps = y - requant.zero_point
    ratios = _ratios(op)
    for shift in range(30, 0, -1):
        nearest = [round(ratio * 2**shift) for ratio in ratios]
        largest = sum(128 * abs(m) for m in nearest)
        offset = abs(op.zero_a * nearest[0] + op.zero_b * nearest[1])
        if largest + offset + 2**shift < INT32_LIMIT:
            break
    else:
        return None
    for mult_a, mult_b in _near(*nearest):
        # floor((total + c) / 2**shift) == steps, and any value beyond a clamp's is as good.
        total = a * mult_a + b * mult_b
        low = np.where(y == requant.lo, -(2**62), (steps << shift) - total).max()
        high = np.where(y == requant.hi, 2**62, ((steps + 1) << shift) - total).min() - 1
        if low < high:
            # In the middle: not on ``low``, where half to even might differ from half up.
            const = int((low + high + 1) // 2) - 2 ** (shift - 1)
            if 128 * (abs(mult_a) + abs(mult_b)) + abs(const) + 2**shift < INT32_LIMIT:
                bounds = requant.zero_point, requant.lo, requant.hi
                return QAdd((mult_a, mult_b), shift, const, *bounds)
    return None


def _ratios(op: QAddFixed) -> tuple[float, float]:
    """Real factors of the operands: QAddFixed lifts them by 20 bits and rescales twice."""
    scale = _real(int(op.requant.multiplier[0]), int(op.requant.shift[0])) * 2.0**ADD_SHIFT
    second = -1 if op.subtract else 1
    return (scale * _real(op.mult_a, op.shift_a), second * scale * _real(op.mult_b, op.shift_b))


def _real(multiplier: int, shift: int) -> float:
    return multiplier / 2.0 ** (31 + shift)


def _near(a: int, b: int) -> list[tuple[int, int]]:
    """Pairs of multipliers around the nearest, in order of distance."""
    steps = range(-REACH, REACH + 1)
    around = sorted(((i, j) for i in steps for j in steps), key=lambda s: abs(s[0]) + abs(s[1]))
    return [(a + i, b + j) for i, j in around]
