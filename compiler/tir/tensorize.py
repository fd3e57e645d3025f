"""Loop nests as calls of tensor intrinsics: matched by what they compute, never by name."""

from __future__ import annotations

from collections.abc import Mapping

from ..te.affine import affine
from ..te.errors import ScheduleError
from ..te.expr import Const, Expr, Read, Reduce, Var, children, substitute, walk
from ..te.intrinsic import TensorIntrin
from ..te.tensor import IterVar, Tensor
from .ir import Region, Store, TensorCall
from .printer import expr_text


def match_intrinsic(
    intrinsic: TensorIntrin,
    variant: str,
    loops: list[IterVar],
    extents: Mapping[IterVar, int],
    store: Store,
    stage: str,
) -> TensorCall:
    """Match the nest ``for loops: store`` against the intrinsic and return the call on the regions
    it touches.

    The data loops must be the behaviour's data axes in order and extent, the reduction loops its
    reduction axes; the stored expression must be the behaviour's, operand by operand, with the
    loops as trailing indices of unit stride.
    """
    behaviour = intrinsic.behaviour
    data = [axis for axis in loops if axis.kind == "data"]
    reduce = [axis for axis in loops if axis.kind == "reduce"]
    wanted_data, wanted_reduce = behaviour.axes, behaviour.reduce_axes
    found = [[extents[a] for a in data], [extents[a] for a in reduce]]
    wanted = [[a.extent for a in wanted_data], [a.extent for a in wanted_reduce]]
    if found[0] != wanted[0] or (variant != "init" and found[1] != wanted[1]):
        raise ScheduleError(
            f"tensorize of {stage} at {loops[0]!r}: intrinsic {intrinsic.name} expects data loops "
            f"{wanted[0]} and reduction loops {wanted[1]}, the nest has {found[0]} and {found[1]}"
        )
    names = {w.var: a.var for w, a in zip(wanted_data, data, strict=True)}
    if variant != "init":
        names |= {w.var: a.var for w, a in zip(wanted_reduce, reduce, strict=True)}
    # Loops of extent 1 do not occur in the nest's indices: they match the constant 0.
    unit: dict[Var, Expr] = {
        w: Const(0) for w, a in names.items() if _extent(loops, extents, a) == 1
    }
    moving = {a.var for a in loops}
    matcher = _Matcher(intrinsic, names | unit, moving, stage)
    output = matcher.region(Read(store.buffer, store.indices), tuple(a.var for a in wanted_data))
    if variant == "init":
        return TensorCall(intrinsic, variant, output, ())
    body = behaviour.body
    if isinstance(body, Reduce):
        element = Read(behaviour, tuple(a.var for a in wanted_data))
        matcher.bound[behaviour] = output
        body = body.combine(element, body.body)
    assert body is not None
    matcher.unify(body, store.value)
    inputs = tuple(matcher.bound[operand] for operand in intrinsic.operands)
    return TensorCall(intrinsic, variant, output, inputs)


def _extent(loops: list[IterVar], extents: Mapping[IterVar, int], var: Expr) -> int:
    return next(extents[a] for a in loops if a.var is var)


class _Matcher:
    def __init__(
        self, intrinsic: TensorIntrin, names: Mapping[Var, Expr], moving: set[Var], stage: str
    ):
        self.intrinsic, self.names, self.moving, self.stage = intrinsic, names, moving, stage
        self.bound: dict[Tensor, Region] = {}

    def mismatch(self, wanted: Expr, got: Expr) -> ScheduleError:
        return ScheduleError(
            f"tensorize of {self.stage}: intrinsic {self.intrinsic.name} computes "
            f"{expr_text(wanted)}, the nest computes {expr_text(got)}"
        )

    def unify(self, wanted: Expr, got: Expr) -> None:
        """Walk both expressions together, binding operands."""
        if isinstance(wanted, Read):
            if not isinstance(got, Read) or got.dtype != wanted.dtype:
                raise self.mismatch(wanted, got)
            indices = tuple(i for i in wanted.indices if isinstance(i, Var))
            if len(indices) != len(wanted.indices):
                raise ScheduleError(
                    f"intrinsic {self.intrinsic.name}: operand indices must be plain axes, "
                    f"got {expr_text(wanted)}"
                )
            region = self.region(got, indices)
            known = self.bound.setdefault(wanted.source, region)
            if known.buffer is not region.buffer or known.start != region.start:
                raise self.mismatch(wanted, got)
            return
        same = type(wanted) is type(got) and wanted.dtype == got.dtype
        for attribute in ("op", "name", "value"):
            same = same and getattr(wanted, attribute, None) == getattr(got, attribute, None)
        if not same or len(children(wanted)) != len(children(got)):
            raise self.mismatch(wanted, got)
        for a, b in zip(children(wanted), children(got), strict=True):
            self.unify(a, b)

    def region(self, read: Read, axes: tuple[Var, ...]) -> Region:
        """The box that ``read`` sweeps when its trailing indices are ``axes`` with unit stride."""
        lead = len(read.indices) - len(axes)
        if lead < 0:
            raise ScheduleError(
                f"tensorize of {self.stage}: {read.source.name} has {len(read.indices)} "
                f"dimensions, {self.intrinsic.name} needs {len(axes)}"
            )
        start = []
        for dim, index in enumerate(read.indices):
            rest = index
            if dim >= lead:
                wanted = self.names[axes[dim - lead]]
                form = affine(index).coefficients
                if isinstance(wanted, Var) and form.get(wanted) != 1:
                    raise ScheduleError(
                        f"tensorize of {self.stage}: index {dim} of {read.source.name} must "
                        f"advance by 1 with {wanted!r}, got {expr_text(index)}"
                    )
                rest = substitute(index, {wanted: Const(0)} if isinstance(wanted, Var) else {})
            if any(node in self.moving for node in walk(rest) if isinstance(node, Var)):
                raise ScheduleError(
                    f"tensorize of {self.stage}: index {dim} of {read.source.name}, "
                    f"{expr_text(index)}, moves with a tensorized "
                    f"loop where {self.intrinsic.name} keeps it fixed"
                )
            start.append(rest)
        return Region(read.source, tuple(start))
