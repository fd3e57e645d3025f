"""How loops come from other loops: extents follow forward, index values backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .expr import Const, Expr
from .tensor import IterVar


@dataclass(frozen=True, eq=False)
class Split:
    """``parent = outer * factor + inner``; with ``nparts`` the factor follows from the extent."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int | None
    nparts: int | None = None

    def factor_for(self, extent: int) -> int:
        """Factor when the parent has this extent (a stage computed for a region has smaller
        extents).
        """
        return self.factor if self.factor is not None else -(-extent // self.nparts)  # type: ignore[operator]

    @property
    def sources(self) -> tuple[IterVar, ...]:
        """The loop that is replaced."""
        return (self.parent,)

    @property
    def results(self) -> tuple[IterVar, ...]:
        """The loops in its place, outermost first."""
        return (self.outer, self.inner)


@dataclass(frozen=True, eq=False)
class Fuse:
    """``fused = outer * extent(inner) + inner``."""

    outer: IterVar
    inner: IterVar
    fused: IterVar

    @property
    def sources(self) -> tuple[IterVar, ...]:
        """The loops that are replaced, outermost first."""
        return (self.outer, self.inner)

    @property
    def results(self) -> tuple[IterVar, ...]:
        """The loop in their place."""
        return (self.fused,)


Relation = Split | Fuse


def loop_extents(relations: Iterable[Relation], roots: Mapping[IterVar, int]) -> dict[IterVar, int]:
    """Extents of all axes that are or were loops, from the extents of the first loops."""
    extents = dict(roots)
    for relation in relations:
        match relation:
            case Split():
                whole = extents[relation.parent]
                factor = min(relation.factor_for(whole), whole)
                extents[relation.inner] = factor
                extents[relation.outer] = -(-whole // factor)
            case Fuse():
                extents[relation.fused] = extents[relation.outer] * extents[relation.inner]
    return extents


def index_values(
    relations: Sequence[Relation], leaves: Iterable[IterVar], extents: Mapping[IterVar, int]
) -> dict[IterVar, Expr]:
    """Values of all axes that are or were loops, in the variables of the present loops."""
    values: dict[IterVar, Expr] = {
        leaf: leaf.var if extents[leaf] > 1 else Const(0) for leaf in leaves
    }
    for relation in reversed(relations):
        match relation:
            case Split(parent, outer, inner):
                values[parent] = values[outer] * extents[inner] + values[inner]
            case Fuse(outer, inner, fused) if extents[outer] == 1:
                values[outer], values[inner] = Const(0), values[fused]
            case Fuse(outer, inner, fused):
                width = extents[inner]
                values[outer], values[inner] = values[fused] // width, values[fused] % width
    return values


def tail_guards(
    relations: Iterable[Relation], values: Mapping[IterVar, Expr], extents: Mapping[IterVar, int]
) -> list[Expr]:
    """Conditions that keep indices within the parent's extent, for splits that do not divide it."""
    return [
        values[r.parent] < extents[r.parent]
        for r in relations
        if isinstance(r, Split) and extents[r.outer] * extents[r.inner] > extents[r.parent]
    ]
