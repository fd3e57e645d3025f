"""A reduction in two steps: what ``Schedule.rfactor`` makes of a stage."""

from __future__ import annotations

from .affine import simplify_index
from .errors import ScheduleError
from .expr import Expr, Read, Reduce, Var, all_of, select, substitute
from .relations import index_values, loop_extents, tail_guards
from .stage import Stage
from .tensor import IterVar, Tensor


def factored(stage: Stage, axis: IterVar, factor_axis: int) -> tuple[Tensor, Reduce]:
    """Partial results for every iteration of a reduction loop, and the expression of the stage that
    reduces them.
    """
    what = f"rfactor of {stage.name} at {axis!r}"
    body = stage.body
    if axis not in stage.leaves or axis.kind != "reduce" or not isinstance(body, Reduce):
        loops = [a for a in stage.leaves if a.kind == "reduce"]
        raise ScheduleError(f"{what}: expected one of its reduction loops {loops!r}")
    data = stage.tensor.axes
    if not 0 <= factor_axis <= len(data):
        raise ScheduleError(
            f"{what}: expected factor_axis of 0 .. {len(data)}, got {factor_axis!r}"
        )
    notes = (stage.kinds, stage.pragmas, stage.intrinsics, stage.prefetches, stage.alignments,
             stage.swizzled)  # fmt: skip
    if any(notes) or any(a not in stage.leaves for a in data):
        raise ScheduleError(f"{what}: apply it before primitives of other loops of the stage")
    extents = loop_extents(stage.relations, {a: a.extent for a in (*data, *body.axes)})
    values = index_values(stage.relations, stage.leaves, extents)
    rest = [a for a in stage.leaves if a.kind == "reduce" and a is not axis]
    fresh = {a: IterVar(Var(a.name), extents[a], a.kind) for a in (*data, *rest)}
    factor = IterVar(Var(axis.name), extents[axis])
    renamed: dict[Var, Expr] = {a.var: b.var for a, b in {**fresh, axis: factor}.items()}

    def moved(expr: Expr) -> Expr:
        return simplify_index(substitute(expr, renamed))

    of_root = {a.var: moved(values[a]) for a in body.axes} | {a.var: fresh[a].var for a in data}
    inside = all_of(
        *(substitute(g, renamed) for g in tail_guards(stage.relations, values, extents))
    )
    term = select(inside, substitute(body.body, of_root), body.identity)
    if rest:
        term = Reduce(body.kind, term, tuple(fresh[a] for a in rest))
    axes = [fresh[a] for a in data]
    axes.insert(factor_axis, factor)
    shape = tuple(a.extent for a in axes)
    partial = Tensor(f"{stage.name}.rf", shape, stage.tensor.dtype, tuple(axes), term)
    last = IterVar(Var(axis.name), factor.extent, "reduce")
    indices = [a.var for a in data]
    indices.insert(factor_axis, last.var)
    return partial, Reduce(body.kind, Read(partial, tuple(indices)), (last,), body.init)
