"""Features of a loop program: as many numbers for every program, however many loops it has.

They describe the statement that does the most work, in the manner of AutoTVM. *itervar*: each of
its innermost loops, with what it touches of each operand. *curve*: how many elements of an operand
are touched until they are reused so many times. *totals*: operations of the whole program, those on
integers, too. All are logarithms, log2(1 + x).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from ..te.affine import affine
from ..te.expr import Binary, Call, Expr, Read, Reduce, Select, Var, children, walk
from ..te.stage import LOOP_KINDS
from ..tir.ir import Buffer, For, PrimFunc, Region, Stmt, Store, TensorCall, substatements

#: Loops and operands that have features of their own; fewer are filled up with zeros.
LOOPS, OPERANDS = 8, 4
#: Samples of a curve: the reuses 1, 2, 4, ... of which counts are given.
SAMPLES = 20
_OF_LOOP = 4 + len(LOOP_KINDS)
TOTALS = ("integer operations", "float operations", "products of tensors", "stored", "loops")
LENGTH = LOOPS * (_OF_LOOP + 3 * OPERANDS) + OPERANDS * SAMPLES + len(TOTALS)

#: An operand: the strides of its elements by loop variable.
_Strides = dict[Expr, int]


@dataclass(frozen=True)
class Statement:
    """A statement, the loops around it from outside, its operands, and its operations on integers
    and on floats each time.
    """

    loops: tuple[For, ...]
    operands: tuple[_Strides, ...]
    integer: int
    real: int
    products: int

    @property
    def times(self) -> int:
        """How often it runs."""
        return prod(loop.extent for loop in self.loops)

    @property
    def work(self) -> int:
        """Operations in all."""
        return self.times * (1 + self.integer + self.real + self.products)


def loop_features(func: PrimFunc) -> np.ndarray:
    """float64 [LENGTH]: the features of a loop program."""
    found = list(statements(func.body, ()))
    heaviest = max(found, key=lambda statement: statement.work)
    times = [statement.times for statement in found]
    totals = [
        sum(t * s.integer for t, s in zip(times, found, strict=True)),
        sum(t * s.real for t, s in zip(times, found, strict=True)),
        sum(t * s.products for t, s in zip(times, found, strict=True)),
        sum(times),
        len({loop.var for statement in found for loop in statement.loops}),
    ]
    features = [*_itervar(heaviest), *_curves(heaviest), *totals]
    return np.log2(1.0 + np.array(features, float))


def statements(stmt: Stmt, loops: tuple[For, ...]) -> Iterator[Statement]:
    """The statements inside of one that ``loops`` are around."""
    match stmt:
        case For():
            yield from statements(stmt.body, (*loops, stmt))
        case Store(buffer, indices, value):
            reads = [node for node in walk(value) if isinstance(node, Read)]
            operands = [_strides(buffer, indices)]
            operands += [
                _strides(r.source, r.indices) for r in reads if isinstance(r.source, Buffer)
            ]
            integer, real = _operations(value)
            yield Statement(loops, tuple(operands), integer, real, 0)
        case TensorCall():
            regions: tuple[Region, ...] = (stmt.output, *stmt.inputs)
            operands = [_strides(r.buffer, r.start) for r in regions]
            work = _intrinsic_work(stmt)
            yield Statement(loops, tuple(operands), 0, 0, work)
        case _:
            for child in substatements(stmt):
                yield from statements(child, loops)


def _strides(buffer: Buffer, indices: tuple[Expr, ...]) -> _Strides:
    """Elements from one iteration of each loop to the next."""
    found: _Strides = {}
    for index, stride in zip(indices, buffer.strides, strict=True):
        for term, coefficient in affine(index).terms:
            for var in walk(term):
                if isinstance(var, Var):
                    found[var] = found.get(var, 0) + coefficient * stride
    return found


def _operations(value: Expr) -> tuple[int, int]:
    """Operations on integers and on floats; arithmetic of indices is not counted."""
    integer = real = 0
    pending = [value]
    while pending:
        node = pending.pop()
        if not isinstance(node, Read):
            pending += children(node)
        if isinstance(node, Binary | Select | Call | Reduce):
            is_float = node.dtype.startswith("float")
            real, integer = real + is_float, integer + (not is_float)
    return integer, real


def _intrinsic_work(call: TensorCall) -> int:
    """Multiplications of a call; one for a call that only sets its output."""
    behaviour = call.intrinsic.behaviour
    if call.variant == "init":
        return 1
    return prod(behaviour.shape) * prod(axis.extent for axis in behaviour.reduce_axes)


def touched(operand: _Strides, loops: tuple[For, ...]) -> int:
    """Elements of an operand that loops touch."""
    return prod(loop.extent for loop in loops if operand.get(loop.var))


def _itervar(statement: Statement) -> list[float]:
    """The innermost loops, from inside."""
    features: list[float] = []
    loops, operands = statement.loops, statement.operands[:OPERANDS]
    for level in range(len(loops) - 1, max(-1, len(loops) - 1 - LOOPS), -1):
        loop, inside = loops[level], loops[level + 1 :]
        above = prod(outer.extent for outer in loops[:level])
        below = prod(inner.extent for inner in inside)
        features += [loop.extent, level, above, below]
        features += [float(loop.kind == kind) for kind in LOOP_KINDS]
        for operand in operands:
            count = touched(operand, loops[level:])
            reuse = below * loop.extent / count
            features += [abs(operand.get(loop.var, 0)), count, reuse]
        features += [0.0] * (3 * (OPERANDS - len(operands)))
    return features + [0.0] * (LOOPS * (_OF_LOOP + 3 * OPERANDS) - len(features))


def _curves(statement: Statement) -> list[float]:
    """For each operand, the elements that are touched inside of the innermost loop that reuses each
    of them 1, 2, 4, ... times; all elements where none does.
    """
    features: list[float] = []
    for operand in statement.operands[:OPERANDS]:
        relation = []
        for level in range(len(statement.loops), -1, -1):
            inside = statement.loops[level:]
            count = touched(operand, inside)
            relation.append((prod(loop.extent for loop in inside) / count, count))
        for sample in range(SAMPLES):
            reached = [count for reuse, count in relation if reuse >= 1 << sample]
            features.append(reached[0] if reached else relation[-1][1])
    return features + [0.0] * (OPERANDS * SAMPLES - len(features))
