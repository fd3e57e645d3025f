"""A loop program as a tree of numbers: its loops, and the statements inside of them.

A node is a loop or a statement. Its row has the features of both kinds, of which those of the other
kind are zero; all counts are logarithms, log2(1 + x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ..te.stage import LOOP_KINDS
from ..tir.ir import For, PrimFunc, Stmt, Store, TensorCall, substatements
from .loop_features import OPERANDS, Statement, statements, touched

_OF_LOOP = 3 + len(LOOP_KINDS)
_OF_STATEMENT = 4 + 3 * OPERANDS
#: Numbers in a row.
LENGTH = _OF_LOOP + _OF_STATEMENT


@dataclass
class LoopTree:
    """The nodes of a tree, each before the node around it.

    Attributes
    ----------
    rows : of each node, ``LENGTH`` numbers
    around : of each node, the index of the node around it; of the last one, the program, its own
    """

    rows: list[list[float]] = field(default_factory=list)
    around: list[int] = field(default_factory=list)

    def add(self, row: list[float], inside: list[int]) -> int:
        """Add a node around others."""
        index = len(self.rows)
        self.rows.append(row)
        self.around.append(index)
        for child in inside:
            self.around[child] = index
        return index


def loop_tree(func: PrimFunc) -> LoopTree:
    """The tree of a loop program. Its last node is the program itself, whose row is zero."""
    tree = LoopTree()
    top = _added(tree, func.body, ())
    tree.add([0.0] * LENGTH, top)
    return tree


def _added(tree: LoopTree, stmt: Stmt, loops: tuple[For, ...]) -> list[int]:
    """Add what is in a statement; returns the outermost nodes that were added."""
    match stmt:
        case For():
            inside = _added(tree, stmt.body, (*loops, stmt))
            return [tree.add(_loop_row(stmt, loops), inside)] if inside else []
        case Store() | TensorCall():
            found = [tree.add(_statement_row(each), []) for each in statements(stmt, loops)]
            return found
        case _:
            children = substatements(stmt)
            return [node for child in children for node in _added(tree, child, loops)]


def _loop_row(loop: For, loops: tuple[For, ...]) -> list[float]:
    above = prod(outer.extent for outer in loops)
    counts = np.log2(1.0 + np.array([loop.extent, len(loops), above], float)).tolist()
    return [*counts, *(float(loop.kind == kind) for kind in LOOP_KINDS), *[0.0] * _OF_STATEMENT]


def _statement_row(statement: Statement) -> list[float]:
    """Operations, and of each operand: elements touched in all, how often each, and the stride of
    the innermost loop.
    """
    counts: list[float] = [
        statement.times, statement.integer, statement.real, statement.products
    ]  # fmt: skip
    innermost = statement.loops[-1].var if statement.loops else None
    for operand in statement.operands[:OPERANDS]:
        count = touched(operand, statement.loops)
        stride = abs(operand.get(innermost, 0)) if innermost is not None else 0
        counts += [count, statement.times / count, stride]
    counts += [0.0] * (_OF_STATEMENT - len(counts))
    return [*[0.0] * _OF_LOOP, *np.log2(1.0 + np.array(counts, float)).tolist()]


class TreeFeatures:
    """The trees of a task's points; each program is lowered once.

    Parameters
    ----------
    lower : the loop program of a point
    prior : the logarithm of the estimated cost of points; zeros where there are no estimates
    has_estimates : whether there are
    """

    def __init__(
        self,
        lower: Callable[[int], PrimFunc],
        prior: Callable[[np.ndarray], np.ndarray],
        has_estimates: bool = False,
    ):
        self.prior, self.has_estimates = prior, has_estimates
        self._lower = lower
        self._trees: dict[int, LoopTree] = {}

    def tree(self, point: int) -> LoopTree:
        """The tree of a point."""
        if point not in self._trees:
            self._trees[point] = loop_tree(self._lower(point))
        return self._trees[point]
