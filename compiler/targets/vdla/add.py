"""TensorFlow Lite's addition on the vector unit, to the last bit, whatever the scales.

An operand is rescaled with 40 bits; the vector unit has 32. So its factor is split into an integer
and a fraction (``graph/arithmetic/lift.py``), which are multiplied apart.
"""

from __future__ import annotations

from collections.abc import Callable

from ....isa.errors import VdlaError
from ....isa.params import HwParams
from ...graph.arithmetic.lift import FRACTION_BITS, Lift
from ...te.expr import Expr
from ...te.schedule import create_schedule
from ...te.tensor import Tensor, compute, placeholder
from ...tir.ir import PrimFunc
from ...tir.lower import lower
from .expressions import Clamp, _attach, _requantized, _tile


def add_fixed(
    name: str,
    entries: int,
    lifts: tuple[Lift, Lift],
    subtract: bool,
    clamp: Clamp,
    params: HwParams,
    vthreads: int,
) -> PrimFunc:
    """``requantize(lift(a) + lift(b))`` over ``entries`` vectors; parameters: a, b, par ([1, 3,
    block]: 0, multiplier, shift), out.
    """
    shape = (1, 1, entries, params.batch, params.block)
    a, b = placeholder(shape, "int8", "a"), placeholder(shape, "int8", "b")
    par = placeholder((1, 3, params.block), "int32", "param")
    left, right = _steps(a, lifts[0]), _steps(b, lifts[1])
    first, second = left[-1], right[-1]

    def rule(*i: Expr) -> Expr:
        return first[i] - second[i] if subtract else first[i] + second[i]

    total = compute(shape, rule, "total")
    out = _requantized(total, par, clamp, per_channel=False)
    steps = [*left, *right]
    vthreads = min(vthreads, params.tmp_depth // len(steps), params.out_depth)
    if not vthreads:
        raise VdlaError(
            f"{name}: the addition needs {len(steps)} entries of tmp, got {params.tmp_depth}"
        )
    size = min(entries, params.tmp_depth // (len(steps) * vthreads), params.out_depth // vthreads)
    size = min(size, params.inp_depth // (2 * vthreads))

    s = create_schedule(out)
    local = s.cache_write(out, "out")
    s[total].compute_inline()
    a_tile = s.cache_read(a, "inp", [t for t in left if a in t.inputs])
    b_tile = s.cache_read(b, "inp", [t for t in right if b in t.inputs])
    par_tile = s.cache_read(par, "par", [local])
    tile = _tile(s[out], (1, 1, size), vthreads)
    scopes = dict.fromkeys(steps, "tmp")
    scopes |= {a_tile: "inp", b_tile: "inp", local: "out", par_tile: "par"}
    _attach(s, scopes, s[out], tile)
    return lower(s, [a, b, par, out], name)


def _steps(x: Tensor, lift: Lift) -> list[Tensor]:
    """The instructions of an operand, one tensor each; the last one is the result."""
    steps: list[Tensor] = []

    def step(rule: Callable[[tuple[Expr, ...]], Expr]) -> Tensor:
        steps.append(compute(x.shape, lambda *i: rule(i), f"{x.name}{len(steps)}"))
        return steps[-1]

    high = step(lambda i: x[i].astype("int32") * lift.high)
    if lift.low:
        low = step(lambda i: x[i].astype("int32") * lift.low)
        biased = step(lambda i: low[i] + lift.rest)
        shifted = step(lambda i: biased[i] >> FRACTION_BITS)
        whole = step(lambda i: high[i] + shifted[i])
    else:
        whole = high
    product = step(lambda i: whole[i] + lift.offset) if lift.offset else whole
    if lift.shift:
        sign = step(lambda i: product[i] >> 31)  # ties away from zero: one less where negative
        lowered = step(lambda i: product[i] + sign[i])
        nudged = step(lambda i: lowered[i] + (1 << (lift.shift - 1)))
        step(lambda i: nudged[i] >> lift.shift)
    return steps
