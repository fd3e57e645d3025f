"""Element-wise operators on two tensors, on the vector unit: additions with factors of 32 bits, and
TensorFlow Lite's addition.

TensorFlow Lite rescales the operands of its addition with 40 bits; the vector unit has 32. So an
operand's factor is split into an integer and a fraction (``graph/arithmetic/lift.py``), which are
multiplied separately. The result is exact to the last bit, whatever the scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

import numpy as np

from ....choose.space import Knobs, KnobValue, Refusal
from ....choose.template import Plan
from ....graph.arithmetic.lift import FRACTION_BITS, Lift, lift
from ....graph.ir import Graph, Node
from ....graph.ops.integer import QAdd, QAddFixed
from ....te import Expr, Tensor, compute, create_schedule, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, row_cycles
from ..expressions import REQUANT_ENTRIES, Epilogue, attach, requantized, tile_row
from ..machine import Context, Machine
from .base import Tiled, Track, WithinBudget, blocked_shape, uniform_parameters


@dataclass(frozen=True)
class AdditionWorkload(WithinBudget):
    """An addition of ``entries`` vectors. ``steps`` instructions of the vector unit come before the
    requantisation, each with a temporary of its own."""

    entries: int
    steps: int
    context: Context


@dataclass(frozen=True)
class ScaledWorkload(AdditionWorkload):
    """``requantize(a * factors[0] + b * factors[1])``; an operand whose factor is 0 is not read."""

    factors: tuple[int, int] = field(compare=False)
    epilogue: Epilogue = field(compare=False)


@dataclass(frozen=True)
class LiftedWorkload(AdditionWorkload):
    """``requantize(lift(a) + lift(b))``, or the difference if ``subtract``."""

    lifts: tuple[Lift, Lift] = field(compare=False)
    subtract: bool = field(compare=False)
    epilogue: Epilogue = field(compare=False)


A = TypeVar("A", bound=AdditionWorkload)


class _Addition(Tiled[A]):
    """``size`` vectors at a time, on alternating virtual threads."""

    track = Track.VECTOR

    def sizes(self, workload: A) -> Mapping[str, Sequence[KnobValue]]:
        budget = workload.context.budget
        most = min(workload.entries, budget.out, budget.inp)
        return {"size": range(1, most + 1), "vthreads": VTHREADS}

    def needs(self, workload: A, knobs: Knobs) -> Mapping[str, int]:
        entries = int(knobs["size"]) * int(knobs["vthreads"])
        return {
            "tmp": entries * workload.steps, "out": entries, "inp": 2 * entries,
            "par": REQUANT_ENTRIES * int(knobs["vthreads"]),
        }  # fmt: skip

    def plan(self, workload: A, fixed: Knobs) -> Plan | Refusal:
        """As many vectors at a time as fit. The number of virtual threads is the planner's, or less
        where there is no room for a vector of each."""
        budget = workload.context.budget
        room = min(budget.tmp // workload.steps, budget.out, budget.par // REQUANT_ENTRIES)
        vthreads = int(fixed.get("vthreads", min(self.machine.vthreads, room)))
        if not vthreads:
            return Refusal(
                f"the addition needs {workload.steps} entries of tmp and {REQUANT_ENTRIES} of par, "
                f"got {budget.tmp} and {budget.par}"
            )
        sizes = (budget.tmp // (workload.steps * vthreads), budget.out // vthreads)
        size = min(workload.entries, *sizes, budget.inp // (2 * vthreads))
        knobs = {"size": int(fixed.get("size", size)), "vthreads": vthreads}
        reason = budget.lack(self.needs(workload, knobs)) or ("" if knobs["size"] else "no room")
        if reason:
            return Refusal(f"{reason} with {vthreads} virtual threads")
        return Plan(knobs, self.predict(workload, knobs))

    def predict(self, workload: A, knobs: Knobs) -> int:
        """The vector unit passes over the vectors once for each step, and once for the
        requantisation."""
        size, vthreads = int(knobs["size"]), int(knobs["vthreads"])
        return row_cycles(workload.entries, size, workload.steps + 1, 2, vthreads, self.machine)


class ScaledAddition(_Addition[ScaledWorkload]):
    """An addition whose factors fit int32."""

    name = "addition"
    ops = (QAdd,)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "on the vector unit"

    def workload(self, graph: Graph, node: Node, context: Context) -> ScaledWorkload:
        op = node.op_as(QAdd)
        entries = prod(blocked_shape(graph[node.inputs[0]].shape, self.machine))
        factors, epilogue = (op.mult_a, op.mult_b), Epilogue(op.zero_point, op.lo, op.hi)
        return ScaledWorkload(entries, 2, context, factors, epilogue)

    def schedule(self, workload: ScaledWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: a, b, par ([1, 3, block]: constant, 1, shift), out."""
        shape = _row(workload.entries, self.machine)
        a, b = placeholder(shape, "int8", "a"), placeholder(shape, "int8", "b")
        factors = workload.factors
        operands = [(a, factors[0], "left"), (b, factors[1], "right")]
        if not any(factors):
            operands = [(a, 1, "left")]
        terms = {x: _scaled(x, factor, label) for x, factor, label in operands if factor}

        def rule(*i: Expr) -> Expr:
            left, *right = (term[i] for term in terms.values())
            if right:
                return left + right[0]
            # The vector unit cannot write a constant; a value less itself is 0.
            return left if any(factors) else left - left

        total = compute(shape, rule, "total")
        readers = {x: [term] for x, term in terms.items()}
        return _lowered(
            name, (a, b), readers, list(terms.values()), total, workload.epilogue, knobs
        )  # fmt: skip

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op_as(QAdd)
        return {"requantisation": uniform_parameters(op.const, 1, op.shift, self.machine)}


class LiftedAddition(_Addition[LiftedWorkload]):
    """TensorFlow Lite's addition, step by step."""

    name = "lifted addition"
    ops = (QAddFixed,)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        a, b = graph.operands(node)
        if a.shape != b.shape:
            return Refusal("broadcasting")
        assert isinstance(node.op, QAddFixed)
        if _lifts(node.op) is None:
            return Refusal("scales too far apart")
        return "on the vector unit, the factors in two parts"

    def workload(self, graph: Graph, node: Node, context: Context) -> LiftedWorkload:
        op = node.op_as(QAddFixed)
        found, entries = _lifts(op), prod(blocked_shape(graph[node.inputs[0]].shape, self.machine))
        assert found is not None
        steps = sum(map(_step_count, found))
        epilogue = Epilogue.from_requant(op.requant)
        return LiftedWorkload(entries, steps, context, found, op.subtract, epilogue)

    def schedule(self, workload: LiftedWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: a, b, par ([1, 3, block]: 0, multiplier, shift), out."""
        shape = _row(workload.entries, self.machine)
        a, b = placeholder(shape, "int8", "a"), placeholder(shape, "int8", "b")
        left, right = (_steps(x, found) for x, found in zip((a, b), workload.lifts, strict=True))
        first, second = left[-1], right[-1]

        def rule(*i: Expr) -> Expr:
            return first[i] - second[i] if workload.subtract else first[i] + second[i]

        total = compute(shape, rule, "total")
        readers = {x: [t for t in own if x in t.inputs] for x, own in ((a, left), (b, right))}
        return _lowered(
            name, (a, b), readers, [*left, *right], total, workload.epilogue, knobs
        )  # fmt: skip

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        op = node.op_as(QAddFixed)
        multiplier, shift = int(op.requant.multiplier[0]), int(op.requant.shift[0])
        return {"requantisation": uniform_parameters(0, multiplier, shift, self.machine)}


#: The templates of this file.
ELEMENTWISE = (ScaledAddition, LiftedAddition)


def _row(entries: int, machine: Machine) -> tuple[int, ...]:
    return (1, 1, entries, machine.params.batch, machine.params.block)


def _scaled(x: Tensor, factor: int, label: str) -> Tensor:
    return compute(x.shape, lambda c, y, w, n, i: x[c, y, w, n, i].astype("int32") * factor, label)


def _lowered(
    name: str,
    operands: tuple[Tensor, Tensor],
    readers: Mapping[Tensor, list[Tensor]],
    steps: list[Tensor],
    total: Tensor,
    epilogue: Epilogue,
    knobs: Knobs,
) -> PrimFunc:
    """The loop program, tile by tile: operands in ``inp``, ``steps`` in ``tmp``, and their
    requantised ``total``. Its parameters are loaded once.
    """
    block = total.shape[-1]
    par = placeholder((1, REQUANT_ENTRIES, block), "int32", "param")
    out = requantized(total, par, epilogue, per_channel=False)
    s = create_schedule(out)
    local = s.cache_write(out, "out")
    s[total].compute_inline()
    tiles = [s.cache_read(x, "inp", reading) for x, reading in readers.items()]
    s.cache_read(par, "par", [local])
    tile = tile_row(s[out], int(knobs["size"]), int(knobs["vthreads"]))
    scopes = dict.fromkeys(steps, "tmp") | dict.fromkeys(tiles, "inp")
    attach(s, scopes | {local: "out"}, s[out], tile)
    return lower(s, [*operands, par, out], name)


# ---- TensorFlow Lite's operands ------------------------------------------------------------------


def _lifts(op: QAddFixed) -> tuple[Lift, Lift] | None:
    """The lifts that equal the rescaled first and second operand for every value; None if there are
    none.
    """
    first = lift(op.zero_a, op.mult_a, op.shift_a)
    second = lift(op.zero_b, op.mult_b, op.shift_b)
    return (first, second) if first and second else None


def _step_count(found: Lift) -> int:
    """How many instructions :func:`_steps` makes."""
    return 1 + 4 * bool(found.low) + bool(found.offset) + 4 * bool(found.shift)


def _steps(x: Tensor, found: Lift) -> list[Tensor]:
    """The instructions of an operand, one tensor each; the last one is the result."""
    steps: list[Tensor] = []

    def step(rule: Callable[[tuple[Expr, ...]], Expr]) -> Tensor:
        steps.append(compute(x.shape, lambda *i: rule(i), f"{x.name}{len(steps)}"))
        return steps[-1]

    high = step(lambda i: x[i].astype("int32") * found.high)
    if found.low:
        low = step(lambda i: x[i].astype("int32") * found.low)
        biased = step(lambda i: low[i] + found.rest)
        shifted = step(lambda i: biased[i] >> FRACTION_BITS)
        whole = step(lambda i: high[i] + shifted[i])
    else:
        whole = high
    product = step(lambda i: whole[i] + found.offset) if found.offset else whole
    if found.shift:
        sign = step(lambda i: product[i] >> 31)  # ties away from zero: one less where negative
        lowered = step(lambda i: product[i] + sign[i])
        nudged = step(lambda i: lowered[i] + (1 << (found.shift - 1)))
        step(lambda i: nudged[i] >> found.shift)
    return steps
