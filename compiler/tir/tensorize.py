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
    loops in the trailing indices, each times what it is times in the behaviour.
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
            region = self.region(got, wanted.indices)
            known = self.bound.setdefault(wanted.source, region)
            if known.buffer is not region.buffer or known.start != region.start:
                raise self.mismatch(wanted, got)
            return
        if isinstance(wanted, Var) and wanted in self.names:
            if self.names[wanted] is not got:
                raise self.mismatch(wanted, got)
            return
        same = type(wanted) is type(got) and wanted.dtype == got.dtype
        for attribute in ("op", "name", "value"):
            same = same and getattr(wanted, attribute, None) == getattr(got, attribute, None)
        if not same or len(children(wanted)) != len(children(got)):
            raise self.mismatch(wanted, got)
        for a, b in zip(children(wanted), children(got), strict=True):
            self.unify(a, b)

    def region(self, read: Read, wanted: tuple[Expr, ...]) -> Region:
        """The box that ``read`` sweeps when its trailing indices are those ``wanted``, which are
        sums of the behaviour's axes times constants.
        """
        lead = len(read.indices) - len(wanted)
        if lead < 0:
            raise ScheduleError(
                f"tensorize of {self.stage}: {read.source.name} has {len(read.indices)} "
                f"dimensions, {self.intrinsic.name} needs {len(wanted)}"
            )
        start = []
        for dim, index in enumerate(read.indices):
            rest = index
            if dim >= lead:
                steps, found = self._steps(wanted[dim - lead]), affine(index).coefficients
                for loop, step in steps.items():
                    if found.get(loop) != step:
                        raise ScheduleError(
                            f"tensorize of {self.stage}: index {dim} of {read.source.name} must "
                            f"advance by {step} with {loop!r}, got {expr_text(index)}"
                        )
                rest = substitute(index, dict.fromkeys(steps, Const(0)))
            if any(node in self.moving for node in walk(rest) if isinstance(node, Var)):
                raise ScheduleError(
                    f"tensorize of {self.stage}: index {dim} of {read.source.name}, "
                    f"{expr_text(index)}, moves with a tensorized "
                    f"loop where {self.intrinsic.name} keeps it fixed"
                )
            start.append(rest)
        return Region(read.source, tuple(start))

    def _steps(self, wanted: Expr) -> dict[Var, int]:
        """By how much an index of the behaviour advances with each loop of the nest."""
        form = affine(wanted)
        if form.constant or not all(axis in self.names for axis, _ in form.terms):
            raise ScheduleError(
                f"intrinsic {self.intrinsic.name}: operand indices must be sums of axes, got "
                f"{expr_text(wanted)}"
            )
        steps = {self.names[axis]: step for axis, step in form.terms if isinstance(axis, Var)}
        return {loop: step for loop, step in steps.items() if isinstance(loop, Var)}
