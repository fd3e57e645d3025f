"""Random computations on integers, with what NumPy makes of them, one operation at a time. Some of
the integers are float32, small enough that every order of additions gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from vdla.compiler.te.expr import (
    Const,
    Expr,
    Read,
    Var,
    all_of,
    cast,
    maximum,
    minimum,
    select,
)
from vdla.compiler.te.tensor import (
    Tensor,
    comm_reducer,
    compute,
    extern,
    max_of,
    min_of,
    placeholder,
    reduce_axis,
    scan,
    sum_of,
)
from vdla.compiler.tir.ir import Buffer, For, Stmt, Store

from ..workloads import Workload

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16")
#: Largest float; sums of many are exact.
LARGEST = 2**15
MOST_ELEMENTS = 6**3
MOST_REDUCED = 12
REDUCTIONS = {"sum": (sum_of, np.add), "max": (max_of, np.maximum), "min": (min_of, np.minimum)}


class Skip(Exception):
    """The operation does not fit the values at hand."""


@dataclass
class RandomExpression:
    """Tensors under construction and their values."""

    random: Random
    values: dict[Tensor, np.ndarray] = field(default_factory=dict)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Skip
        return self.random.choice(list(options))

    def input(self, rng: np.random.Generator) -> None:
        shape = [self.integer(1, 6) for _ in range(self.integer(1, 3))]
        if self.integer(0, 2) == 0 and len(shape) < 3:
            shape[-1] = self.choice((8, 16, 20))
        dtype = self.choice((*DTYPES, "float32"))
        if dtype == "float32":
            value = rng.integers(-9, 10, shape).astype(dtype)
        else:
            info = np.iinfo(dtype)
            value = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        self.values[placeholder(value.shape, dtype, f"x{len(self.values)}")] = value

    def pick(self, fits: Callable[[Tensor], bool] = lambda tensor: True) -> Tensor:
        """A tensor of integers, preferably a late one."""
        found = [t for t in self.values if t.dtype != "bool" and fits(t)]
        if not found:
            raise Skip
        return found[-1 - min(self.integer(0, 2), len(found) - 1)]

    def axis(self, x: Tensor, least: int = 1) -> int:
        return self.choice([a for a, n in enumerate(x.shape) if n >= least])

    def add(self, rule: Callable[..., Expr], value: np.ndarray) -> None:
        if value.size > MOST_ELEMENTS or value.ndim > 4 or not exact(value):
            raise Skip
        tensor = compute(value.shape, rule, f"t{len(self.values)}")
        assert tensor.dtype == value.dtype
        self.values[tensor] = value


def exact(value: np.ndarray) -> bool:
    return value.dtype != "float32" or bool((np.abs(value) <= LARGEST).all())


def is_float(tensor: Tensor) -> bool:
    return tensor.dtype == "float32"


def at(index: tuple[Expr, ...], axis: int, there: Expr) -> tuple[Expr, ...]:
    """The index with another position along one axis."""
    return (*index[:axis], there, *index[axis + 1 :])


# ---- operations ----


def with_number(g: RandomExpression) -> None:
    x = g.pick()
    value, number = g.values[x], g.integer(0, 100 if not is_float(x) else 9)
    typed = value.dtype.type(number)
    operators = ("+", "-", "*", "min", "max", "index")
    match g.choice(operators if is_float(x) else (*operators, ">>", "//", "%")):
        case "+":
            g.add(lambda *i: x[i] + number, value + typed)
        case "-":
            g.add(lambda *i: number - x[i], typed - value)
        case "*":
            g.add(lambda *i: x[i] * number, value * typed)
        case ">>":
            g.add(lambda *i: x[i] >> number % 8, value >> value.dtype.type(number % 8))
        case "min":
            g.add(lambda *i: minimum(x[i], number), np.minimum(value, typed))
        case "max":
            g.add(lambda *i: maximum(x[i], number), np.maximum(value, typed))
        case "//":
            g.add(lambda *i: x[i] // (number + 1), value // value.dtype.type(number + 1))
        case "%":
            g.add(lambda *i: x[i] % (number + 1), value % value.dtype.type(number + 1))
        case "index":
            place = np.indices(value.shape)[0].astype(x.dtype)
            g.add(lambda *i: x[i] * cast(x.dtype, i[0]), value * place)


def convert(g: RandomExpression) -> None:
    x, dtype = g.pick(), g.choice((*DTYPES, "float32"))
    value = g.values[x].astype("int64") if is_float(x) else g.values[x]
    g.add(lambda *i: x[i].astype(dtype), value.astype(dtype))


def pair(g: RandomExpression) -> None:
    x = g.pick()
    y = g.pick(lambda t: t.shape == x.shape)
    a, b = (g.values[t].astype("int32") for t in (x, y))

    def both(index: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        return x[index].astype("int32"), y[index].astype("int32")

    match g.choice(("+", "-", "*", "select")):
        case "+":
            g.add(lambda *i: both(i)[0] + both(i)[1], a + b)
        case "-":
            g.add(lambda *i: both(i)[0] - both(i)[1], a - b)
        case "*":
            g.add(lambda *i: both(i)[0] * both(i)[1], a * b)
        case "select":
            g.add(lambda *i: select(both(i)[0] < both(i)[1], *both(i)), np.where(a < b, a, b))


def masked(g: RandomExpression) -> None:
    """By way of a tensor of conditions."""
    x = g.pick()
    g.add(lambda *i: x[i] < 20, g.values[x] < 20)
    mask = list(g.values)[-1]
    g.add(lambda *i: select(mask[i], x[i], 3), np.where(g.values[mask], g.values[x], 3))


def gather(g: RandomExpression) -> None:
    """Rows of one tensor where the elements of another say."""
    x, places = g.pick(), g.pick(lambda t: len(t.shape) == 1 and not is_float(t))
    n = x.shape[0]
    g.add(
        lambda *i: x[(cast("int32", places[i[0]]) % n, *i[1:])],
        g.values[x][g.values[places].astype("int32") % n],
    )


def broadcast(g: RandomExpression) -> None:
    x = g.pick(lambda t: len(t.shape) <= 2)
    n, value = g.integer(1, 4), g.values[x]
    if g.integer(0, 1):
        g.add(lambda *i: x[i[1:]], np.repeat(value[None], n, 0))
    else:
        g.add(lambda *i: x[i[:-1]], np.repeat(value[..., None], n, -1))


def stencil(g: RandomExpression) -> None:
    x = g.pick()
    axis = g.axis(x, 2)
    reach = g.integer(1, min(3, x.shape[axis] - 1))
    kept = x.shape[axis] - reach
    first, last = (np.take(g.values[x], range(o, o + kept), axis) for o in (0, reach))
    g.add(lambda *i: x[i] - x[at(i, axis, i[axis] + reach)], first - last)


def pad(g: RandomExpression) -> None:
    x = g.pick()
    axis, before, after = g.axis(x), g.integer(0, 2), g.integer(0, 2)
    n = x.shape[axis]
    widths = [(before, after) if a == axis else (0, 0) for a in range(len(x.shape))]

    def rule(*i: Expr) -> Expr:
        inside = all_of(i[axis] >= before, i[axis] < n + before)
        return select(inside, x[at(i, axis, i[axis] - before)], 7)

    g.add(rule, np.pad(g.values[x], widths, constant_values=7))


def stride(g: RandomExpression) -> None:
    x = g.pick()
    axis = g.axis(x)
    step, first = g.integer(1, 3), g.integer(0, x.shape[axis] - 1)
    places = range(first, x.shape[axis], step)
    value = np.take(g.values[x], places, axis)
    g.add(lambda *i: x[at(i, axis, i[axis] * step + first)], value)


def turn(g: RandomExpression) -> None:
    x = g.pick()
    axis, value = g.axis(x), g.values[x]
    match g.choice(("transpose", "repeat", "tile")):
        case "transpose":
            g.add(lambda *i: x[i[::-1]], value.T)
        case "repeat":
            g.add(lambda *i: x[at(i, axis, i[axis] // 2)], np.repeat(value, 2, axis))
        case "tile":
            n = x.shape[axis]
            g.add(
                lambda *i: x[at(i, axis, i[axis] % n)], np.take(value, [*range(n), *range(n)], axis)
            )


def reverse(g: RandomExpression) -> None:
    x = g.pick(lambda t: max(t.shape) > 1)
    axis = g.axis(x, 2)
    last = x.shape[axis] - 1
    g.add(lambda *i: x[at(i, axis, last - i[axis])], np.flip(g.values[x], axis))


def reshape(g: RandomExpression) -> None:
    x = g.pick(lambda t: len(t.shape) <= 2)
    value = g.values[x]
    if len(x.shape) == 2:
        width = x.shape[1]
        g.add(lambda f: x[f // width, f % width], value.reshape(-1))
    else:
        width = g.choice([w for w in (2, 3) if value.size % w == 0])
        g.add(lambda i, j: x[i * width + j], value.reshape(-1, width))


def diagonal(g: RandomExpression) -> None:
    x = g.pick(lambda t: len(t.shape) == 2)
    n = min(x.shape)
    g.add(lambda i: x[i, i], g.values[x][range(n), range(n)])


def reduce(g: RandomExpression) -> None:
    x = g.pick(lambda t: len(t.shape) >= 2)
    count = g.integer(1, len(x.shape) - 1)
    axes = tuple(sorted(g.random.sample(range(len(x.shape)), count)))
    make, ufunc = REDUCTIONS[g.choice(list(REDUCTIONS))]
    loops = {a: reduce_axis(x.shape[a], f"k{a}") for a in axes}

    def rule(*i: Expr) -> Expr:
        rest = iter(i)
        return make(
            x[tuple(loops[a].var if a in loops else next(rest) for a in range(len(x.shape)))],
            tuple(loops.values()),
        )

    value = ufunc.reduce(g.values[x], axis=axes, dtype=x.dtype)
    if g.values[x].size // value.size > MOST_REDUCED:
        raise Skip
    g.add(rule, value)


def window(g: RandomExpression) -> None:
    x = g.pick()
    axis = g.axis(x, 2)
    size, step = g.integer(2, min(3, x.shape[axis])), g.integer(1, 2)
    k, places = reduce_axis(size, "k"), np.arange(0, x.shape[axis] - size + 1, step)
    make, ufunc = REDUCTIONS[g.choice(list(REDUCTIONS))]
    parts = [np.take(g.values[x], places + o, axis) for o in range(size)]
    value = ufunc.reduce(parts, axis=0, dtype=x.dtype)
    g.add(lambda *i: make(x[at(i, axis, i[axis] * step + k.var)], k), value)


def product(g: RandomExpression) -> None:
    x = g.pick(lambda t: len(t.shape) == 2)
    y = g.pick(lambda t: len(t.shape) == 2 and t.shape[1] == x.shape[1])
    k = reduce_axis(x.shape[1], "k")
    a, b = (g.values[t].astype("int32") for t in (x, y))
    starts = bool(g.integer(0, 1))

    def rule(i: Expr, j: Expr) -> Expr:
        term = x[i, k.var].astype("int32") * y[j, k.var].astype("int32")
        return sum_of(term, k, y[j, 0].astype("int32") - i if starts else None)

    start = b[:, 0] - np.arange(len(a), dtype="int32")[:, None]
    g.add(rule, a @ b.T + start if starts else a @ b.T)


def own_reduction(g: RandomExpression) -> None:
    """Reducers of our own: a | b, and a + b + a*b, which is (1 + a) * (1 + b) - 1."""
    x = g.pick(lambda t: len(t.shape) >= 2 and t.shape[-1] <= MOST_REDUCED and not is_float(t))
    value, k = g.values[x], reduce_axis(x.shape[-1], "k")
    if g.integer(0, 1):
        reduce = comm_reducer(lambda a, b: a | b, lambda dtype: Const(0, dtype), "either")
        g.add(lambda *i: reduce(x[(*i, k)], k), np.bitwise_or.reduce(value, -1))
    else:
        reduce = comm_reducer(lambda a, b: a + b + a * b, lambda dtype: Const(0, dtype), "both")
        one = value.dtype.type(1)
        g.add(
            lambda *i: reduce(x[(*i, k)], k),
            np.multiply.reduce(value + one, -1, dtype=value.dtype) - one,
        )


def running(g: RandomExpression) -> None:
    """Sums along the first axis: a scan, its rows by way of another tensor or not."""
    x = g.pick(lambda t: 2 <= t.shape[0])
    value, name = g.values[x], f"t{len(g.values)}"
    steps, sign = g.integer(1, min(2, x.shape[0] - 1)), g.choice((1, -1))
    state = placeholder(x.shape, x.dtype, name + ".state")
    first = compute((steps, *x.shape[1:]), lambda *i: x[i], name + ".init")

    def before(*i: Expr) -> Expr:
        return state[(i[0] - steps, *i[1:])]

    if g.integer(0, 1):
        doubled = compute(x.shape, lambda *i: before(*i) * 2, name + ".twice")
        rows = compute(x.shape, lambda *i: x[i] * sign + doubled[i], name + ".rows")
        factor = 2
    else:
        rows = compute(x.shape, lambda *i: x[i] * sign + before(*i), name + ".rows")
        factor = 1
    total = value.copy()
    for t in range(steps, len(total)):
        earlier, now = (row.astype("int64") for row in (total[t - steps, None], value[t, None]))
        total[t] = (factor * earlier + sign * now).astype(total.dtype)[0]
    if not exact(total):
        raise Skip
    g.values[scan(first, rows, state, name)] = total


def program(g: RandomExpression) -> None:
    """A loop program of its own, that reverses the order of the rows."""
    x = g.pick()
    n = x.shape[0]

    def turned(inputs: list[Buffer], output: Buffer) -> Stmt:
        loops = [Var(f"e{dim}") for dim in range(len(x.shape))]
        index = (n - 1 - loops[0], *loops[1:])
        stmt: Stmt = Store(output, tuple(loops), Read(inputs[0], index))
        for var, extent in reversed([*zip(loops, x.shape, strict=True)]):
            stmt = For(var, extent, "serial", stmt)
        return stmt

    name = f"t{len(g.values)}"
    g.values[extern(x.shape, [x], turned, x.dtype, name)] = g.values[x][::-1].copy()


OPERATIONS = (
    with_number, with_number, convert, pair, pair, pair, broadcast, stencil, stencil, pad, stride,
    turn, turn, reverse, reverse, reshape, diagonal, reduce, reduce, window, window, product,
    product, masked, gather, own_reduction, running, running, program,
)  # fmt: skip


def random_workload(random: Random) -> Workload:
    """Up to eight operations; the result of the last one is the output, and its NumPy value is
    known."""
    g = RandomExpression(random)
    rng = np.random.default_rng(random.getrandbits(32))
    for _ in range(g.integer(1, 2)):
        g.input(rng)
    inputs = tuple(g.values)
    for _ in range(g.integer(2, 8)):
        try:
            g.choice(OPERATIONS)(g)
        except Skip:
            continue
    if len(g.values) == len(inputs):
        x = inputs[-1]
        g.add(lambda *i: x[i] + 1, g.values[x] + g.values[x].dtype.type(1))
    *stages, output = list(g.values)[len(inputs) :]
    arrays, expected = [g.values[t] for t in inputs], g.values[output]
    return Workload(inputs, output, lambda *_: expected, {t.name: t for t in stages}, arrays)
