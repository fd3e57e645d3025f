"""Bounds inference: which region of every stage its consumers need at the place where it is
attached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ..te.affine import affine, simplify_index
from ..te.errors import ScheduleError
from ..te.expr import Binary, Const, Expr, Read, Var, binary, substitute, walk, wrap
from ..te.relations import Fuse, Split, index_values, loop_extents
from ..te.schedule import Schedule
from ..te.stage import Stage
from ..te.tensor import IterVar, Tensor

#: For each memory, the thread axes whose threads see one copy of a buffer in it.
Sharing = Mapping[str, Collection[str]]

#: First value and number of values of variables, or of terms.
Ranges = dict[Expr, tuple[Expr, int]]


@dataclass(eq=False)
class Domain:
    """The region that a stage computes, and what follows from it for the stage's loops.

    Attributes
    ----------
    mins : first index of each data axis, in variables of outer loops
    extents : number of indices of each data axis
    loop_extents : extents of all axes that are or were loops of the stage
    values : indices of these axes within the region, in loop variables
    """

    mins: list[Expr]
    extents: list[int]
    loop_extents: dict[IterVar, int] = field(default_factory=dict)
    values: dict[IterVar, Expr] = field(default_factory=dict)


def infer_domains(schedule: Schedule, sharing: Sharing) -> dict[Stage, Domain]:
    """Domains of all computed stages, consumers before producers.

    A stage in a memory that threads share is computed for all of these threads: its region does not
    depend on their indices, wherever their loops are.
    """
    domains: dict[Stage, Domain] = {}
    active = [s for s in schedule.stages if s.body is not None and not s.inlined]
    readers: dict[Tensor, list[Stage]] = {}
    for stage in active:
        for source in dict.fromkeys(read.source for read in stage.reads()):
            readers.setdefault(source, []).append(stage)
    for stage in reversed(active):
        if stage.attach is None:
            domain = Domain([Const(0)] * len(stage.tensor.shape), list(stage.tensor.shape))
        else:
            consumers = readers.get(stage.tensor)
            if not consumers:
                raise ScheduleError(
                    f"compute_at: nothing reads {stage.name}; outputs stay at the root"
                )
            domain = _needed(stage, consumers, domains, sharing.get(stage.scope, ()))
        _propagate(stage, domain)
        domains[stage] = domain
    return domains


def _propagate(stage: Stage, domain: Domain) -> None:
    """Loop extents forward through split and fuse, index values backward from the loops."""
    roots = dict(zip(stage.tensor.axes, domain.extents, strict=True))
    roots |= {axis: axis.extent for axis in stage.reduce_axes}
    domain.loop_extents = loop_extents(stage.relations, roots)
    domain.values = index_values(stage.relations, stage.leaves, domain.loop_extents)


def _relaxed_leaves(
    stage: Stage, consumer: Stage, shared_by: Collection[str]
) -> dict[Stage, set[IterVar]]:
    """Loops of the consumer, and of stages around it, that run inside the place where ``stage`` is
    attached, or whose threads share the memory that it is in.
    """
    assert stage.attach is not None
    target, axis = stage.attach
    if axis not in target.leaves:
        raise ScheduleError(
            f"compute_at: {stage.name} is attached in {target.name} at {axis!r}, which has been "
            f"split or fused since; attach it after that, at one of {target.leaves!r}"
        )
    relaxed: dict[Stage, set[IterVar]] = {}
    current, inside = consumer, len(consumer.leaves)
    while True:
        depth = target.leaves.index(axis) + 1
        if current is target and depth <= inside:
            relaxed[current] = set(current.leaves[depth:inside])
            for around, leaves in surrounding(target, depth):
                shared = {a for a in leaves if around.kinds.get(a) in shared_by}
                relaxed[around] = relaxed.get(around, set()) | shared
            return relaxed
        relaxed[current] = set(current.leaves[:inside])
        if current is target or current.attach is None:
            raise ScheduleError(
                f"compute_at: {stage.name} is attached in {target.name} at {axis!r}, but its "
                f"consumer {consumer.name} is computed elsewhere; attach the consumer there too"
            )
        current, at = current.attach
        inside = current.leaves.index(at) + 1


def surrounding(stage: Stage, depth: int) -> Iterator[tuple[Stage, list[IterVar]]]:
    """Stages with their loops around a place that has ``depth`` loops of ``stage`` around it."""
    yield stage, stage.leaves[:depth]
    seen = {stage}
    while stage.attach is not None and stage.attach[0] not in seen:
        stage, at = stage.attach
        seen.add(stage)
        yield stage, stage.leaves[: stage.leaves.index(at) + 1] if at in stage.leaves else []


def _axis_range(
    axis: IterVar, stage: Stage, domain: Domain, relaxed: set[IterVar]
) -> tuple[Expr, int]:
    """First value and number of values that an axis takes while the relaxed loops run."""
    extent = domain.loop_extents[axis]
    if axis in stage.leaves:
        if axis in relaxed:
            return Const(0), extent
        return domain.values[axis], 1
    for relation in stage.relations:
        match relation:
            case Split(parent=parent) if parent is axis:
                outer, n_outer = _axis_range(relation.outer, stage, domain, relaxed)
                inner, n_inner = _axis_range(relation.inner, stage, domain, relaxed)
                factor = domain.loop_extents[relation.inner]
                return outer * factor + inner, min(extent, (n_outer - 1) * factor + n_inner)
            case Fuse() if axis in (relation.outer, relation.inner):
                _, count = _axis_range(relation.fused, stage, domain, relaxed)
                if count == 1:
                    return domain.values[axis], 1
                return Const(0), extent
    raise AssertionError(f"axis {axis!r} is neither loop nor parent in {stage.name}")


def _index_range(index: Expr, ranges: Ranges) -> tuple[Expr, int] | None:
    """First value and number of values of an affine index; None where it is not affine in a
    variable that moves.
    """
    form = affine(index)
    first: Expr = Const(form.constant)
    count = 1
    for term, coefficient in form.terms:
        found = ranges.get(term) or _quotient_range(term, ranges)
        if found is not None:
            low, number = found
            start = low if coefficient > 0 else low + (number - 1)
            first = first + start * coefficient
            count += abs(coefficient) * (number - 1)
        else:
            moving = {v for v, r in ranges.items() if r[1] > 1}
            if any(node in moving or isinstance(node, Read) for node in walk(term)):
                return None
            fixed = {v: r[0] for v, r in ranges.items() if isinstance(v, Var)}
            first = first + binary("*", substitute(term, fixed), coefficient)
    return simplify_index(first), count


def _remainders(index: Expr, ranges: Ranges) -> Ranges:
    """The values of remainders of what moves."""
    moving = {v for v, r in ranges.items() if r[1] > 1}
    found: Ranges = {}
    for node in walk(index):
        match node:
            case Binary("%", dividend, Const(divisor)) if moving & {*walk(dividend)}:
                found[node] = Const(0), int(divisor)
    return found


def _quotient_range(term: Expr, ranges: Ranges) -> tuple[Expr, int] | None:
    """As :func:`_index_range`, for a quotient; None for other terms, and where the divisor does not
    divide the coefficients of the first value."""
    match term:
        case Binary("//", dividend, Const(divisor)) if divisor > 0:
            found = _index_range(dividend, ranges)
            if found is None:
                return None
            low, count = found
            form = affine(low)
            if any(coefficient % divisor for _, coefficient in form.terms):
                return None
            return low // divisor, (form.constant % divisor + count - 1) // divisor + 1
    return None


def _needed(
    stage: Stage, consumers: list[Stage], domains: dict[Stage, Domain], shared_by: Collection[str]
) -> Domain:
    """The union of what all consumers read, per axis."""
    shape = stage.tensor.shape
    mins: list[Expr | None] = [None] * len(shape)
    extents = [0] * len(shape)
    for consumer in consumers:
        relaxed_by_stage = _relaxed_leaves(stage, consumer, shared_by)
        domain = domains[consumer]
        ranges: Ranges = {}
        relaxed = relaxed_by_stage.get(consumer, set())
        # Loops around the consumer that run inside the place of attachment make its own first
        # indices move.
        outer_ranges: Ranges = {
            leaf.var: (wrap(0), domains[around].loop_extents[leaf])
            for around, leaves in relaxed_by_stage.items()
            if around is not consumer
            for leaf in leaves
        }
        for axis, low in zip(consumer.tensor.axes, domain.mins, strict=True):
            first, count = _axis_range(axis, consumer, domain, relaxed)
            moved = _index_range(low, outer_ranges | _remainders(low, outer_ranges))
            if moved is None:
                first, count = Const(0), axis.extent
            else:
                first, count = moved[0] + first, count + moved[1] - 1
            ranges[axis.var] = (first, count)
        for axis in consumer.reduce_axes:
            ranges[axis.var] = _axis_range(axis, consumer, domain, relaxed)
        for dim, found in enumerate(_swept(consumer.reads(), stage.tensor, ranges)):
            mins[dim], extents[dim] = _union((mins[dim], extents[dim]), found, shape[dim])
    for dim, axis in enumerate(stage.tensor.axes):
        count = stage.covers.get(axis, 1)
        extents[dim] = -(-extents[dim] // count) * count
    whole = [extent >= size for extent, size in zip(extents, shape, strict=True)]
    return Domain(
        [Const(0) if w or m is None else m for m, w in zip(mins, whole, strict=True)],
        [size if w else e for e, size, w in zip(extents, shape, whole, strict=True)],
    )


def _swept(reads: list[Read], tensor: Tensor, ranges: Ranges) -> list[tuple[Expr, int]]:
    """First index and number of indices, per dimension, that reads of a tensor touch."""
    shape = tensor.shape
    bounds: list[tuple[Expr | None, int]] = [(None, 0)] * len(shape)
    for read in reads:
        if read.source is tensor:
            for dim, index in enumerate(read.indices):
                found = _index_range(index, ranges) or (Const(0), shape[dim])
                bounds[dim] = _union(bounds[dim], found, shape[dim])
    return [(Const(0) if first is None else first, count) for first, count in bounds]


def read_inside(
    stage: Stage, domain: Domain, axis: IterVar, tensor: Tensor
) -> list[tuple[Expr, int]]:
    """First index and number of indices, per dimension, of a tensor that a stage reads inside one
    of its loops; the number is 0 where it reads none."""
    relaxed = set(stage.leaves[stage.leaves.index(axis) + 1 :])
    ranges: Ranges = {}
    for data, low in zip(stage.tensor.axes, domain.mins, strict=True):
        first, count = _axis_range(data, stage, domain, relaxed)
        ranges[data.var] = (low + first, count)
    for reduced in stage.reduce_axes:
        ranges[reduced.var] = _axis_range(reduced, stage, domain, relaxed)
    return _swept(stage.reads(), tensor, ranges)


def _union(old: tuple[Expr | None, int], new: tuple[Expr, int], size: int) -> tuple[Expr, int]:
    """Smallest range that holds both; the whole axis where their distance is not constant."""
    if old[0] is None:
        return new
    distance = affine(new[0] - old[0])
    if distance.terms:
        return Const(0), size
    low = old[0] if distance.constant >= 0 else new[0]
    end = max(old[1], distance.constant + new[1]) - min(0, distance.constant)
    return low, end
