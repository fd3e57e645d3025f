"""Element-wise operators on tensors of one shape, on the vector unit: sums with factors of 32 bits,
and TensorFlow Lite's addition.

TensorFlow Lite rescales the operands of its addition with 40 bits; the vector unit has 32. So an
operand's factor is split into an integer and a fraction (``graph/arithmetic/lift.py``), which are
multiplied separately. The result is exact to the last bit, whatever the scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ....choose.space import Knobs, KnobValue, Refusal
from ....choose.template import Plan
from ....graph.arithmetic.lift import FRACTION_BITS, Lift, lift
from ....graph.ir import Graph, Node
from ....graph.ops.integer import QAdd, QAddFixed, QMul
from ....te import Expr, Tensor, compute, create_schedule, placeholder
from ....tir.ir import PrimFunc
from ....tir.lower import lower
from ..cost.tiling import VTHREADS, even_sizes, row_cycles
from ..expressions import REQUANT_ENTRIES, Epilogue, attach, requantized, split_tiles, vthread_tiles
from ..machine import Context
from .base import Tiled, Track, WithinBudget, blocked_shape, uniform_parameters


@dataclass(frozen=True)
class AdditionWorkload(WithinBudget):
    """``requantize(lift(a) + lift(b) + ..)`` of ``entries`` vectors, or the difference of two if
    ``subtract``. ``steps`` instructions of the vector unit come before the requantisation, each
    with a temporary of its own. An operand without a lift adds nothing, and is not read.
    """

    entries: int
    steps: int
    context: Context
    lifts: tuple[Lift | None, ...] = field(compare=False)
    subtract: bool = field(compare=False)
    epilogue: Epilogue = field(compare=False)
    operands: int = field(default=2, kw_only=True)


class Addition(Tiled[AdditionWorkload]):
    """``size`` vectors at a time, on alternating virtual threads."""

    name = "addition"
    ops = (QAdd, QAddFixed)
    track = Track.VECTOR

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        if isinstance(node.op, QAdd):
            return "on the vector unit"
        a, b = graph.operands(node)
        if a.shape != b.shape:
            return Refusal("broadcasting")
        if None in _lifts(node.op_as(QAddFixed)):
            return Refusal("scales too far apart")
        return "on the vector unit, the factors in two parts"

    def workload(self, graph: Graph, node: Node, context: Context) -> AdditionWorkload:
        entries = prod(blocked_shape(graph[node.inputs[0]].shape, self.machine))
        if isinstance(node.op, QAdd):
            op, subtract = node.op, False
            lifts = tuple(map(_product, op.factors))
            epilogue = Epilogue(op.zero_point, op.lo, op.hi)
        else:
            op = node.op_as(QAddFixed)
            lifts, subtract, epilogue = _lifts(op), op.subtract, Epilogue.from_requant(op.requant)
        x = placeholder((1,), "int8", "x")
        # There is room for an operand that adds nothing, and for sums of the first operands.
        steps = sum(1 if found is None else len(_steps(x, found)) for found in lifts)
        steps += len(lifts) - 2
        return AdditionWorkload(
            entries, steps, context, lifts, subtract, epilogue, operands=len(lifts)
        )

    def sizes(self, workload: AdditionWorkload) -> Mapping[str, Sequence[KnobValue]]:
        budget = workload.context.budget
        most = min(workload.entries, budget.out, budget.inp)
        return {"size": range(1, most + 1), "vthreads": VTHREADS}

    def needs(self, workload: AdditionWorkload, knobs: Knobs) -> Mapping[str, int]:
        entries = int(knobs["size"]) * int(knobs["vthreads"])
        return {
            "tmp": entries * workload.steps, "out": entries, "inp": workload.operands * entries,
            "par": REQUANT_ENTRIES * int(knobs["vthreads"]),
        }  # fmt: skip

    def plan(self, workload: AdditionWorkload, fixed: Knobs) -> Plan | Refusal:
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
        size = min(workload.entries, *sizes, budget.inp // (workload.operands * vthreads))
        knobs = {"size": int(fixed.get("size", size)), "vthreads": vthreads}
        reason = budget.lack(self.needs(workload, knobs)) or ("" if knobs["size"] else "no room")
        if reason:
            return Refusal(f"{reason} with {vthreads} virtual threads")
        return Plan(knobs, self.predict(workload, knobs))

    def predict(self, workload: AdditionWorkload, knobs: Knobs) -> int:
        """The vector unit passes over the vectors once for each step, and once for the
        requantisation."""
        size, vthreads = int(knobs["size"]), int(knobs["vthreads"])
        passes, operands = workload.steps + 1, workload.operands
        return row_cycles(workload.entries, size, passes, operands, vthreads, self.machine)

    def schedule(self, workload: AdditionWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: a, b, .., par ([1, 3, block]: bias, multiplier, shift), out. Tile by tile,
        operands are in ``inp``, and steps in ``tmp``. Parameters are loaded once."""
        params = self.machine.params
        shape = (1, 1, workload.entries, params.batch, params.block)
        operands = [placeholder(shape, "int8", f"x{i}_") for i in range(workload.operands)]
        lifts = dict(zip(operands, workload.lifts, strict=True))
        terms = {x: _steps(x, found) for x, found in lifts.items() if found is not None}
        # The vector unit cannot write a constant; a value less itself is 0.
        is_zero = not terms
        if is_zero:
            terms = {operands[0]: _steps(operands[0], Lift(1, 0, 0, 0, 0))}

        first, *others = (own[-1] for own in terms.values())
        sums: list[Tensor] = []
        for x in others[:-1]:
            first = _sum(first, x)
            sums.append(first)

        def rule(*i: Expr) -> Expr:
            if is_zero:
                return first[i] - first[i]
            if not others:
                return first[i]
            return first[i] - others[-1][i] if workload.subtract else first[i] + others[-1][i]

        total = compute(shape, rule, "total")
        par = placeholder((1, REQUANT_ENTRIES, params.block), "int32", "param")
        out = requantized(total, par, workload.epilogue, per_channel=False)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        s[total].compute_inline()
        scopes = {step: "tmp" for own in (*terms.values(), sums) for step in own}
        for x, own in terms.items():
            scopes[s.cache_read(x, "inp", [step for step in own if x in step.inputs])] = "inp"
        s.cache_read(par, "par", [local])
        outer, _ = split_tiles(s[out], (1, 1, int(knobs["size"])))
        tile = vthread_tiles(s[out], outer, int(knobs["vthreads"]))
        attach(s, scopes | {local: "out"}, s[out], tile)
        return lower(s, [*operands, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        if isinstance(node.op, QAdd):
            numbers = node.op.const, 1, node.op.shift
        else:
            requant = node.op_as(QAddFixed).requant
            numbers = 0, int(requant.multiplier[0]), int(requant.shift[0])
        return {"requantisation": uniform_parameters(*numbers, self.machine)}


def _sum(a: Tensor, b: Tensor) -> Tensor:
    return compute(a.shape, lambda *i: a[i] + b[i], f"{a.name}_{b.name}")


def _lifts(op: QAddFixed) -> tuple[Lift | None, Lift | None]:
    """The lifts that equal the rescaled first and second operand for every value; None for an
    operand that has none."""
    first = lift(op.zero_a, op.mult_a, op.shift_a)
    return first, lift(op.zero_b, op.mult_b, op.shift_b)


def _product(factor: int) -> Lift | None:
    """What multiplies an operand by a factor of 32 bits; None if that is 0."""
    return Lift(factor, 0, 0, 0, 0) if factor else None


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


# ---- products --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ElementProductWorkload(WithinBudget):
    """``requantize((a - zero) * (b - zero))`` of ``entries`` vectors. ``is_centred`` says that the
    zero point of the first operand is 0."""

    entries: int
    is_centred: bool
    context: Context
    zeros: tuple[int, int] = field(compare=False)
    epilogue: Epilogue = field(compare=False)


class ElementProducts(Tiled[ElementProductWorkload]):
    """The product of two tensors of one shape, as in SwiGLU: ``size`` vectors at a time. A pass for
    each zero point comes before the product."""

    name = "product of elements"
    ops = (QMul,)
    track = Track.VECTOR
    says = "on the vector unit"

    def handles(self, graph: Graph, node: Node) -> bool:
        shapes = {tensor.shape for tensor in graph.operands(node)}
        return super().handles(graph, node) and len(shapes) == 1

    def workload(self, graph: Graph, node: Node, context: Context) -> ElementProductWorkload:
        op, entries = node.op_as(QMul), prod(blocked_shape(graph.result(node).shape, self.machine))
        epilogue = Epilogue.from_requant(op.requant)
        zeros = (op.zero_a, op.zero_b)
        return ElementProductWorkload(entries, op.zero_a == 0, context, zeros, epilogue)

    def sizes(self, workload: ElementProductWorkload) -> Mapping[str, Sequence[KnobValue]]:
        return {"size": even_sizes(workload.entries), "vthreads": VTHREADS}

    def needs(self, workload: ElementProductWorkload, knobs: Knobs) -> Mapping[str, int]:
        vectors = int(knobs["size"]) * int(knobs["vthreads"])
        steps = 1 if workload.is_centred else 2
        return {
            "inp": 2 * vectors, "tmp": steps * vectors, "out": vectors, "par": REQUANT_ENTRIES
        }  # fmt: skip

    def predict(self, workload: ElementProductWorkload, knobs: Knobs) -> int:
        size, vthreads = int(knobs["size"]), int(knobs["vthreads"])
        passes = 2 if workload.is_centred else 3
        return row_cycles(workload.entries, size, passes, 2, vthreads, self.machine)

    def schedule(self, workload: ElementProductWorkload, knobs: Knobs, name: str) -> PrimFunc:
        """Parameters: a, b, par ([1, 3, block]: 0, multiplier, shift), out."""
        params, (zero, of_other) = self.machine.params, workload.zeros
        shape = (1, 1, workload.entries, params.batch, params.block)
        a, b = placeholder(shape, "int8", "a"), placeholder(shape, "int8", "b")
        par = placeholder((1, REQUANT_ENTRIES, params.block), "int32", "param")
        left = compute(shape, lambda *i: a[i].astype("int32") - zero, "left")
        right = compute(shape, lambda *i: b[i].astype("int32") - of_other, "right")
        product = compute(shape, lambda *i: left[i] * right[i], "product")
        out = requantized(product, par, workload.epilogue, per_channel=False)
        s = create_schedule(out)
        local = s.cache_write(out, "out")
        s[product].compute_inline()
        scopes = {s.cache_read(a, "inp", [left]): "inp", right: "tmp", local: "out"}
        if workload.is_centred:
            s[left].compute_inline()
        else:
            scopes[left] = "tmp"
        scopes[s.cache_read(b, "inp", [right])] = "inp"
        s.cache_read(par, "par", [local])
        outer, _ = split_tiles(s[out], (1, 1, int(knobs["size"])))
        tile = vthread_tiles(s[out], outer, int(knobs["vthreads"]))
        attach(s, scopes, s[out], tile)
        return lower(s, [a, b, par, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        requant = node.op_as(QMul).requant
        numbers = 0, int(requant.multiplier[0]), int(requant.shift[0])
        return {"requantisation": uniform_parameters(*numbers, self.machine)}
